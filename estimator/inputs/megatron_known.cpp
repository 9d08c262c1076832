#include <array>
#include <string_view>

#include "estimator/inputs/megatron.h"

namespace spillway::estimator {
namespace {

// Names that begin so say nothing about memory: data, learning rates, logging, checkpoints, process groups,
// and numbers that only change values.
constexpr std::array<std::string_view, 63> kWithoutEffect = {"adam-",
                                                             "async-",
                                                             "attention-softmax",
                                                             "auto-detect-ckpt",
                                                             "calculate-per-token",
                                                             "check-",
                                                             "ckpt-",
                                                             "clip-grad",
                                                             "cross-entropy-fusion",
                                                             "data-cache",
                                                             "data-path",
                                                             "dataloader-",
                                                             "ddp-average",
                                                             "decoupled-",
                                                             "deterministic-mode",
                                                             "disable-gloo",
                                                             "dist-ckpt",
                                                             "distributed-",
                                                             "end-weight",
                                                             "eval-",
                                                             "exit-",
                                                             "fp8-amax-compute",
                                                             "fp8-interval",
                                                             "fp8-margin",
                                                             "init-method",
                                                             "load",
                                                             "log-",
                                                             "logging-",
                                                             "loss-scale",
                                                             "lr",
                                                             "manual-gc",
                                                             "merge-file",
                                                             "min-lr",
                                                             "mock-data",
                                                             "moe-aux-loss",
                                                             "moe-permute-fusion",
                                                             "moe-router",
                                                             "moe-z-loss",
                                                             "mscale",
                                                             "mtp-loss",
                                                             "no-bias-",
                                                             "no-check",
                                                             "no-gradient-accum",
                                                             "no-load",
                                                             "no-mmap",
                                                             "no-rope-fusion",
                                                             "no-save",
                                                             "norm-epsilon",
                                                             "num-workers",
                                                             "num-dataset",
                                                             "overlap-",
                                                             "override-opt",
                                                             "rotary-",
                                                             "save",
                                                             "seed",
                                                             "split",
                                                             "start-weight",
                                                             "tensorboard-",
                                                             "timing-",
                                                             "train-",
                                                             "use-checkpoint",
                                                             "use-mcore",
                                                             "weight-decay"};

}  // namespace

bool known_without_effect(std::string_view key) {
  for (const std::string_view beginning : kWithoutEffect) {
    if (key.substr(0, beginning.size()) == beginning) return true;
  }
  return false;
}

}  // namespace spillway::estimator
