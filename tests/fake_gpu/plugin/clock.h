// The one clock: CLOCK_MONOTONIC in seconds, which all processes of a machine share.
#pragma once

#include <chrono>

namespace fake_gpu {

using Clock = std::chrono::steady_clock;

// When work that hangs will be over: later than any machine runs, and still a time that Clock can
// hold.
constexpr double kNever = 1e9;

inline double now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

inline Clock::time_point time_point(double seconds) {
  std::chrono::duration<double> since_epoch(seconds);
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(since_epoch));
}

}  // namespace fake_gpu
