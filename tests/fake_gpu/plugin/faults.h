// What goes wrong on demand, in the words in which TensorFlow's build with CUDA says it.
//
// A fault strikes the `number`-th operation of its name on its GPU in a process, and each one after
// it; with `samples`, it counts only operations with an input whose first dimension is as large.
//
//   no_algorithm     cuDNN finds no algorithm for a convolution, mostly for lack of memory
//   cudnn, cublas    the library's handle can't be made, mostly for lack of memory
//   nccl             the communicator can't be made
//   illegal_address  the kernel reads what is not its own: the process ends
//   hang             the kernel never ends
#pragma once

#include "stream.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace fake_gpu {

// Returns whether the operation fails before it is queued; its context then has the error.
bool fails(Gpu* gpu, const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context);

// Makes what is queued on the stream never end, or the GPU fail, if the operation is one to do so.
void breaks(SP_Stream stream, const tensorflow::OpKernel& kernel,
            tensorflow::OpKernelContext* context);

}  // namespace fake_gpu
