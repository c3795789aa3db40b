// What TensorFlow asks of a plugin first: its devices, and the functions that drive them.
// https://github.com/tensorflow/community/blob/master/rfcs/20200612-stream-executor-c-api.md
#include "machine.h"
#include "memory.h"
#include "ok.h"
#include "stream.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace fake_gpu {

// cuDeviceGetCount
static void get_device_count(const SP_Platform*, int* count, TF_Status* status) {
  *count = int(gpus().size());
  ok(status);
}

// cuDeviceGet, cuDeviceGetName, cuDeviceGetPCIBusId
static void create_device(const SP_Platform*, SE_CreateDeviceParams* parameters,
                          TF_Status* status) {
  Gpu* gpu = gpus().at(parameters->ordinal);
  SP_Device* device = parameters->device;
  device->struct_size = SP_DEVICE_STRUCT_SIZE;
  device->ordinal = parameters->ordinal;
  device->device_handle = gpu;
  device->hardware_name = gpu->name.c_str();
  device->device_vendor = "gpubalance's tests";
  device->pci_bus_id = gpu->bus.c_str();
  ok(status);
}

static void create_device_functions(const SP_Platform*, SE_CreateDeviceFnsParams* parameters,
                                    TF_Status* status) {
  parameters->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  ok(status);
}

static void create_executor(const SP_Platform*, SE_CreateStreamExecutorParams* parameters,
                            TF_Status* status) {
  parameters->stream_executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  set_stream_functions(parameters->stream_executor);
  set_memory_functions(parameters->stream_executor);
  ok(status);
}

static void create_timer_functions(const SP_Platform*, SP_TimerFns* functions, TF_Status* status) {
  set_timer_functions(functions);
  ok(status);
}

static void set_platform_functions(SP_PlatformFns* functions) {
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = get_device_count;
  functions->create_device = create_device;
  functions->destroy_device = [](const SP_Platform*, SP_Device*) {};
  functions->create_device_fns = create_device_functions;
  functions->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  functions->create_stream_executor = create_executor;
  functions->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  functions->create_timer_fns = create_timer_functions;
  functions->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}

}  // namespace fake_gpu

extern "C" __attribute__((visibility("default"))) void SE_InitPlugin(
    SE_PlatformRegistrationParams* parameters, TF_Status* status) {
  SP_Platform* platform = parameters->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = "FAKE";
  platform->type = "GPU";
  platform->supports_unified_memory = 0;
  platform->use_bfc_allocator = 1;
  platform->force_memory_growth = 0;
  fake_gpu::set_platform_functions(parameters->platform_fns);
  parameters->destroy_platform = [](SP_Platform*) {};
  parameters->destroy_platform_fns = [](SP_PlatformFns*) {};
  fake_gpu::ok(status);
}
