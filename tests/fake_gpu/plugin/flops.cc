#include "flops.h"

#include <cmath>
#include <map>

namespace fake_gpu {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

static const TensorShape& in(OpKernelContext* c, int i) {
  return c->input(i).shape();
}

static const TensorShape& out(OpKernelContext* c) {
  static const auto* none = new TensorShape({0});
  Tensor* output = c->num_outputs() ? c->mutable_output(0) : nullptr;
  return output ? output->shape() : *none;
}

static double elements(const TensorShape& shape) {
  return double(shape.num_elements());
}

static double last(const TensorShape& shape) {
  return shape.dims() ? double(shape.dim_size(shape.dims() - 1)) : 1;
}

static double matrix(const TensorShape& shape) {
  return shape.dims() < 2 ? 0 : last(shape) * double(shape.dim_size(shape.dims() - 2));
}

// 2·m·k·n a product, whichever of its matrices are transposed: their sizes are m·k, k·n and m·n.
static double product(OpKernelContext* c) {
  double m_n = matrix(out(c));
  double products = m_n ? elements(out(c)) / m_n : 0;
  return 2 * products * std::sqrt(matrix(in(c, 0)) * matrix(in(c, 1)) * m_n);
}

// A filter is [height, width, inputs, outputs]: each output value is a sum over the first three.
static double convolution(const TensorShape& values, const TensorShape& filter) {
  return last(filter) ? 2 * elements(values) * elements(filter) / last(filter) : 0;
}

static double forward(OpKernelContext* c) {
  return convolution(out(c), in(c, 1));
}
static double to_input(OpKernelContext* c) {
  return convolution(in(c, 2), in(c, 1));
}
static double to_filter(OpKernelContext* c) {
  return convolution(in(c, 2), out(c));
}

// A filter is [height, width, inputs, multiplier]: each output value is a sum over the first two.
static double depthwise(const TensorShape& values, const TensorShape& filter) {
  bool is_filter = filter.dims() == 4;
  return is_filter ? 2 * elements(values) * double(filter.dim_size(0) * filter.dim_size(1)) : 0;
}

static double depthwise_forward(OpKernelContext* c) {
  return depthwise(out(c), in(c, 1));
}
static double depthwise_to_input(OpKernelContext* c) {
  return depthwise(in(c, 2), in(c, 1));
}
static double depthwise_to_filter(OpKernelContext* c) {
  return depthwise(in(c, 2), out(c));
}

static Flops each_output(double count) {
  return [count](OpKernelContext* c) { return count * elements(out(c)); };
}

static Flops each_of_input(int number, double count) {
  return [number, count](OpKernelContext* c) { return count * elements(in(c, number)); };
}

static double add_n(OpKernelContext* c) {
  return (c->num_inputs() - 1) * elements(out(c));
}

// The values of which a pool makes one.
static double window_of(OpKernelConstruction* construction) {
  std::vector<int32_t> sizes;
  if (!construction->GetAttr("ksize", &sizes).ok()) return 0;
  double window = 1;
  for (int32_t size : sizes) window *= size;
  return window;
}

// A filter is [height, width, inputs].
static double dilation(OpKernelContext* c) {
  return 2 * elements(out(c)) * elements(in(c, 1)) / last(in(c, 1));
}

// The size of each of an operand's labels. Those after an ellipsis are counted from the end.
static void read_labels(const std::string& labels, const TensorShape& shape,
                        std::map<char, double>* sizes) {
  size_t ellipsis = labels.find("...");
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == '.') continue;
    bool from_end = ellipsis != std::string::npos && i > ellipsis;
    int axis = from_end ? shape.dims() - int(labels.size() - i) : int(i);
    (*sizes)[labels[i]] = double(shape.dim_size(axis));
  }
}

// `ab,bc->ac`: each output value is a sum over the labels that it has not.
static double einsum(const std::string& equation, OpKernelContext* c) {
  size_t arrow = equation.find("->"), comma = equation.find(',');
  if (arrow == std::string::npos || comma == std::string::npos) return 0;
  std::map<char, double> sizes;
  read_labels(equation.substr(0, comma), in(c, 0), &sizes);
  read_labels(equation.substr(comma + 1, arrow - comma - 1), in(c, 1), &sizes);
  double summed = 1;
  for (auto& [label, size] : sizes)
    if (equation.find(label, arrow) == std::string::npos) summed *= size;
  return 2 * elements(out(c)) * summed;
}

static Flops einsum_of(OpKernelConstruction* construction) {
  std::string equation;
  if (!construction->GetAttr("equation", &equation).ok()) return each_output(0);
  return [equation](OpKernelContext* c) { return einsum(equation, c); };
}

static const std::map<std::string, Flops>& table() {
  static const auto* flops = new std::map<std::string, Flops>{
      {"MatMul", product},
      {"_FusedMatMul", product},
      {"BatchMatMul", product},
      {"BatchMatMulV2", product},
      {"BatchMatMulV3", product},
      {"_FusedBatchMatMulV2", product},
      {"Conv2D", forward},
      {"_FusedConv2D", forward},
      {"Conv2DBackpropInput", to_input},
      {"Conv2DBackpropFilter", to_filter},
      {"Conv3D", forward},
      {"Conv3DBackpropInputV2", to_input},
      {"Conv3DBackpropFilterV2", to_filter},
      {"DepthwiseConv2dNative", depthwise_forward},
      {"_FusedDepthwiseConv2dNative", depthwise_forward},
      {"DepthwiseConv2dNativeBackpropInput", depthwise_to_input},
      {"DepthwiseConv2dNativeBackpropFilter", depthwise_to_filter},
      {"Dilation2D", dilation},
      {"AddN", add_n},
      {"Softmax", each_output(5)},
      {"SquaredDifference", each_output(2)},
      {"Rsqrt", each_output(2)},
      {"RsqrtGrad", each_output(4)},
      {"L2Loss", each_of_input(0, 3)},
  };
  return *flops;
}

static bool is_one_of(const std::string& op, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (op == name) return true;
  return false;
}

Flops flops_of(OpKernelConstruction* construction) {
  const std::string& op = construction->def().op();
  auto found = table().find(op);
  if (found != table().end()) return found->second;
  if (op == "Einsum") return einsum_of(construction);
  if (is_one_of(op, {"AvgPool", "MaxPool"})) return each_output(window_of(construction));
  if (op == "AvgPoolGrad") return each_of_input(1, 2 * window_of(construction));
  if (op == "MaxPoolGrad") return each_of_input(1, 1 + window_of(construction));
  if (is_one_of(op, {"Mean", "Sum", "ArgMax", "ArgMin", "BiasAddGrad"})) return each_of_input(0, 1);
  if (is_one_of(op, {"Reciprocal", "Square",   "Log",          "Neg",     "AssignSub", "AssignAdd",
                     "Add",        "AddV2",    "Sub",          "Mul",     "RealDiv",   "Maximum",
                     "Minimum",    "Pow",      "GreaterEqual", "Greater", "LessEqual", "Less",
                     "Equal",      "NotEqual", "BiasAdd"}))
    return each_output(1);
  return each_output(0);
}

}  // namespace fake_gpu
