// The floating-point operations of an operation, as TensorFlow tells them:
// @ops.RegisterStatistics(_, "flops") in tensorflow/python/profiler/internal/flops_registry.py and
// tensorflow/python/ops/nn_ops.py. Their gradients, fused forms and Einsum, of which it tells none,
// are counted in the same way. Not followed: it counts a convolution's gradients in the padding
// too, and the wrong side of a transposed batch of matrices.
#pragma once

#include <functional>

#include "tensorflow/core/framework/op_kernel.h"

namespace fake_gpu {

using Flops = std::function<double(tensorflow::OpKernelContext*)>;

// How to count those of an operation, once it has its outputs; 0 if TensorFlow tells none.
Flops flops_of(tensorflow::OpKernelConstruction* construction);

}  // namespace fake_gpu
