// TensorFlow's allocator of a GPU's memory, with less patience.
#pragma once

#include "tensorflow/core/framework/device.h"

namespace fake_gpu {

// An allocation for which there is no memory waits 10 s for some that comes back, and fails then:
// kMaxMillisToWait in xla/tsl/framework/bfc_allocator.cc. From now on it waits for a second, as
// tests ask for too much on purpose.
void shorten_waits(tensorflow::Device* device);

}  // namespace fake_gpu
