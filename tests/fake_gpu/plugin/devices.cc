#include "devices.h"

#include "allocator.h"
#include "machine.h"
#include "tensorflow/core/common_runtime/device/device_id_manager.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device_factory.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device_process_state.h"
#include "tensorflow/core/common_runtime/process_state.h"
#include "tensorflow/core/framework/device.h"
#include "xla/tsl/framework/device_id_utils.h"

namespace fake_gpu {

using tensorflow::Device;
using tensorflow::SessionOptions;

static const char kType[] = "GPU";
static const char kPlatform[] = "FAKE";  // platform.cc
using Devices = std::vector<std::unique_ptr<Device>>;
using Details = std::unordered_map<std::string, std::string>;

// GetShortDeviceDescription in tensorflow/core/common_runtime/gpu/gpu_device.cc
static std::string description(int ordinal) {
  Gpu* gpu = gpus().at(ordinal);
  return "device: " + std::to_string(ordinal) + ", name: " + gpu->name +
         ", pci bus id: " + gpu->bus + ", compute capability: " + gpu->capability;
}

// A logical device is a part of a GPU's memory; its kernels run on the whole GPU, in streams of its
// own.
struct LogicalDevice {
  int number;
  int ordinal;
  int64_t memory_bytes;
};

// As in BaseGPUDeviceFactory::CreateDevices in tensorflow/core/common_runtime/gpu/gpu_device.cc:
// the list has an entry for each visible GPU, which is empty for one that is to be whole.
static std::vector<LogicalDevice> logical_devices(const tensorflow::GPUOptions& options) {
  std::vector<LogicalDevice> logical;
  const auto& parts_of_each = options.experimental().virtual_devices();
  std::vector<tensorflow::PlatformDeviceId> visible;
  TF_CHECK_OK(
      tsl::ParseVisibleDeviceList(options.visible_device_list(), int(gpus().size()), &visible));
  for (int i = 0; i < parts_of_each.size(); ++i) {
    int ordinal = visible.at(i).value();
    for (float mib : parts_of_each.Get(i).memory_limit_mb())
      logical.push_back({int(logical.size()), ordinal, int64_t(mib) << 20});
    if (parts_of_each.Get(i).memory_limit_mb().empty())
      logical.push_back({int(logical.size()), ordinal, gpus().at(ordinal)->memory_bytes});
  }
  return logical;
}

static absl::Status create_device(const SessionOptions& options, const std::string& prefix,
                                  const LogicalDevice& logical, Devices* devices) {
  tensorflow::TfDeviceId id(logical.number);
  absl::Status status = tensorflow::DeviceIdManager::InsertTfPlatformDeviceIdPair(
      tensorflow::DeviceType(kType), id, tensorflow::PlatformDeviceId(logical.ordinal));
  if (!status.ok()) return status;
  auto* state = tensorflow::PluggableDeviceProcessState::singleton(kType, kPlatform);
  tensorflow::Allocator* allocator = state->GetPluggableDeviceAllocator(
      options.config.gpu_options(), id, size_t(logical.memory_bytes));
  tensorflow::DeviceLocality locality;
  locality.set_bus_id(1);
  auto device = std::make_unique<tensorflow::PluggableDevice>(
      options, prefix + "/device:GPU:" + std::to_string(logical.number), kType, kPlatform,
      tensorflow::Bytes(logical.memory_bytes), locality, id, description(logical.ordinal),
      allocator, tensorflow::ProcessState::singleton()->GetCPUAllocator(0),
      /*sync_every_op=*/false);
  status = device->Init(options);
  devices->push_back(std::move(device));
  return status;
}

static int ordinal_of(const Device& device) {
  return atoi(device.attributes().physical_device_desc().c_str() + strlen("device: "));
}

class Factory : public tensorflow::PluggableDeviceFactory {
 public:
  Factory() : PluggableDeviceFactory(kType, kPlatform) {}

  absl::Status CreateDevices(const SessionOptions& options, const std::string& prefix,
                             Devices* devices) override {
    bool are_parts = !options.config.gpu_options().experimental().virtual_devices().empty();
    size_t others = devices->size();
    absl::Status status = are_parts ? create_logical_devices(options, prefix, devices)
                                    : create_whole_devices(options, prefix, devices);
    for (size_t i = others; i < devices->size(); ++i) shorten_waits((*devices)[i].get());
    return status;
  }

  absl::Status GetDeviceDetails(int ordinal, Details* details) override {
    (*details)["device_name"] = gpus().at(ordinal)->name;
    (*details)["compute_capability"] = gpus().at(ordinal)->capability;
    return absl::OkStatus();
  }

 private:
  // TensorFlow's own factory for plugins knows no parts of a GPU.
  absl::Status create_logical_devices(const SessionOptions& options, const std::string& prefix,
                                      Devices* devices) {
    for (const LogicalDevice& logical : logical_devices(options.config.gpu_options())) {
      absl::Status status = create_device(options, prefix, logical, devices);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // TensorFlow's own factory says `FAKE` and `<undefined>` for a plugin's name and bus.
  absl::Status create_whole_devices(const SessionOptions& options, const std::string& prefix,
                                    Devices* devices) {
    size_t others = devices->size();
    absl::Status status = PluggableDeviceFactory::CreateDevices(options, prefix, devices);
    for (size_t i = others; status.ok() && i < devices->size(); ++i) {
      auto& told = const_cast<tensorflow::DeviceAttributes&>((*devices)[i]->attributes());
      told.set_physical_device_desc(description(ordinal_of(*(*devices)[i])));
    }
    return status;
  }
};

void register_devices() {
  constexpr int kBeforeCuda = 221;  // whose factory for "GPU" has 210
  tensorflow::DeviceFactory::Register(kType, std::make_unique<Factory>(), kBeforeCuda,
                                      /*is_pluggable_device=*/true);
}

}  // namespace fake_gpu
