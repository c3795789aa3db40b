// The GPU's kernels: those of the CPU, on the GPU's memory, with the time that a GPU would take.
#pragma once

#include <string>

#include "flops.h"
#include "stream.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace fake_gpu {

// The CPU's kernel of this node, built for the device at hand. Its threads are the CPU's, which
// every LocalDevice has. Sets the construction's error and returns nullptr if there is none.
tensorflow::OpKernel* cpu_kernel(tensorflow::OpKernelConstruction* construction,
                                 tensorflow::NodeDef node);

// The stream that the operation's kernels are queued on.
SP_Stream stream_of(tensorflow::OpKernelContext* context);

}  // namespace fake_gpu
