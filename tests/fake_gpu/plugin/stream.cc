#include "stream.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <thread>

#include "ok.h"

// CUDA: cudaEvent_t, which marks how far a stream has come.
struct SP_Event_st {
  fake_gpu::Gpu* gpu = nullptr;
  std::atomic<double> at{0};
};

// CUDA: two events, and the time between them.
struct SP_Timer_st {
  double from = 0, to = 0;
};

namespace fake_gpu {

class Calls {
 public:
  Calls() {
    std::thread([this] { run(); }).detach();
  }

  void add(double time, std::function<void()> function) {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.insert({time, std::move(function)});
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (waiting_.empty()) {
        changed_.wait(lock);
      } else if (waiting_.begin()->first > now()) {
        changed_.wait_until(lock, time_point(waiting_.begin()->first));
      } else {
        std::function<void()> function = std::move(waiting_.begin()->second);
        waiting_.erase(waiting_.begin());
        lock.unlock();
        function();
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<double, std::function<void()>> waiting_;
};

void call_at(double time, std::function<void()> function) {
  static auto* calls = new Calls;
  calls->add(time, std::move(function));
}

void sleep_until(double time) {
  std::this_thread::sleep_until(time_point(time));
}

static SP_Stream new_stream(Gpu* gpu) {
  auto* stream = new SP_Stream_st;
  stream->gpu = gpu;
  return stream;
}

SP_Stream collective_stream(Gpu* gpu) {
  static std::mutex mutex;
  static auto* streams = new std::map<Gpu*, SP_Stream>;
  std::lock_guard<std::mutex> lock(mutex);
  SP_Stream& stream = (*streams)[gpu];
  if (!stream) {
    stream = new_stream(gpu);
    stream->use = "collective";
  }
  return stream;
}

// cudaStreamCreate
static void create_stream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  *stream = new_stream(static_cast<Gpu*>(device->device_handle));
  ok(status);
}

// cudaStreamDestroy
static void destroy_stream(const SP_Device*, SP_Stream stream) {
  delete stream;
}

// cudaEventRecord on one stream and cudaStreamWaitEvent on the other
static void create_stream_dependency(const SP_Device*, SP_Stream dependent, SP_Stream other,
                                     TF_Status* status) {
  dependent->after(other->until());
  ok(status);
}

// cudaStreamQuery
static void get_stream_status(const SP_Device*, SP_Stream, TF_Status* status) {
  ok(status);
}

// cudaEventCreate
static void create_event(const SP_Device* device, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st;
  (*event)->gpu = static_cast<Gpu*>(device->device_handle);
  ok(status);
}

// cudaEventDestroy
static void destroy_event(const SP_Device*, SP_Event event) {
  delete event;
}

// cudaEventQuery. After an illegal address every call fails, and TensorFlow's EventMgr ends the
// process: tensorflow/core/common_runtime/device/device_event_mgr.cc, "Unexpected Event status".
static SE_EventStatus get_event_status(const SP_Device*, SP_Event event) {
  if (event->gpu->is_broken) return SE_EVENT_ERROR;
  return now() >= event->at ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

// cudaEventRecord
static void record_event(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  event->at = stream->until();
  ok(status);
}

// cudaStreamWaitEvent
static void wait_for_event(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  stream->after(event->at);
  ok(status);
}

// cudaEventSynchronize
static void block_host_for_event(const SP_Device*, SP_Event event, TF_Status* status) {
  sleep_until(event->at);
  ok(status);
}

// cudaStreamSynchronize
static void block_host_until_done(const SP_Device*, SP_Stream stream, TF_Status* status) {
  sleep_until(stream->until());
  ok(status);
}

// cuCtxSynchronize, which TensorFlow calls when it lets a device go, after its streams
static void synchronize_all_activity(const SP_Device*, TF_Status* status) {
  ok(status);
}

// cudaLaunchHostFunc
static TF_Bool host_callback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn function,
                             void* argument) {
  call_at(stream->until(), [function, argument] {
    TF_Status* status = TF_NewStatus();
    function(argument, status);
    TF_DeleteStatus(status);
  });
  return 1;
}

static void create_timer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  ok(status);
}

static void destroy_timer(const SP_Device*, SP_Timer timer) {
  delete timer;
}

static void start_timer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  timer->from = stream->until();
  ok(status);
}

static void stop_timer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  timer->to = stream->until();
  ok(status);
}

static uint64_t nanoseconds(SP_Timer timer) {
  return uint64_t((timer->to - timer->from) * 1e9);
}

void set_stream_functions(SP_StreamExecutor* executor) {
  executor->create_stream = create_stream;
  executor->destroy_stream = destroy_stream;
  executor->create_stream_dependency = create_stream_dependency;
  executor->get_stream_status = get_stream_status;
  executor->create_event = create_event;
  executor->destroy_event = destroy_event;
  executor->get_event_status = get_event_status;
  executor->record_event = record_event;
  executor->wait_for_event = wait_for_event;
  executor->block_host_for_event = block_host_for_event;
  executor->block_host_until_done = block_host_until_done;
  executor->synchronize_all_activity = synchronize_all_activity;
  executor->host_callback = host_callback;
  executor->create_timer = create_timer;
  executor->destroy_timer = destroy_timer;
  executor->start_timer = start_timer;
  executor->stop_timer = stop_timer;
}

void set_timer_functions(SP_TimerFns* functions) {
  functions->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  functions->nanoseconds = nanoseconds;
}

}  // namespace fake_gpu
