// The devices that TensorFlow makes of the GPUs.
#pragma once

namespace fake_gpu {

void register_devices();

}  // namespace fake_gpu
