// A stream is a number: the time at which all that is queued on it will be over. The values in a
// GPU's memory are computed at once, by the host; what waits for a stream waits for its time.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>

#include "clock.h"
#include "machine.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "trace.h"

// CUDA: cudaStream_t. Work on one stream runs in the order in which it was queued.
struct SP_Stream_st {
  fake_gpu::Gpu* gpu = nullptr;
  // What it is used for: TensorFlow has one stream a device for kernels, and one for each kind of
  // copy.
  std::atomic<const char*> use{nullptr};

  // Queues work of so many seconds that the host launched at `from`.
  fake_gpu::Span push(double seconds, double from) {
    std::lock_guard<std::mutex> lock(mutex_);
    double starts = std::max(until_, from);
    until_ = std::min(starts + seconds, fake_gpu::kNever);
    return {starts, until_};
  }

  // What is queued from now on begins after that time.
  void after(double time) {
    std::lock_guard<std::mutex> lock(mutex_);
    until_ = std::max(until_, time);
  }

  double until() {
    std::lock_guard<std::mutex> lock(mutex_);
    return until_;
  }

 private:
  std::mutex mutex_;
  double until_ = 0;
};

namespace fake_gpu {

// Calls a function at that time, in one thread for all of them.
void call_at(double time, std::function<void()> function);

void sleep_until(double time);

void set_stream_functions(SP_StreamExecutor* executor);
void set_timer_functions(SP_TimerFns* functions);

// NCCL's kernels run on a stream of their own, one a GPU: NcclManager::NcclStream in
// tensorflow/core/nccl/nccl_manager.cc, "a different stream than the tensorflow compute stream".
SP_Stream collective_stream(Gpu* gpu);

}  // namespace fake_gpu
