// A test-only TensorFlow PluggableDevice: N "GPU"s whose kernels are the CPU's, run at once on host memory, and whose
// streams are numbers: the time at which the work queued so far will be over. Everything that waits, waits for that time.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/kernels_experimental.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device_factory.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace {
using Clock = std::chrono::steady_clock;
double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
void sleep_until(double t) {
  std::this_thread::sleep_until(Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(t))));
}
// A line of JSON for each thing that a device does, in a file of this process in the folder that FAKEGPU_TRACE names.
// Times are of CLOCK_MONOTONIC, which all processes of a machine share.
FILE* trace_file() {
  static FILE* file = [] {
    const char* folder = getenv("FAKEGPU_TRACE");
    return folder ? fopen((std::string(folder) + "/" + std::to_string(getpid()) + ".jsonl").c_str(), "a") : nullptr;
  }();
  return file;
}
struct Done {
  double starts_s, ends_s;
};
void trace(int device, const char* kind, const std::string& name, const std::string& node, const char* stream,
           double queued_at_s, Done done, double bytes, double host_s) {
  static std::mutex mutex;
  FILE* file = trace_file();
  if (!file) return;
  std::lock_guard<std::mutex> lock(mutex);
  fprintf(file,
          "{\"device\": %d, \"kind\": \"%s\", \"name\": \"%s\", \"node\": \"%s\", \"stream\": \"%s\", "
          "\"queued_at_s\": %.9f, \"starts_s\": %.9f, \"ends_s\": %.9f, \"bytes\": %.0f, \"host_s\": %.9f}\n",
          device, kind, name.c_str(), node.c_str(), stream, queued_at_s, done.starts_s, done.ends_s, bytes, host_s);
  fflush(file);
}

struct Gpu {
  int ordinal;
  double gflops = 50, gbps = 20, launch_s = 5e-6, pcie_gbps = 5, fixed_s = 0;
  int64_t memory = int64_t(2) << 30, used = 0;
  int streams = 0;
  std::mutex mutex;
  std::string name, bus, uuid, capability = "6.1";
  explicit Gpu(int n) : ordinal(n) {}
};
// The machine's GPUs: those of the NVML stand-in's script, which has keys for this plugin too.
std::vector<Gpu*> machine() {
  std::map<int, Gpu*> all;
  const char* path = getenv("NVML_STAND_IN");
  FILE* f = path ? fopen(path, "r") : nullptr;
  if (!f) return {};
  char line[512];
  while (fgets(line, sizeof line, f)) {
    int n; char key[64], value[256];
    if (sscanf(line, "gpu %d %63s %255[^\n]", &n, key, value) != 3) continue;
    Gpu*& g = all[n];
    if (!g) g = new Gpu(n);
    std::string k = key, v = value;
    if (k == "uuid") g->uuid = v;
    if (k == "name") g->name = v;
    if (k == "bus") g->bus = v.size() > 12 ? v.substr(v.size() - 12) : v;
    if (k == "capability") g->capability = v.replace(v.find(' '), 1, ".");
    if (k == "memory") g->memory = atoll(value);
    if (k == "gflops") g->gflops = atof(value);
    if (k == "gbytes_per_s") g->gbps = atof(value);
    if (k == "pcie_gbytes_per_s") g->pcie_gbps = atof(value);
    if (k == "launch_us") g->launch_s = atof(value) * 1e-6;
    if (k == "kernel_ms") g->fixed_s = atof(value) * 1e-3;
  }
  fclose(f);
  std::vector<Gpu*> list;
  for (auto& one : all) list.push_back(one.second);
  return list;
}
std::vector<Gpu*> visible() {  // as CUDA reads its variable: up to the first that is not there
  std::vector<Gpu*> all = machine(), seen;
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) return all;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    Gpu* found = nullptr;
    for (size_t i = 0; i < all.size(); ++i)
      if (part == std::to_string(i) || (part.rfind("GPU-", 0) == 0 && all[i]->uuid.rfind(part, 0) == 0)) found = all[i];
    if (!found) break;
    seen.push_back(found);
  }
  return seen;
}
const std::vector<Gpu*>& gpus() { static auto* list = new std::vector<Gpu*>(visible()); return *list; }
Gpu* gpu(int n) { return gpus().at(n); }
}  // namespace

struct SP_Stream_st {
  Gpu* gpu;
  const char* name;
  std::mutex mutex;
  double until = 0;  // when all queued work is over
  Done push(double seconds, double from) {
    std::lock_guard<std::mutex> lock(mutex);
    double starts = std::max(until, from);
    until = starts + seconds;
    return {starts, until};
  }
  double get() { std::lock_guard<std::mutex> lock(mutex); return until; }
  void after(double t) { std::lock_guard<std::mutex> lock(mutex); until = std::max(until, t); }
};
struct SP_Event_st { std::atomic<double> at{0}; };
struct SP_Timer_st { double from = 0, to = 0; };

namespace {
// Callbacks that wait for a stream's time, in one thread for all.
struct Callbacks {
  std::mutex mutex;
  std::condition_variable changed;
  std::multimap<double, std::function<void()>> queue;
  Callbacks() { std::thread([this] { loop(); }).detach(); }
  void add(double t, std::function<void()> call) {
    std::lock_guard<std::mutex> lock(mutex);
    queue.insert({t, std::move(call)});
    changed.notify_one();
  }
  void loop() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      if (queue.empty()) { changed.wait(lock); continue; }
      double t = queue.begin()->first;
      if (t > now()) {
        changed.wait_until(lock, Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(t))));
        continue;
      }
      auto call = std::move(queue.begin()->second);
      queue.erase(queue.begin());
      lock.unlock();
      call();
      lock.lock();
    }
  }
};
Callbacks& callbacks() { static auto* c = new Callbacks; return *c; }

Gpu* of(const SP_Device* d) { return static_cast<Gpu*>(d->device_handle); }
void ok(TF_Status* s) { TF_SetStatus(s, TF_OK, ""); }

void allocate(const SP_Device* d, uint64_t size, int64_t, SP_DeviceMemoryBase* mem) {
  Gpu* g = of(d);
  std::lock_guard<std::mutex> lock(g->mutex);
  mem->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  mem->opaque = nullptr;
  mem->size = 0;
  void* p = nullptr;
  if (g->used + int64_t(size) <= g->memory && posix_memalign(&p, 256, size) == 0) {
    g->used += size;
    mem->opaque = p;
    mem->size = size;
  }
  trace(g->ordinal, p ? "allocate" : "refuse", "", "", "", now(), {now(), now()}, size, 0);
}
void deallocate(const SP_Device* d, SP_DeviceMemoryBase* mem) {
  Gpu* g = of(d);
  std::lock_guard<std::mutex> lock(g->mutex);
  if (mem->opaque) g->used -= mem->size;
  free(mem->opaque);
  mem->opaque = nullptr;
  mem->size = 0;
}
void* host_allocate(const SP_Device*, uint64_t size) { void* p = nullptr; return posix_memalign(&p, 64, size) ? nullptr : p; }
void host_deallocate(const SP_Device*, void* p) { free(p); }
TF_Bool get_stats(const SP_Device*, SP_AllocatorStats*) { return 0; }
TF_Bool usage(const SP_Device* d, int64_t* free_, int64_t* total) {
  Gpu* g = of(d);
  std::lock_guard<std::mutex> lock(g->mutex);
  *total = g->memory;
  *free_ = g->memory - g->used;
  return 1;
}
// TensorFlow makes a device's streams in this order.
const char* stream_name(int number) {
  const char* names[] = {"compute", "to_device", "to_host", "between"};
  return number < 4 ? names[number] : "other";
}
void create_stream(const SP_Device* d, SP_Stream* s, TF_Status* st) { *s = new SP_Stream_st; (*s)->gpu = of(d); (*s)->name = stream_name(of(d)->streams++); ok(st); }
void destroy_stream(const SP_Device*, SP_Stream s) { delete s; }
void dependency(const SP_Device*, SP_Stream dependent, SP_Stream other, TF_Status* st) { dependent->after(other->get()); ok(st); }
void stream_status(const SP_Device*, SP_Stream, TF_Status* st) { ok(st); }
void create_event(const SP_Device*, SP_Event* e, TF_Status* st) { *e = new SP_Event_st; ok(st); }
void destroy_event(const SP_Device*, SP_Event e) { delete e; }
SE_EventStatus event_status(const SP_Device*, SP_Event e) { return now() >= e->at ? SE_EVENT_COMPLETE : SE_EVENT_PENDING; }
void record_event(const SP_Device*, SP_Stream s, SP_Event e, TF_Status* st) { e->at = s->get(); ok(st); }
void wait_for_event(const SP_Device*, SP_Stream s, SP_Event e, TF_Status* st) { s->after(e->at); ok(st); }
void create_timer(const SP_Device*, SP_Timer* t, TF_Status* st) { *t = new SP_Timer_st; ok(st); }
void destroy_timer(const SP_Device*, SP_Timer t) { delete t; }
void start_timer(const SP_Device*, SP_Stream s, SP_Timer t, TF_Status* st) { t->from = s->get(); ok(st); }
void stop_timer(const SP_Device*, SP_Stream s, SP_Timer t, TF_Status* st) { t->to = s->get(); ok(st); }
uint64_t timer_ns(SP_Timer t) { return uint64_t((t->to - t->from) * 1e9); }

void copied(Gpu* g, SP_Stream s, const char* kind, uint64_t bytes) {
  double from = now();
  trace(g->ordinal, kind, "", "", s->name, from, s->push(g->launch_s + bytes / (g->pcie_gbps * 1e9), from), bytes, 0);
}
// The values of device memory are always up to date, so a copy is made at once; only its time is queued.
void dtoh(const SP_Device* d, SP_Stream s, void* to, const SP_DeviceMemoryBase* from, uint64_t n, TF_Status* st) {
  memcpy(to, from->opaque, n);
  copied(of(d), s, "to_host", n);
  ok(st);
}
void htod(const SP_Device* d, SP_Stream s, SP_DeviceMemoryBase* to, const void* from, uint64_t n, TF_Status* st) {
  memcpy(to->opaque, from, n);
  copied(of(d), s, "to_device", n);
  ok(st);
}
void dtod(const SP_Device* d, SP_Stream s, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t n, TF_Status* st) {
  memcpy(to->opaque, from->opaque, n);
  copied(of(d), s, "between", n);
  ok(st);
}
void sync_dtoh(const SP_Device*, void* to, const SP_DeviceMemoryBase* from, uint64_t n, TF_Status* st) { memcpy(to, from->opaque, n); ok(st); }
void sync_htod(const SP_Device*, SP_DeviceMemoryBase* to, const void* from, uint64_t n, TF_Status* st) { memcpy(to->opaque, from, n); ok(st); }
void sync_dtod(const SP_Device*, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t n, TF_Status* st) { memcpy(to->opaque, from->opaque, n); ok(st); }
void block_for_event(const SP_Device*, SP_Event e, TF_Status* st) { sleep_until(e->at); ok(st); }
void block_until_done(const SP_Device*, SP_Stream s, TF_Status* st) { sleep_until(s->get()); ok(st); }
void synchronize_all(const SP_Device*, TF_Status* st) { ok(st); }
void mem_zero(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* m, uint64_t n, TF_Status* st) { ::memset(m->opaque, 0, n); ok(st); }
void mem_set(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* m, uint8_t p, uint64_t n, TF_Status* st) { ::memset(m->opaque, p, n); ok(st); }
void mem_set32(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* m, uint32_t p, uint64_t n, TF_Status* st) {
  for (uint64_t i = 0; i < n / 4; ++i) static_cast<uint32_t*>(m->opaque)[i] = p;
  ok(st);
}
TF_Bool host_callback(const SP_Device*, SP_Stream s, SE_StatusCallbackFn f, void* arg) {
  callbacks().add(s->get(), [f, arg] { TF_Status* status = TF_NewStatus(); f(arg, status); TF_DeleteStatus(status); });
  return 1;
}

void device_count(const SP_Platform*, int* n, TF_Status* st) { *n = int(gpus().size()); ok(st); }
void create_device(const SP_Platform*, SE_CreateDeviceParams* p, TF_Status* st) {
  Gpu* g = gpu(p->ordinal);
  p->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  p->device->ordinal = p->ordinal;
  p->device->device_handle = g;
  p->device->hardware_name = g->name.c_str();
  p->device->device_vendor = "gpubalance tests";
  p->device->pci_bus_id = g->bus.c_str();
  ok(st);
}
void destroy_device(const SP_Platform*, SP_Device*) {}
void create_device_fns(const SP_Platform*, SE_CreateDeviceFnsParams* p, TF_Status* st) { p->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE; ok(st); }
void destroy_device_fns(const SP_Platform*, SP_DeviceFns*) {}
void create_executor(const SP_Platform*, SE_CreateStreamExecutorParams* p, TF_Status* st) {
  SP_StreamExecutor* e = p->stream_executor;
  e->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  e->allocate = allocate;
  e->deallocate = deallocate;
  e->host_memory_allocate = host_allocate;
  e->host_memory_deallocate = host_deallocate;
  e->get_allocator_stats = get_stats;
  e->device_memory_usage = usage;
  e->create_stream = create_stream;
  e->destroy_stream = destroy_stream;
  e->create_stream_dependency = dependency;
  e->get_stream_status = stream_status;
  e->create_event = create_event;
  e->destroy_event = destroy_event;
  e->get_event_status = event_status;
  e->record_event = record_event;
  e->wait_for_event = wait_for_event;
  e->create_timer = create_timer;
  e->destroy_timer = destroy_timer;
  e->start_timer = start_timer;
  e->stop_timer = stop_timer;
  e->memcpy_dtoh = dtoh;
  e->memcpy_htod = htod;
  e->memcpy_dtod = dtod;
  e->sync_memcpy_dtoh = sync_dtoh;
  e->sync_memcpy_htod = sync_htod;
  e->sync_memcpy_dtod = sync_dtod;
  e->block_host_for_event = block_for_event;
  e->block_host_until_done = block_until_done;
  e->synchronize_all_activity = synchronize_all;
  e->mem_zero = mem_zero;
  e->memset = mem_set;
  e->memset32 = mem_set32;
  e->host_callback = host_callback;
  ok(st);
}
void destroy_executor(const SP_Platform*, SP_StreamExecutor*) {}
void create_timer_fns(const SP_Platform*, SP_TimerFns* t, TF_Status* st) { t->struct_size = SP_TIMER_FNS_STRUCT_SIZE; t->nanoseconds = timer_ns; ok(st); }
void destroy_timer_fns(const SP_Platform*, SP_TimerFns*) {}
void destroy_platform(SP_Platform*) {}
void destroy_platform_fns(SP_PlatformFns*) {}
}  // namespace

extern "C" __attribute__((visibility("default"))) void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "FAKE";
  params->platform->type = "GPU";
  params->platform->supports_unified_memory = 0;
  params->platform->use_bfc_allocator = 1;
  params->platform->force_memory_growth = 0;
  SP_PlatformFns* f = params->platform_fns;
  f->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  f->get_device_count = device_count;
  f->create_device = create_device;
  f->destroy_device = destroy_device;
  f->create_device_fns = create_device_fns;
  f->destroy_device_fns = destroy_device_fns;
  f->create_stream_executor = create_executor;
  f->destroy_stream_executor = destroy_executor;
  f->create_timer_fns = create_timer_fns;
  f->destroy_timer_fns = destroy_timer_fns;
  params->destroy_platform = destroy_platform;
  params->destroy_platform_fns = destroy_platform_fns;
  TF_SetStatus(status, TF_OK, "");
}

// ---------------------------------------------------------------- kernels

namespace tensorflow {
namespace {

// The CPU's kernel for this node, built for the device at hand: it allocates from that device, and its threads are the
// CPU's, which every LocalDevice has.
OpKernel* inner(OpKernelConstruction* c) {
  std::shared_ptr<const NodeProperties> props;
  const OpRegistryInterface* ops = OpRegistry::Global();
  absl::Status s = NodeProperties::CreateFromNodeDef(c->def(), ops, &props);
  OpKernel* kernel = nullptr;
  if (s.ok())
    s = CreateOpKernel(DEVICE_CPU, static_cast<DeviceBase*>(c->device()), c->device()->GetAllocator(AllocatorAttributes()),
                       c->function_library(), c->resource_manager(), props, c->graph_def_version(), &kernel);
  if (!s.ok()) c->SetStatus(s);
  return s.ok() ? kernel : nullptr;
}

double flops(OpKernelContext* c, const std::string& op) {
  auto in = [&](int i) -> const TensorShape& { return c->input(i).shape(); };
  if (op == "MatMul" || op == "_FusedMatMul" || op.rfind("BatchMatMul", 0) == 0) {
    const Tensor* out = c->mutable_output(0);
    if (!out || in(0).dims() < 2 || !out->NumElements()) return 0;
    // elements of a × columns of b × 2: a's elements are m·k (batched), the output's m·n
    double a = in(0).num_elements(), b = in(1).num_elements(), o = out->NumElements();
    double batch = 1;
    for (int i = 0; i + 2 < in(0).dims(); ++i) batch *= in(0).dim_size(i);
    return 2 * batch * std::sqrt((a / batch) * (b / batch) * (o / batch));
  }
  if (op == "Conv2D" || op == "_FusedConv2D") {
    const Tensor* out = c->mutable_output(0);
    return out && in(1).dims() == 4 && in(1).dim_size(3) ? 2.0 * out->NumElements() * in(1).num_elements() / in(1).dim_size(3) : 0;
  }
  if (op == "Conv2DBackpropInput") return in(1).dims() == 4 && in(1).dim_size(3) ? 2.0 * in(2).num_elements() * in(1).num_elements() / in(1).dim_size(3) : 0;
  if (op == "Conv2DBackpropFilter") {
    const Tensor* out = c->mutable_output(0);
    return out && out->dims() == 4 && out->dim_size(3) ? 2.0 * in(2).num_elements() * out->NumElements() / out->dim_size(3) : 0;
  }
  return 0;
}

void charge(OpKernelContext* c, const OpKernel& k, double from) {
  static const auto* free_ops = new std::set<std::string>{"Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "Shape", "ShapeN", "Size", "Rank", "Const", "ReadVariableOp", "VarHandleOp", "_EagerConst", "NoOp", "StopGradient", "PreventGradient", "Switch", "Merge", "Enter", "Exit", "NextIteration"};
  if (free_ops->count(k.type_string())) return;
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(c), status);
  if (TF_GetCode(status) == TF_OK && stream) {
    Gpu* g = stream->gpu;
    double bytes = 0;
    bool on_device = false;
    for (int i = 0; i < c->num_inputs(); ++i)
      if (!c->input_is_ref(i) && c->has_input(i) && c->input_memory_type(i) == DEVICE_MEMORY && c->input_dtype(i) != DT_RESOURCE)
        bytes += c->input(i).TotalBytes(), on_device = true;
    for (int i = 0; i < c->num_outputs(); ++i)
      if (c->output_memory_type(i) == DEVICE_MEMORY && c->mutable_output(i)) bytes += c->mutable_output(i)->TotalBytes(), on_device = true;
    if (on_device) {
      double seconds = g->launch_s + g->fixed_s + bytes / (g->gbps * 1e9) + flops(c, k.type_string()) / (g->gflops * 1e9);
      Done done = stream->push(seconds, from);
      trace(g->ordinal, "kernel", k.type_string(), k.name(), stream->name, from, done, bytes, now() - from);
    }
  }
  TF_DeleteStatus(status);
}

class Mirror : public OpKernel {
 public:
  Mirror(OpKernelConstruction* c, OpKernel* k) : OpKernel(c), kernel_(k) {}
  void Compute(OpKernelContext* c) override {
    double from = now();
    kernel_->Compute(c);
    if (c->status().ok()) charge(c, *this, from);
  }
  const Tensor* const_tensor() const override { return kernel_->const_tensor(); }

 private:
  std::unique_ptr<OpKernel> kernel_;
};
class AsyncMirror : public AsyncOpKernel {
 public:
  AsyncMirror(OpKernelConstruction* c, OpKernel* k) : AsyncOpKernel(c), kernel_(k) {}
  void ComputeAsync(OpKernelContext* c, DoneCallback done) override {
    double from = now();
    kernel_->AsAsync()->ComputeAsync(c, [this, c, done, from] { if (c->status().ok()) charge(c, *this, from); done(); });
  }

 private:
  std::unique_ptr<OpKernel> kernel_;
};
// NCCL's all-reduce of one process, for NcclAllReduce and CollectiveReduceV2. As there, the sum begins when the last
// stream reaches it, all streams go on after it, and an op is done when the device is.
struct Sum {
  struct Part { OpKernelContext* c; SP_Stream stream; AsyncOpKernel::DoneCallback done; };
  std::vector<Part> parts;
};
template <typename T>
void add_up(std::vector<Sum::Part>& parts, bool mean) {
  Tensor total(parts[0].c->input(0).dtype(), parts[0].c->input(0).shape());
  auto sum = total.flat<T>();
  sum = parts[0].c->input(0).flat<T>();
  for (size_t i = 1; i < parts.size(); ++i) sum += parts[i].c->input(0).flat<T>();
  if (mean) sum = sum / static_cast<T>(static_cast<float>(parts.size()));
  for (auto& part : parts) part.c->mutable_output(0)->flat<T>() = sum;
}
class AllReduce : public AsyncOpKernel {
 public:
  explicit AllReduce(OpKernelConstruction* c) : AsyncOpKernel(c), nccl_(c->def().op() == "NcclAllReduce") {
    if (nccl_) {
      OP_REQUIRES_OK(c, c->GetAttr("num_devices", &size_));
      OP_REQUIRES_OK(c, c->GetAttr("shared_name", &key_));
      OP_REQUIRES_OK(c, c->GetAttr("reduction", &merge_));
    } else {
      OP_REQUIRES_OK(c, c->GetAttr("merge_op", &merge_));
      OP_REQUIRES_OK(c, c->GetAttr("final_op", &final_));
    }
    OP_REQUIRES(c, merge_ == "sum" || merge_ == "Add", errors::Unimplemented("fakegpu: all-reduce by ", merge_));
  }
  void ComputeAsync(OpKernelContext* c, DoneCallback done) override {
    static std::mutex mutex;
    static auto* waiting = new std::map<std::string, Sum>;
    TF_Status* status = TF_NewStatus();
    SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(c), status);
    TF_DeleteStatus(status);
    Tensor* out;
    OP_REQUIRES_OK_ASYNC(c, c->forward_input_or_allocate_output({0}, 0, c->input(0).shape(), &out), done);
    size_t size = nccl_ ? size_ : c->input(1).scalar<int32>()();
    std::string key = nccl_ ? key_ + ":" + std::to_string(c->step_id())
                            : std::to_string(c->input(2).scalar<int32>()()) + ":" + std::to_string(c->input(3).scalar<int32>()());
    std::vector<Sum::Part> parts;
    {
      std::lock_guard<std::mutex> lock(mutex);
      Sum& sum = (*waiting)[key];
      // If another device fails, as for lack of memory, the step is cancelled, and who waits here fails with it.
      CancellationManager* cancelling = c->cancellation_manager();
      CancellationToken token = cancelling ? cancelling->get_cancellation_token() : 0;
      bool goes_on = !cancelling || cancelling->RegisterCallback(token, [key, c] {
        AsyncOpKernel::DoneCallback left;
        {
          std::lock_guard<std::mutex> lock(mutex);
          auto found = waiting->find(key);
          if (found == waiting->end()) return;
          auto& all = found->second.parts;
          for (auto one = all.begin(); one != all.end(); ++one)
            if (one->c == c) { left = std::move(one->done); all.erase(one); break; }
          if (all.empty()) waiting->erase(found);
        }
        if (left) { c->SetStatus(errors::Cancelled("fakegpu: all-reduce cancelled")); left(); }
      });
      if (!goes_on) { c->SetStatus(errors::Cancelled("fakegpu: all-reduce cancelled")); done(); return; }
      auto ended = [cancelling, token, done] { if (cancelling) cancelling->TryDeregisterCallback(token); done(); };
      sum.parts.push_back({c, stream, ended});
      if (sum.parts.size() < size) return;
      parts = std::move(sum.parts);
      waiting->erase(key);
    }
    switch (c->input(0).dtype()) {
      case DT_FLOAT: add_up<float>(parts, final_ == "Div"); break;
      case DT_DOUBLE: add_up<double>(parts, final_ == "Div"); break;
      case DT_HALF: add_up<Eigen::half>(parts, final_ == "Div"); break;
      case DT_BFLOAT16: add_up<bfloat16>(parts, final_ == "Div"); break;
      case DT_INT32: add_up<int32>(parts, final_ == "Div"); break;
      case DT_INT64: add_up<int64_t>(parts, final_ == "Div"); break;
      default: for (auto& part : parts) part.c->SetStatus(errors::Unimplemented("fakegpu: all-reduce of this type"));
    }
    double t = 0;
    for (auto& part : parts) t = std::max(t, part.stream->push(0, now()).ends_s);
    double starts = t;
    t += c->input(0).TotalBytes() * 2.0 * (size - 1) / size / (gpu(0)->pcie_gbps * 1e9);
    for (auto& part : parts) {
      part.stream->after(t);
      trace(part.stream->gpu->ordinal, "all_reduce", type_string(), name(), part.stream->name, now(), {starts, t}, c->input(0).TotalBytes(), 0);
    }
    for (auto& part : parts) callbacks().add(t, part.done);
  }

 private:
  bool nccl_;
  int size_ = 0;
  std::string key_, merge_, final_;
};

// TensorFlow's factory, but with each device's own name and bus id in what is said of it: its own says `FAKE` and
// `<undefined>`, whatever SP_Device has.
class Factory : public PluggableDeviceFactory {
 public:
  Factory() : PluggableDeviceFactory("GPU", "FAKE") {}
  absl::Status CreateDevices(const SessionOptions& options, const std::string& prefix, std::vector<std::unique_ptr<Device>>* devices) override {
    size_t before = devices->size();
    absl::Status s = PluggableDeviceFactory::CreateDevices(options, prefix, devices);
    for (size_t i = before; s.ok() && i < devices->size(); ++i) {
      auto& told = const_cast<DeviceAttributes&>((*devices)[i]->attributes());
      int number = atoi(told.physical_device_desc().c_str() + strlen("device: "));
      Gpu* g = gpu(number);
      told.set_physical_device_desc("device: " + std::to_string(number) + ", name: " + g->name + ", pci bus id: " + g->bus + ", compute capability: " + g->capability);
    }
    return s;
  }
  absl::Status GetDeviceDetails(int index, std::unordered_map<std::string, std::string>* details) override {
    (*details)["device_name"] = gpu(index)->name;
    (*details)["compute_capability"] = gpu(index)->capability;
    return absl::OkStatus();
  }
};

OpKernel* create(OpKernelConstruction* c) {
  OpKernel* k = inner(c);
  if (!k) return nullptr;
  if (k->AsAsync()) return new AsyncMirror(c, k);
  return new Mirror(c, k);
}
}  // namespace
}  // namespace tensorflow

extern "C" __attribute__((visibility("default"))) void TF_InitKernel() {
  using namespace tensorflow;
  if (gpus().empty()) return;
  DeviceFactory::Register("GPU", std::make_unique<Factory>(), /*priority=*/221, /*is_pluggable_device=*/true);
  std::set<std::string> has_cpu;
  KernelList all = GetAllRegisteredKernels();
  for (const KernelDef& k : all.kernel()) {
    if (k.device_type() == "CPU") has_cpu.insert(k.op());
  }
  for (KernelDef k : all.kernel()) {
    if (k.device_type() != "GPU" || !has_cpu.count(k.op())) continue;
    k.set_priority(k.priority() + 1);
    kernel_factory::OpKernelRegistrar(new KernelDef(k), "FakeGpuMirror", create);
  }
  for (KernelDef k : all.kernel())
    if ((k.op() == "CollectiveReduceV2" && k.device_type() == "DEFAULT") || (k.op() == "NcclAllReduce" && k.device_type() == "GPU")) {
      k.set_device_type("GPU");
      k.set_priority(k.priority() + 1);
      kernel_factory::OpKernelRegistrar(new KernelDef(k), "FakeGpuAllReduce", [](OpKernelConstruction* c) -> OpKernel* { return new AllReduce(c); });
    }
}
