#include "allocator.h"

#include "stream.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device.h"

namespace fake_gpu {

using tensorflow::AllocationAttributes;
using tensorflow::Allocator;
using tensorflow::PluggableDevice;

constexpr double kWaitsS = 1.0, kTriesEveryS = 0.01;

class Impatient : public tensorflow::AllocatorWrapper {
 public:
  using AllocatorWrapper::AllocatorWrapper;

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return AllocateRaw(alignment, bytes, AllocationAttributes());
  }

  void* AllocateRaw(size_t alignment, size_t bytes, const AllocationAttributes& asked) override {
    AllocationAttributes once(/*retry_on_failure=*/false, asked.allocation_will_be_logged,
                              asked.freed_by_func);
    double until = asked.retry_on_failure ? now() + kWaitsS : 0;
    void* memory = wrapped()->AllocateRaw(alignment, bytes, once);
    while (!memory && now() < until) {
      sleep_until(now() + kTriesEveryS);
      memory = wrapped()->AllocateRaw(alignment, bytes, once);
    }
    return memory;
  }

  // What AllocatorWrapper does not pass on
  std::optional<tsl::AllocatorStats> GetStats() override { return wrapped()->GetStats(); }
  bool ClearStats() override { return wrapped()->ClearStats(); }
};

// C++ has one way to a private member: an explicit instantiation may name it.
static Allocator*& allocator_of(PluggableDevice* device);

template <Allocator* PluggableDevice::* member>
struct Private {
  friend Allocator*& allocator_of(PluggableDevice* device) { return device->*member; }
};

template struct Private<&PluggableDevice::device_allocator_>;

void shorten_waits(tensorflow::Device* device) {
  Allocator*& allocator = allocator_of(static_cast<PluggableDevice*>(device));
  allocator = new Impatient(allocator);
}

}  // namespace fake_gpu
