// Every constant that no framework's source gives: where it was measured, and how far it may be wrong. All
// other numbers of the estimator are formulas with their source beside them.
#pragma once

#include <array>

namespace spillway::estimator {

constexpr double kMiB = 1 << 20;

struct Measured {
  double value;
  const char* what;
  const char* origin;
};

// torch.compile of the fused cross entropy, PyTorch before 2.6 and in the 24.01 container.
constexpr Measured kFusedLossBytesOld{14, "bytes for each logit, fused loss, containers of early 2025",
                                      "two runs of one configuration: 4 T V/t above today's"};
constexpr Measured kFusedLossBytesOldest{18, "bytes for each logit, fused loss, 24.01 container",
                                         "two runs of one configuration: 8 T V/t above today's"};

// Outside every allocator.
constexpr Measured kContextBytes{400 * kMiB, "CUDA context and loaded kernels of a process",
                                 "290 to 430 MB with lazy loading, PyTorch issue reports"};
constexpr Measured kCommunicatorBytes{600 * kMiB, "NCCL's buffers of a process in one group",
                                      "544 to 688 MB on four GPUs, NCCL issue 964"};

// These count where a run file does not say how fast its tiers are.
constexpr Measured kHostBandwidth{25e9, "bytes a second between device and pinned host memory",
                                  "A100 hosts on PCIe 4.0 x16: 24 to 25 GB/s, nvbandwidth issues 11 and 53"};
constexpr Measured kNvmeBandwidth{3.2e9, "bytes a second between host and NVMe",
                                  "one PCIe 4.0 drive, DeepNVMe: 3.69 GB/s read, 3.18 GB/s written"};

// Half-widths of the interval as shares of a part of the peak, from the residuals of measured runs.
constexpr Measured kStateSpread{0.015, "of the steady part", "residuals of steady bytes: allocator rounding"};
constexpr Measured kActivationSpread{0.022, "of the dense transient part",
                                     "residuals of dense runs: allocator rounding"};
constexpr Measured kExpertSpread{0.12, "of what routed experts keep",
                                 "runs of one configuration differ by this much: routing"};

constexpr Measured kFp8Spread{0.06, "of the transient part with fp8", "three runs, 4 % off at most"};

constexpr Measured kMovedSpread{0.22, "of the transient part where saved tensors move to host memory",
                                "two recorded runs of Megatron-LM on two GPUs each, 7 % low at most"};

constexpr Measured kAsleepBytes{290000000, "what an inference engine keeps while it sleeps",
                                "19.51 of 19.78 GiB were freed in issue 17117 of vLLM"};

// These are of vLLM's start (serving/).
constexpr Measured kSamplerBytesOld{38, "bytes for each logit of vLLM's sampler that sorts, until 0.19",
                                    "38.4 in issue 12529, 38 in issues 23278 and 27508 of vLLM"};
constexpr Measured kSamplerBytes{14, "bytes for each logit of vLLM's sampler by FlashInfer",
                                 "13.8 in pull request 24577 of vLLM"};
constexpr Measured kServingLibraryBytes{60 * kMiB, "what libraries take while vLLM starts on one GPU",
                                        "0.03 to 0.1 GiB in issues 12529, 13882 of vLLM"};
constexpr Measured kServingCommunicatorBytes{200 * kMiB,
                                             "the same of communicators between GPUs of a machine",
                                             "0.20 to 0.25 GiB in all in issues 13061, 15340 of vLLM"};
constexpr Measured kGraphLayerBytes{8 * kMiB, "CUDA graphs that vLLM expects, for each layer",
                                    "0.42 GiB of 36 layers in pull request 57047, 0.17 to 0.36 of 64 with "
                                    "fewer sizes"};

constexpr std::array<Measured, 17> kMeasured = {kFusedLossBytesOld,   kFusedLossBytesOldest,
                                                kContextBytes,        kCommunicatorBytes,
                                                kHostBandwidth,       kNvmeBandwidth,
                                                kStateSpread,         kActivationSpread,
                                                kExpertSpread,        kFp8Spread,
                                                kSamplerBytesOld,     kSamplerBytes,
                                                kServingLibraryBytes, kServingCommunicatorBytes,
                                                kGraphLayerBytes,     kAsleepBytes,
                                                kMovedSpread};

}  // namespace spillway::estimator
