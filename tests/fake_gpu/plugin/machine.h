// The machine's GPUs, as the NVML stand-in's script tells of them: see README.md for the keys.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace fake_gpu {

// What goes wrong, and from which operation on: see faults.h.
struct Fault {
  std::string kind, operation;
  int number = 1;
  int64_t samples = 0;
  std::atomic<int> met{0};
};

// One physical GPU. `number` is NVML's; CUDA's is its place in `gpus()`.
struct Gpu {
  int number = 0;
  std::string uuid, name, bus, capability;
  double flops_per_s = 50e9, bytes_per_s = 20e9, link_bytes_per_s = 5e9;
  double launch_s = 5e-6, kernel_s = 0;
  int64_t memory_bytes = 2LL << 30;
  std::vector<Fault*> faults;

  std::mutex mutex;
  int64_t used_bytes = 0;              // under the mutex
  std::atomic<bool> is_broken{false};  // after an illegal address nothing works any more
};

// The GPUs that CUDA_VISIBLE_DEVICES shows to this process, in its order.
const std::vector<Gpu*>& gpus();

}  // namespace fake_gpu
