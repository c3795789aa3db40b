#include "collectives.h"

#include <map>

#include "faults.h"
#include "kernels.h"
#include "stream.h"
#include "tensorflow/core/platform/errors.h"

namespace fake_gpu {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// One GPU's part in a sum: its operation waits until the sum is made.
struct Part {
  OpKernelContext* context;
  SP_Stream computes;  // the stream whose work makes the part's values
  double arrived_s;    // when the host came to the operation
  double ready_s;      // when that work is done
  AsyncOpKernel::DoneCallback done;
};

template <typename T>
static void add_up(const std::vector<Part>& parts, bool is_mean) {
  const Tensor& first = parts[0].context->input(0);
  Tensor total(first.dtype(), first.shape());
  auto sum = total.flat<T>();
  sum = first.flat<T>();
  for (size_t i = 1; i < parts.size(); ++i) sum += parts[i].context->input(0).flat<T>();
  if (is_mean) sum = sum / static_cast<T>(static_cast<float>(parts.size()));
  for (const Part& part : parts) part.context->mutable_output(0)->flat<T>() = sum;
}

static absl::Status add_up_values(const std::vector<Part>& parts, bool is_mean) {
  switch (parts[0].context->input(0).dtype()) {
    case tensorflow::DT_FLOAT:
      add_up<float>(parts, is_mean);
      break;
    case tensorflow::DT_DOUBLE:
      add_up<double>(parts, is_mean);
      break;
    case tensorflow::DT_HALF:
      add_up<Eigen::half>(parts, is_mean);
      break;
    case tensorflow::DT_BFLOAT16:
      add_up<tensorflow::bfloat16>(parts, is_mean);
      break;
    case tensorflow::DT_INT32:
      add_up<tensorflow::int32>(parts, is_mean);
      break;
    case tensorflow::DT_INT64:
      add_up<int64_t>(parts, is_mean);
      break;
    default:
      return absl::UnimplementedError("the fake GPUs do not sum values of this type");
  }
  return absl::OkStatus();
}

// A ring of n GPUs sends each byte 2(n - 1)/n times, over the slowest of their links:
// https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
static double seconds_of(const std::vector<Part>& parts) {
  double link = parts[0].computes->gpu->link_bytes_per_s, launch_s = 0;
  for (const Part& part : parts) {
    link = std::min(link, part.computes->gpu->link_bytes_per_s);
    launch_s = std::max(launch_s, part.computes->gpu->launch_s);
  }
  double times = 2.0 * double(parts.size() - 1) / double(parts.size());
  return launch_s + times * double(parts[0].context->input(0).TotalBytes()) / link;
}

// NcclManager::RunCollective and LoopKernelLaunches in tensorflow/core/nccl/nccl_manager.cc: each
// GPU's communication stream waits for the event that the compute stream recorded behind the
// values, and NCCL's kernel begins when all GPUs have come to it. The compute streams go on
// meanwhile. An operation is done when its stream has the event behind the kernel.
static void run(std::vector<Part> parts, const OpKernel& kernel, bool is_mean) {
  static std::mutex one_at_a_time;  // as there: all GPUs get the sums in the same order
  std::lock_guard<std::mutex> lock(one_at_a_time);
  absl::Status status = add_up_values(parts, is_mean);
  double starts_s = 0;
  for (const Part& part : parts) {
    SP_Stream stream = collective_stream(part.computes->gpu);
    starts_s = std::max({starts_s, part.ready_s, stream->until()});
  }
  starts_s = std::max(starts_s, now());
  Span span{starts_s, std::min(starts_s + seconds_of(parts), kNever)};
  for (const Part& part : parts) {
    SP_Stream stream = collective_stream(part.computes->gpu);
    stream->after(span.ends_s);
    breaks(stream, kernel, part.context);
    span.ends_s = std::max(span.ends_s, stream->until());
  }
  for (const Part& part : parts) {
    SP_Stream stream = collective_stream(part.computes->gpu);
    double bytes = double(part.context->input(0).TotalBytes());
    trace({stream->gpu->number, "all_reduce", kernel.type_string(), kernel.name(),
           stream->use.load(), part.arrived_s, span, bytes});
    part.context->SetStatus(status);
    call_at(span.ends_s, part.done);
  }
}

// Sums that wait for their other parts, by the sum's name.
class Waiting {
 public:
  // Returns all parts once the last has come, until then none. A part whose step is cancelled, as
  // when another device fails, leaves with an error.
  std::vector<Part> join(const std::string& key, Part part, size_t size) {
    OpKernelContext* context = part.context;
    tensorflow::CancellationManager* manager = context->cancellation_manager();
    tensorflow::CancellationToken token = manager ? manager->get_cancellation_token() : 0;
    AsyncOpKernel::DoneCallback done = part.done;
    part.done = [manager, token, done] {
      if (manager) manager->TryDeregisterCallback(token);
      done();
    };
    std::lock_guard<std::mutex> lock(mutex_);
    auto leave = [this, key, context] { cancel(key, context); };
    if (manager && !manager->RegisterCallback(token, leave)) {
      context->SetStatus(cancelled());
      call_at(now(), done);
      return {};
    }
    std::vector<Part>& parts = sums_[key];
    parts.push_back(std::move(part));
    if (parts.size() < size) return {};
    std::vector<Part> all = std::move(parts);
    sums_.erase(key);
    return all;
  }

 private:
  static absl::Status cancelled() {
    return absl::CancelledError("the sum over the fake GPUs is cancelled");
  }

  void cancel(const std::string& key, OpKernelContext* context) {
    AsyncOpKernel::DoneCallback done = taken(key, context);
    if (!done) return;
    context->SetStatus(cancelled());
    done();
  }

  AsyncOpKernel::DoneCallback taken(const std::string& key, OpKernelContext* context) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto sum = sums_.find(key);
    if (sum == sums_.end()) return nullptr;
    std::vector<Part>& parts = sum->second;
    AsyncOpKernel::DoneCallback done;
    for (auto part = parts.begin(); part != parts.end() && !done; ++part) {
      if (part->context != context) continue;
      done = std::move(part->done);
      parts.erase(part);
      break;
    }
    if (parts.empty()) sums_.erase(sum);
    return done;
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<Part>> sums_;
};

static const char kHint[] = "communication_hint";

static bool asks_for_ring(OpKernelConstruction* construction) {
  std::string hint;
  return construction->GetAttr(kHint, &hint).ok() && hint == "ring";
}

// A sum by NCCL, or by TensorFlow's own ring where that is asked for, and between processes.
class AllReduce : public AsyncOpKernel {
 public:
  AllReduce(OpKernelConstruction* construction, OpKernel* ring)
      : AsyncOpKernel(construction), ring_(ring), asks_for_ring_(asks_for_ring(construction)) {
    std::string merges;
    if (construction->def().op() == kNccl) {
      OP_REQUIRES_OK(construction, construction->GetAttr("num_devices", &size_));
      OP_REQUIRES_OK(construction, construction->GetAttr("shared_name", &name_));
      OP_REQUIRES_OK(construction, construction->GetAttr("reduction", &merges));
    } else {
      OP_REQUIRES_OK(construction, construction->GetAttr("merge_op", &merges));
      OP_REQUIRES_OK(construction, construction->GetAttr("final_op", &final_));
    }
    OP_REQUIRES(construction, merges == "sum" || merges == "Add",
                absl::UnimplementedError("the fake GPUs merge by sums only, not by " + merges));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    static auto* waiting = new Waiting;
    SP_Stream stream = stream_of(context);
    if (fails(stream->gpu, *this, context)) return done();
    size_t size = name_.empty() ? number(context, 1) : size_;
    if (asks_for_ring_ || size > gpus().size()) return compute_by_ring(context, stream, done);
    Tensor* output;
    OP_REQUIRES_OK_ASYNC(
        context,
        context->forward_input_or_allocate_output({0}, 0, context->input(0).shape(), &output),
        done);
    std::vector<Part> parts =
        waiting->join(key(context), {context, stream, now(), stream->until(), done}, size);
    if (!parts.empty()) run(std::move(parts), *this, final_ == "Div");
  }

  static constexpr char kNccl[] = "NcclAllReduce";

 private:
  static int number(OpKernelContext* context, int input) {
    return context->input(input).scalar<tensorflow::int32>()();
  }

  // An NcclAllReduce has its sum's name; a CollectiveReduceV2 has numbers of its group and its
  // instance.
  std::string key(OpKernelContext* context) const {
    if (!name_.empty()) return name_ + ":" + std::to_string(context->step_id());
    return std::to_string(number(context, 2)) + ":" + std::to_string(number(context, 3));
  }

  // Its copies are on the streams of copies, and the host adds up. The trace has all of it as one
  // thing.
  void compute_by_ring(OpKernelContext* context, SP_Stream stream, DoneCallback done) {
    double from = now();
    ring_->AsAsync()->ComputeAsync(context, [this, context, stream, done, from] {
      double bytes = double(context->input(0).TotalBytes());
      trace({stream->gpu->number,
             "all_reduce",
             type_string(),
             name(),
             "ring",
             from,
             {from, now()},
             bytes});
      done();
    });
  }

  std::unique_ptr<OpKernel> ring_;
  bool asks_for_ring_;
  int size_ = 0;
  std::string name_, final_;
};

bool is_collective(const tensorflow::KernelDef& definition) {
  const std::string& device = definition.device_type();
  if (definition.op() == AllReduce::kNccl) return true;
  return definition.op().rfind("Collective", 0) == 0 && (device == "DEFAULT" || device == "GPU");
}

// TensorFlow's own kernel, by its ring and not by NCCL, whatever the node asks for:
// CollectiveParams are those of group and instance, and the implementation is looked up by this
// hint.
static OpKernel* by_ring(OpKernelConstruction* construction) {
  tensorflow::NodeDef node = construction->def();
  auto hint = node.mutable_attr()->find(kHint);
  if (hint != node.mutable_attr()->end()) hint->second.set_s("ring");
  return cpu_kernel(construction, node);
}

// Of collectives only sums have NCCL's time; the others move what a model has at its start.
class ByRing : public AsyncOpKernel {
 public:
  ByRing(OpKernelConstruction* construction, OpKernel* kernel)
      : AsyncOpKernel(construction), kernel_(kernel) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    kernel_->AsAsync()->ComputeAsync(context, done);
  }

 private:
  std::unique_ptr<OpKernel> kernel_;
};

OpKernel* new_collective(OpKernelConstruction* construction) {
  const std::string& op = construction->def().op();
  if (op == AllReduce::kNccl) return new AllReduce(construction, nullptr);
  OpKernel* kernel = by_ring(construction);
  if (!kernel) return nullptr;
  if (op == "CollectiveReduceV2") return new AllReduce(construction, kernel);
  return new ByRing(construction, kernel);
}

}  // namespace fake_gpu
