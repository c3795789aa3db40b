#include "kernels.h"

#include <memory>
#include <set>

#include "collectives.h"
#include "devices.h"
#include "faults.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace fake_gpu {

using tensorflow::AsyncOpKernel;
using tensorflow::KernelDef;
using tensorflow::KernelList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

OpKernel* cpu_kernel(OpKernelConstruction* construction, tensorflow::NodeDef node) {
  std::shared_ptr<const tensorflow::NodeProperties> properties;
  absl::Status status = tensorflow::NodeProperties::CreateFromNodeDef(
      std::move(node), tensorflow::OpRegistry::Global(), &properties);
  auto* device = static_cast<tensorflow::DeviceBase*>(construction->device());
  OpKernel* kernel = nullptr;
  if (status.ok())
    status = CreateOpKernel(tensorflow::DEVICE_CPU, device,
                            device->GetAllocator(tensorflow::AllocatorAttributes()),
                            construction->function_library(), construction->resource_manager(),
                            properties, construction->graph_def_version(), &kernel);
  if (status.ok()) return kernel;
  construction->SetStatus(status);
  return nullptr;
}

SP_Stream stream_of(OpKernelContext* context) {
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status);
  TF_DeleteStatus(status);
  return stream;
}

// Those that give on what they have, as it lies in memory: a GPU launches no kernel for them.
static bool launches(const std::string& op) {
  static const auto* none = new std::set<std::string>{
      "AssignVariableOp", "Const",      "Enter",          "Exit",          "ExpandDims",
      "Identity",         "IdentityN",  "Merge",          "NextIteration", "NoOp",
      "PreventGradient",  "Rank",       "ReadVariableOp", "Reshape",       "Shape",
      "ShapeN",           "Size",       "Squeeze",        "StopGradient",  "Switch",
      "VarHandleOp",      "_EagerConst"};
  return !none->count(op);
}

static bool is_values(tensorflow::DataType type) {
  return type != tensorflow::DT_RESOURCE && type != tensorflow::DT_VARIANT;
}

// What the kernel reads and writes of the GPU's memory. Inputs and outputs in the host's are of no
// kernel.
static double device_bytes(OpKernelContext* context) {
  double bytes = 0;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->input_is_ref(i) || !context->has_input(i)) continue;
    bool is_there = context->input_memory_type(i) == tensorflow::DEVICE_MEMORY;
    if (is_there && is_values(context->input_dtype(i))) bytes += context->input(i).TotalBytes();
  }
  for (int i = 0; i < context->num_outputs(); ++i) {
    tensorflow::Tensor* output = context->mutable_output(i);
    bool is_there = context->output_memory_type(i) == tensorflow::DEVICE_MEMORY;
    if (is_there && output && is_values(output->dtype())) bytes += output->TotalBytes();
  }
  return bytes;
}

// A kernel takes the longer of its arithmetic and its memory's traffic, which a GPU overlaps:
// Williams, Waterman and Patterson, "Roofline", 2009, doi:10.1145/1498765.1498785.
class Cost {
 public:
  explicit Cost(OpKernelConstruction* construction)
      : launches_(launches(construction->def().op())), flops_(flops_of(construction)) {}

  // Queues the kernel that the host has computed since `from`.
  void charge(OpKernelContext* context, const OpKernel& kernel, double from) const {
    SP_Stream stream = launches_ ? stream_of(context) : nullptr;
    double bytes = stream ? device_bytes(context) : 0;
    if (!bytes) return;
    Gpu* gpu = stream->gpu;
    stream->use = "compute";
    double flops = flops_(context);
    double works_s = std::max(bytes / gpu->bytes_per_s, flops / gpu->flops_per_s);
    double host_s = now() - from;
    Span span = stream->push(gpu->launch_s + gpu->kernel_s + works_s, from);
    breaks(stream, kernel, context);
    trace({gpu->number, "kernel", kernel.type_string(), kernel.name(), stream->use.load(), from,
           span, bytes, flops, host_s});
  }

 private:
  bool launches_;
  Flops flops_;
};

static bool fails_at(const OpKernel& kernel, OpKernelContext* context) {
  SP_Stream stream = stream_of(context);
  return stream && fails(stream->gpu, kernel, context);
}

class Kernel : public OpKernel {
 public:
  Kernel(OpKernelConstruction* construction, OpKernel* cpu)
      : OpKernel(construction), cpu_(cpu), cost_(construction) {}

  void Compute(OpKernelContext* context) override {
    if (fails_at(*this, context)) return;
    double from = now();
    cpu_->Compute(context);
    if (context->status().ok()) cost_.charge(context, *this, from);
  }

  const tensorflow::Tensor* const_tensor() const override { return cpu_->const_tensor(); }

 private:
  std::unique_ptr<OpKernel> cpu_;
  Cost cost_;
};

class AsyncKernel : public AsyncOpKernel {
 public:
  AsyncKernel(OpKernelConstruction* construction, OpKernel* cpu)
      : AsyncOpKernel(construction), cpu_(cpu), cost_(construction) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    if (fails_at(*this, context)) return done();
    double from = now();
    cpu_->AsAsync()->ComputeAsync(context, [this, context, done, from] {
      if (context->status().ok()) cost_.charge(context, *this, from);
      done();
    });
  }

 private:
  std::unique_ptr<OpKernel> cpu_;
  Cost cost_;
};

static OpKernel* new_kernel(OpKernelConstruction* construction) {
  OpKernel* cpu = cpu_kernel(construction, construction->def());
  if (!cpu) return nullptr;
  if (cpu->AsAsync()) return new AsyncKernel(construction, cpu);
  return new Kernel(construction, cpu);
}

static void register_kernel(KernelDef definition, OpKernel* (*make)(OpKernelConstruction*)) {
  definition.set_device_type("GPU");
  definition.set_priority(definition.priority() +
                          1);  // or it would be one of two for the same node
  tensorflow::kernel_factory::OpKernelRegistrar(new KernelDef(definition), "FakeGpu", make);
}

// For each of CUDA's kernels one that computes with the CPU's, so that types and arguments in the
// host's memory are as CUDA has them.
static void register_kernels() {
  KernelList all = tensorflow::GetAllRegisteredKernels();
  std::set<std::string> on_cpu;
  for (const KernelDef& definition : all.kernel())
    if (definition.device_type() == "CPU") on_cpu.insert(definition.op());
  for (const KernelDef& definition : all.kernel()) {
    if (is_collective(definition)) {
      register_kernel(definition, new_collective);
    } else if (definition.device_type() == "GPU" && on_cpu.count(definition.op())) {
      register_kernel(definition, new_kernel);
    }
  }
}

}  // namespace fake_gpu

extern "C" __attribute__((visibility("default"))) void TF_InitKernel() {
  if (fake_gpu::gpus().empty()) return;
  fake_gpu::register_devices();
  fake_gpu::register_kernels();
}
