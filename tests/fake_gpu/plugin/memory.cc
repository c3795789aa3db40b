#include "memory.h"

#include <cstdlib>
#include <cstring>

#include "ok.h"
#include "stream.h"

namespace fake_gpu {

static Gpu* gpu_of(const SP_Device* device) {
  return static_cast<Gpu*>(device->device_handle);
}

// cuMemAlloc aligns to 256 bytes, which TensorFlow's allocator counts on.
constexpr size_t kAlignment = 256;

static void trace_memory(Gpu* gpu, const char* kind, uint64_t bytes) {
  double at = now();
  trace({gpu->number, kind, "", "", "", at, {at, at}, double(bytes)});
}

// cuMemAlloc, which TensorFlow's BFC allocator calls for its regions
static void allocate(const SP_Device* device, uint64_t bytes, int64_t,
                     SP_DeviceMemoryBase* memory) {
  Gpu* gpu = gpu_of(device);
  std::lock_guard<std::mutex> lock(gpu->mutex);
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = nullptr;
  memory->size = 0;
  bool is_room = gpu->used_bytes + int64_t(bytes) <= gpu->memory_bytes;
  if (is_room) is_room = posix_memalign(&memory->opaque, kAlignment, bytes) == 0;
  trace_memory(gpu, is_room ? "allocate" : "refuse", bytes);
  if (!is_room) return;
  memory->size = bytes;
  gpu->used_bytes += bytes;
}

// cuMemFree
static void deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  Gpu* gpu = gpu_of(device);
  std::lock_guard<std::mutex> lock(gpu->mutex);
  gpu->used_bytes -= memory->size;
  free(memory->opaque);
  memory->opaque = nullptr;
  memory->size = 0;
}

// cuMemHostAlloc
static void* host_memory_allocate(const SP_Device*, uint64_t bytes) {
  void* memory = nullptr;
  return posix_memalign(&memory, kAlignment, bytes) == 0 ? memory : nullptr;
}

// cuMemFreeHost
static void host_memory_deallocate(const SP_Device*, void* memory) {
  free(memory);
}

// CUDA has no statistics of its own; those that TensorFlow tells are its allocator's.
static TF_Bool get_allocator_stats(const SP_Device*, SP_AllocatorStats*) {
  return 0;
}

// cuMemGetInfo
static TF_Bool device_memory_usage(const SP_Device* device, int64_t* free_bytes,
                                   int64_t* total_bytes) {
  Gpu* gpu = gpu_of(device);
  std::lock_guard<std::mutex> lock(gpu->mutex);
  *total_bytes = gpu->memory_bytes;
  *free_bytes = gpu->memory_bytes - gpu->used_bytes;
  return 1;
}

static void queue_copy(const SP_Device* device, SP_Stream stream, const char* kind,
                       uint64_t bytes) {
  Gpu* gpu = gpu_of(device);
  if (!stream->use) stream->use = kind;
  double from = now();
  Span span = stream->push(gpu->launch_s + bytes / gpu->link_bytes_per_s, from);
  trace({gpu->number, kind, "", "", stream->use.load(), from, span, double(bytes)});
}

// cuMemcpyDtoHAsync
static void memcpy_to_host(const SP_Device* device, SP_Stream stream, void* to,
                           const SP_DeviceMemoryBase* from, uint64_t bytes, TF_Status* status) {
  memcpy(to, from->opaque, bytes);
  queue_copy(device, stream, "to_host", bytes);
  ok(status);
}

// cuMemcpyHtoDAsync
static void memcpy_to_device(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
                             const void* from, uint64_t bytes, TF_Status* status) {
  memcpy(to->opaque, from, bytes);
  queue_copy(device, stream, "to_device", bytes);
  ok(status);
}

// cuMemcpyDtoDAsync within a GPU, cuMemcpyPeerAsync to another
static void memcpy_between(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
                           const SP_DeviceMemoryBase* from, uint64_t bytes, TF_Status* status) {
  memcpy(to->opaque, from->opaque, bytes);
  queue_copy(device, stream, "between", bytes);
  ok(status);
}

// cuMemcpyDtoH and the like, for which the host waits; TensorFlow uses them for no tensor.
static void sync_memcpy_to_host(const SP_Device*, void* to, const SP_DeviceMemoryBase* from,
                                uint64_t bytes, TF_Status* status) {
  memcpy(to, from->opaque, bytes);
  ok(status);
}

static void sync_memcpy_to_device(const SP_Device*, SP_DeviceMemoryBase* to, const void* from,
                                  uint64_t bytes, TF_Status* status) {
  memcpy(to->opaque, from, bytes);
  ok(status);
}

static void sync_memcpy_between(const SP_Device*, SP_DeviceMemoryBase* to,
                                const SP_DeviceMemoryBase* from, uint64_t bytes,
                                TF_Status* status) {
  memcpy(to->opaque, from->opaque, bytes);
  ok(status);
}

static void queue_fill(SP_Stream stream, uint64_t bytes) {
  Gpu* gpu = stream->gpu;
  stream->push(gpu->launch_s + bytes / gpu->bytes_per_s, now());
}

// cuMemsetD8Async
static void memset_bytes(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory,
                         uint8_t value, uint64_t bytes, TF_Status* status) {
  memset(memory->opaque, value, bytes);
  queue_fill(stream, bytes);
  ok(status);
}

static void memset_zero(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* memory,
                        uint64_t bytes, TF_Status* status) {
  memset_bytes(device, stream, memory, 0, bytes, status);
}

// cuMemsetD32Async
static void memset_words(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory,
                         uint32_t value, uint64_t bytes, TF_Status* status) {
  auto* words = static_cast<uint32_t*>(memory->opaque);
  std::fill(words, words + bytes / sizeof value, value);
  queue_fill(stream, bytes);
  ok(status);
}

void set_memory_functions(SP_StreamExecutor* executor) {
  executor->allocate = allocate;
  executor->deallocate = deallocate;
  executor->host_memory_allocate = host_memory_allocate;
  executor->host_memory_deallocate = host_memory_deallocate;
  executor->get_allocator_stats = get_allocator_stats;
  executor->device_memory_usage = device_memory_usage;
  executor->memcpy_dtoh = memcpy_to_host;
  executor->memcpy_htod = memcpy_to_device;
  executor->memcpy_dtod = memcpy_between;
  executor->sync_memcpy_dtoh = sync_memcpy_to_host;
  executor->sync_memcpy_htod = sync_memcpy_to_device;
  executor->sync_memcpy_dtod = sync_memcpy_between;
  executor->mem_zero = memset_zero;
  executor->memset = memset_bytes;
  executor->memset32 = memset_words;
}

}  // namespace fake_gpu
