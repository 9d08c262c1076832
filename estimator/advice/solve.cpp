#include "estimator/advice/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <numeric>

#include "estimator/inputs/nearest.h"
#include "estimator/measured.h"

namespace spillway::estimator {
namespace {

struct Name {
  const char* name;
  Unknown unknown;
};
constexpr std::array<Name, 5> kNames = {{{"batch", Unknown::kBatch},
                                         {"seq", Unknown::kSequence},
                                         {"gpus", Unknown::kGpus},
                                         {"tp", Unknown::kTensor},
                                         {"recompute", Unknown::kRecompute}}};

// The last step whose setting was estimated, on each side.
class Search {
 public:
  using Change = std::function<std::string(TrainingRun&, int64_t step)>;

  Search(const TrainingRun& run, const GpuMemory& gpu, const Estimator& estimator, Change change)
      : run_(run), gpu_(gpu), estimator_(estimator), change_(std::move(change)) {}

  // Tells whether the setting fits; false as well where the run contradicts itself there.
  bool fits(int64_t step) {
    Setting setting{{}, run_, {}};
    setting.text = change_(setting.run, step);
    Result<Estimate> estimate = estimator_(setting.run);
    if (!estimate.ok()) {
      if (refusal_.empty()) refusal_ = estimate.status().text();
      return false;
    }
    setting.estimate = std::move(estimate.value());
    const bool fitting = verdict(needed_bytes(setting.run, setting.estimate), gpu_) != Verdict::kNo;
    (fitting ? found_.fits : found_.misses) = std::move(setting);
    return fitting;
  }

  // Memory grows with the step.
  void largest(int64_t most) {
    int64_t low = 0, high = 1;
    while (high <= most && fits(high)) {
      low = high;
      high *= 2;
    }
    if (low == 0) return;
    high = std::min(high, most + 1);
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
  }

  // Memory shrinks with the step, from the second on.
  void smallest(int64_t most) {
    if (fits(1) || !fits(most)) return;
    int64_t low = 1, high = most;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
  }

  void first(int64_t most) {
    for (int64_t step = 1; step <= most; ++step) {
      if (fits(step)) return;
    }
  }

  Result<Solution> take() {
    if (!found_.fits && !found_.misses) return Status::invalid_argument(refusal_);
    return std::move(found_);
  }

 private:
  const TrainingRun& run_;
  const GpuMemory& gpu_;
  const Estimator& estimator_;
  Change change_;
  Solution found_;
  std::string refusal_;
};

void set_gpus(TrainingRun& run, int64_t gpus) {
  if (run.parallel.world == 1 && gpus > 1 && run.reserve.communicator_bytes == 0)
    run.reserve.communicator_bytes = kCommunicatorBytes.value;
  run.parallel.world = gpus;
}

std::string set_batch(TrainingRun& run, int64_t batch) {
  run.training.micro_batch = batch;
  return fmt::format("{} = {}", run.imaging.generates ? "serve.images" : "train.micro_batch", batch);
}

// A sequence is longer than the prompt that it begins with.
std::string set_sequence(TrainingRun& run, int64_t step) {
  const int64_t tokens = run.training.preference.prompt + step * run.parallel.context;
  for (Tower& tower : run.model.towers) {
    if (!tower.fixed) tower.sequence = tokens;
  }
  return fmt::format("train.sequence = {}", tokens);
}

// GPUs of one replica of everything that is not divided over the data.
int64_t gpus_of_replica(const Parallel& parallel) {
  const int64_t gpus =
      std::lcm(parallel.tensor * parallel.pipeline * parallel.context * parallel.optimizer_instances,
               parallel.expert_tensor * parallel.expert * parallel.pipeline);
  return std::max<int64_t>(1, gpus);
}

// As gpus_of_replica() at most, where that would overflow.
double approximate_gpus_of_replica(const Parallel& parallel) {
  const auto product = [](std::initializer_list<int64_t> sizes) {
    double out = 1;
    for (const int64_t size : sizes) out *= static_cast<double>(size);
    return out;
  };
  return product({parallel.tensor, parallel.pipeline, parallel.context, parallel.optimizer_instances,
                  parallel.expert_tensor, parallel.expert});
}

std::string set_replicas(TrainingRun& run, int64_t replicas) {
  set_gpus(run, replicas * gpus_of_replica(run.parallel));
  return fmt::format("parallel.gpus = {}", run.parallel.world);
}

std::string set_tensor(TrainingRun& run, int64_t size) {
  run.parallel.tensor = size;
  const int64_t needed = size * run.parallel.pipeline * run.parallel.context;
  if (run.parallel.world % needed != 0 && run.parallel.world < needed) set_gpus(run, needed);
  return fmt::format("parallel.tensor = {}, parallel.gpus = {}", size, run.parallel.world);
}

// A denoiser's blocks are recomputed, or are not.
int64_t recompute_levels(const TrainingRun& run) {
  return run.model.pipeline ? 2 : 3;
}

std::string set_recompute(TrainingRun& run, int64_t step) {
  constexpr std::array<Recompute, 3> kLevels = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  constexpr std::array<const char*, 3> kTexts = {"none", "selective", "full"};
  const auto level = static_cast<size_t>(step == recompute_levels(run) ? 2 : step - 1);
  run.training.recompute = kLevels[level];
  run.training.modules = {};
  run.training.modules.attention_core = kLevels[level] == Recompute::kSelective;
  return fmt::format("train.recompute = {}", kTexts[level]);
}

int64_t most_sequence_steps(const TrainingRun& run) {
  const int64_t positions = run.model.positions - run.training.adapter.virtual_tokens;
  const int64_t most = run.model.positions > 0 ? std::min(positions, kMostSequence) : kMostSequence;
  return std::max<int64_t>(1, (most - run.training.preference.prompt) / run.parallel.context);
}

}  // namespace

Result<Unknown> unknown_named(const std::string& name) {
  std::vector<std::string_view> allowed;
  for (const Name& each : kNames) {
    if (name == each.name) return each.unknown;
    allowed.emplace_back(each.name);
  }
  return Status::invalid_argument(fmt::format("--solve '{}' is not allowed; allowed: {}{}", name,
                                              fmt::join(allowed, ", "), did_you_mean(name, allowed)));
}

Result<Solution> solve(const TrainingRun& run, Unknown unknown, const GpuMemory& gpu,
                       const Estimator& estimator) {
  const bool is_of_images =
      unknown == Unknown::kBatch || (unknown == Unknown::kRecompute && !run.imaging.generates);
  if (run.model.pipeline && !is_of_images)
    return Status::invalid_argument(
        fmt::format("--solve: not modelled for a model of images; allowed: batch{}",
                    run.imaging.generates ? "" : ", recompute"));
  const auto search = [&](Search::Change change) { return Search(run, gpu, estimator, std::move(change)); };
  switch (unknown) {
    case Unknown::kBatch: {
      Search batch = search(set_batch);
      batch.largest(kMostBatch);
      return batch.take();
    }
    case Unknown::kSequence: {
      Search sequence = search(set_sequence);
      sequence.largest(most_sequence_steps(run));
      return sequence.take();
    }
    case Unknown::kGpus: {
      if (const double gpus = approximate_gpus_of_replica(run.parallel); gpus > 1e12) {
        return Status::invalid_argument(fmt::format(
            "parallel sizes of {:.0e} GPUs together are not allowed; allowed: up to 1e+12", gpus));
      }
      Search replicas = search(set_replicas);
      replicas.smallest(std::max<int64_t>(1, kMostGpus / gpus_of_replica(run.parallel)));
      return replicas.take();
    }
    case Unknown::kTensor: {
      Search tensor = search(set_tensor);
      tensor.first(kMostTensor);
      return tensor.take();
    }
    case Unknown::kRecompute: {
      Search recompute = search(set_recompute);
      recompute.first(recompute_levels(run));
      return recompute.take();
    }
  }
  return Status::internal("a setting that nobody solves for");
}

}  // namespace spillway::estimator
