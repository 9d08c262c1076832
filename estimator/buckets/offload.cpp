#include "estimator/buckets/offload.h"

#include <algorithm>

namespace spillway::estimator {
namespace {

constexpr const char* kMoved = "counted as on the device";

// Traffic of one step in bytes, by hop.
struct Traffic {
  double host = 0;
  double nvme = 0;
};

class Mover {
 public:
  Mover(const TrainingRun& run, RankClass& out) : offload_(run.offload), out_(out) {}

  // `device_traffic` passes between device and host, `nvme_traffic` between host and NVMe where the bytes
  // lie there.
  void move(Tier tier, const char* name, double bytes, double device_traffic, double nvme_traffic) {
    if (tier == Tier::kDevice || bytes <= 0) return;
    traffic_.host += device_traffic;
    if (tier == Tier::kHost) {
      out_.host.push_back({name, bytes, kMoved, "the run's [offload]"});
      return;
    }
    traffic_.nvme += nvme_traffic;
    out_.nvme.push_back({name, bytes, kMoved, "the run's [offload]"});
    staging_ += static_cast<double>(offload_.buffers) * offload_.buffer_bytes;
  }

  // Rajbhandari et al., "ZeRO-Infinity", section 4: transfers overlap compute, and hops overlap each other.
  StepTime time() const {
    const double transfer =
        std::max(traffic_.host / offload_.host_bandwidth, traffic_.nvme / offload_.nvme_bandwidth);
    const double hidden = offload_.overlap * offload_.compute_seconds;
    return {transfer, std::max(0.0, transfer - hidden), offload_.compute_seconds};
  }

  void finish() {
    if (staging_ > 0)
      out_.host.push_back({"staging buffers", staging_, "buffers x buffer size for each kind on NVMe",
                           "the run's [offload]"});
    out_.time = time();
  }

 private:
  const Offload& offload_;
  RankClass& out_;
  Traffic traffic_;
  double staging_ = 0;
};

}  // namespace

void offload(const TrainingRun& run, const ActivationBytes& activations, StateBytes& states, RankClass& out) {
  const Offload& offload = run.offload;
  if (!offload.any()) return;
  Mover mover(run, out);
  const auto passes = static_cast<double>(run.training.microbatches);
  if (offload.optimizer != Tier::kDevice) {
    const double kept = states.master + states.moments;
    // Gradients go down after every backward pass and stay in host memory in fp32; weights come back once.
    mover.move(offload.optimizer, "optimizer states", kept, states.weights + passes * states.gradients,
               2 * kept);
    const double fp32 = states.master > 0 ? states.master : states.gradients;
    out.host.push_back({"gradients", fp32, "4 for each element of the shard", "DeepSpeed, ZeRO-Offload"});
    states.master = states.moments = states.master_gradients = states.gradients = 0;
  }
  if (offload.parameters != Tier::kDevice) {
    // Each pass over the layers reads them: forward, backward, and forward again to recompute.
    const double reads = passes * (run.training.recompute == Recompute::kFull ? 3 : 2);
    mover.move(offload.parameters, "weights", states.weights, reads * states.weights, reads * states.weights);
    states.weights = 0;
  }
  const double both_ways = 2 * passes * activations.all;
  mover.move(offload.activations, "activations", activations.all, both_ways, both_ways);
  mover.finish();
}

}  // namespace spillway::estimator
