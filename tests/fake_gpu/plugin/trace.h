// A line of JSON for each thing that a GPU does, in a file of this process in the folder
// FAKEGPU_TRACE.
// ../trace.py reads it.
#pragma once

#include <string>

namespace fake_gpu {

// When a stream begins a thing and has done it.
struct Span {
  double starts_s, ends_s;
};

struct Event {
  int device;
  const char* kind;
  std::string name, node, stream;
  double queued_at_s;
  Span span;
  double bytes = 0, flops = 0, host_s = 0;
};

void trace(const Event& event);

}  // namespace fake_gpu
