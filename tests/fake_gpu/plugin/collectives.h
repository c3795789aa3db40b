// Sums over GPUs, as NCCL makes them for TensorFlow.
#pragma once

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace fake_gpu {

bool is_collective(const tensorflow::KernelDef& definition);

tensorflow::OpKernel* new_collective(tensorflow::OpKernelConstruction* construction);

}  // namespace fake_gpu
