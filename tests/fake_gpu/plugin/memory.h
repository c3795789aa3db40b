// A GPU's memory is the host's, within the GPU's size; copies are made at once, and their time
// queued.
#pragma once

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace fake_gpu {

void set_memory_functions(SP_StreamExecutor* executor);

}  // namespace fake_gpu
