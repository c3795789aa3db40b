#include "faults.h"

#include <map>

#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"

namespace fake_gpu {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

static int64_t samples_of(OpKernelContext* context) {
  int64_t most = 0;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->input_is_ref(i) || !context->has_input(i)) continue;
    const tensorflow::TensorShape& shape = context->input(i).shape();
    if (shape.dims() > 0) most = std::max<int64_t>(most, shape.dim_size(0));
  }
  return most;
}

static bool strikes(Fault* fault, const OpKernel& kernel, OpKernelContext* context) {
  if (kernel.type_string() != fault->operation) return false;
  if (fault->samples && samples_of(context) < fault->samples) return false;
  return ++fault->met >= fault->number;
}

static const char kHang[] = "hang";
static const char kIllegalAddress[] = "illegal_address";

static bool is_asynchronous(const Fault* fault) {
  return fault->kind == kHang || fault->kind == kIllegalAddress;
}

// BestCudnnConvAlgorithmIndices in tensorflow/core/kernels/gpu_utils.cc; the second line is what
// GpuScratchAllocator's limit says in xla/stream_executor.
static absl::Status no_algorithm() {
  return absl::NotFoundError(
      "No algorithm worked!  Error messages:\n  Profiling failure on CUDNN engine "
      "eng11{k2=6,k3=0}: "
      "RESOURCE_EXHAUSTED: Allocating 28512256 bytes exceeds the memory limit of 4194304 bytes.");
}

// CudnnSupport::Init in xla/stream_executor/cuda/cuda_dnn.cc, and what a convolution says without
// it
static absl::Status no_cudnn() {
  LOG(ERROR) << "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED";
  return absl::InternalError("No DNN in stream executor.");
}

// CUDABlas::Init in xla/stream_executor/cuda/cuda_blas.cc, and what a product says without it. The
// wheel has this text, with "Blas" and with "blas"; which of them a MatMul says was not seen.
static absl::Status no_cublas() {
  LOG(ERROR) << "failed to create cublas handle: the resource allocation failed";
  LOG(ERROR)
      << "Failure to initialize cublas may be due to OOM (cublas needs some free memory when you "
         "initialize it, and your deep-learning framework may have preallocated more than its "
         "fair share), or may be because this binary was not built with support for the GPU in "
         "your machine.";
  return absl::InternalError("No Blas support for stream");
}

// NCCL_RETURN_IF_ERROR in tensorflow/core/nccl/nccl_manager.cc, with ncclGetErrorString's text
static absl::Status no_nccl() {
  return absl::InternalError(
      "NCCL: unhandled cuda error (run with NCCL_DEBUG=INFO for details). "
      "Set NCCL_DEBUG=WARN for detail.");
}

bool fails(Gpu* gpu, const OpKernel& kernel, OpKernelContext* context) {
  static const std::map<std::string, absl::Status (*)()> errors = {{"no_algorithm", no_algorithm},
                                                                   {"cudnn", no_cudnn},
                                                                   {"cublas", no_cublas},
                                                                   {"nccl", no_nccl}};
  for (Fault* fault : gpu->faults) {
    if (is_asynchronous(fault) || !strikes(fault, kernel, context)) continue;
    context->SetStatus(errors.at(fault->kind)());
    return true;
  }
  return false;
}

void breaks(SP_Stream stream, const OpKernel& kernel, OpKernelContext* context) {
  for (Fault* fault : stream->gpu->faults) {
    if (!is_asynchronous(fault) || !strikes(fault, kernel, context)) continue;
    if (fault->kind == kHang) stream->after(kNever);
    if (fault->kind == kIllegalAddress) {
      LOG(ERROR) << "Could not synchronize CUDA stream: CUDA_ERROR_ILLEGAL_ADDRESS: "
                    "an illegal memory access was encountered";  // cuda_stream.cc
      stream->gpu->is_broken = true;
    }
  }
}

}  // namespace fake_gpu
