#include "bench/cases.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <random>

namespace spillway::bench {
namespace {

using Work = std::function<void(benchmark::State&, const Contender&, CUstream)>;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGiB = 1024 * kMiB;

struct NamedSize {
  const char* name;
  uint64_t bytes;
};

constexpr NamedSize kPairSizes[] = {
    {"512B", 512},      {"4KiB", 4 * kKiB},   {"64KiB", 64 * kKiB},   {"1MiB", kMiB},
    {"8MiB", 8 * kMiB}, {"64MiB", 64 * kMiB}, {"256MiB", 256 * kMiB}, {"1GiB", kGiB},
};

constexpr NamedSize kHitSizes[] = {
    {"512B", 512}, {"16KiB", 16 * kKiB}, {"256KiB", 256 * kKiB}, {"4MiB", 4 * kMiB}};

void fail(benchmark::State& state, const Contender& contender, const char* what) {
  state.SkipWithError(fmt::format("{}: {} failed: {}", contender.name, what, contender.last_error()).c_str());
}

// False, with the run marked as failed, where the contender refused.
bool allocate(benchmark::State& state, const Contender& contender, uint64_t bytes, CUstream stream,
              void** out) {
  if (contender.allocate(bytes, stream, out) == SPW_OK && *out != nullptr) return true;
  fail(state, contender, "allocation");
  return false;
}

bool release(benchmark::State& state, const Contender& contender, void* block) {
  if (contender.free(block) == SPW_OK) return true;
  fail(state, contender, "free");
  return false;
}

void pairs(benchmark::State& state, const Contender& contender, CUstream stream, uint64_t bytes) {
  // The first use of a device is no pair: counted, it would make the library run a single pair in each
  // repeat.
  void* first = nullptr;
  if (allocate(state, contender, bytes, stream, &first)) release(state, contender, first);
  for ([[maybe_unused]] auto _ : state) {
    void* block = nullptr;
    if (!allocate(state, contender, bytes, stream, &block)) break;
    benchmark::DoNotOptimize(block);
    if (!release(state, contender, block)) break;
  }
}

void hits(benchmark::State& state, const Contender& contender, CUstream stream, uint64_t bytes) {
  constexpr size_t kBlocks = 1024;
  std::vector<void*> blocks(kBlocks, nullptr);
  bool ready = true;
  for (void*& block : blocks) ready = ready && allocate(state, contender, bytes, stream, &block);
  for (size_t i = 0; i < kBlocks && ready; i += 2) {
    ready = release(state, contender, blocks[i]);
    blocks[i] = nullptr;
  }
  // A run that failed to prepare has been marked so, and its loop then does nothing.
  pairs(state, contender, stream, bytes);
  for (void* block : blocks) {
    if (block != nullptr) release(state, contender, block);
  }
}

struct Replacement {
  size_t slot;
  uint64_t bytes;
};

constexpr size_t kLiveBlocks = 512;

// One fixed sequence for all contenders, long enough that each slot sees several sizes.
const std::vector<Replacement>& replacements() {
  static const std::vector<Replacement> kSequence = [] {
    std::mt19937_64 random(20240229);
    std::vector<Replacement> sequence(2048);
    for (Replacement& next : sequence) {
      const double octaves = static_cast<double>(random() >> 11) / static_cast<double>(1ULL << 53) * 17.0;
      next = {random() % kLiveBlocks, static_cast<uint64_t>(512.0 * std::exp2(octaves))};
    }
    return sequence;
  }();
  return kSequence;
}

void mixed(benchmark::State& state, const Contender& contender, CUstream stream) {
  const std::vector<Replacement>& sequence = replacements();
  std::vector<void*> blocks(kLiveBlocks, nullptr);
  bool ready = true;
  // One round before the clock starts, so that what is measured has found its memory.
  for (const Replacement& next : sequence) {
    void*& block = blocks[next.slot];
    if (ready && block != nullptr) ready = release(state, contender, block);
    block = nullptr;
    ready = ready && allocate(state, contender, next.bytes, stream, &block);
  }
  for (size_t i = 0; i < kLiveBlocks && ready; ++i) {
    if (blocks[i] == nullptr) ready = allocate(state, contender, 512, stream, &blocks[i]);
  }
  size_t at = 0;
  for ([[maybe_unused]] auto _ : state) {
    const Replacement& next = sequence[at];
    at = (at + 1) % sequence.size();
    void*& block = blocks[next.slot];
    if (!release(state, contender, block)) break;
    block = nullptr;
    if (!allocate(state, contender, next.bytes, stream, &block)) break;
  }
  for (void* block : blocks) {
    if (block != nullptr) release(state, contender, block);
  }
}

class Registrar {
 public:
  Registrar(const std::string& filter, const std::vector<Contender>& contenders, const Device& device)
      : filter_(filter), contenders_(contenders), device_(device) {}

  void add(const std::string& name, int threads, bool own_streams, const Work& work) {
    if (name.find(filter_) == std::string::npos) return;
    for (const Contender& contender : contenders_) {
      const Device& device = device_;
      benchmark::RegisterBenchmark(fmt::format("{}/{}", name, contender.name).c_str(),
                                   [&contender, &device, own_streams, work](benchmark::State& state) {
                                     if (device.driver->cuCtxSetCurrent(device.context) != CUDA_SUCCESS) {
                                       state.SkipWithError("the device's context cannot be made current");
                                     }
                                     const size_t stream =
                                         own_streams ? static_cast<size_t>(state.thread_index()) : 0;
                                     work(state, contender, device.streams[stream]);
                                   })
          ->Threads(threads)
          ->UseRealTime();
    }
    cases_.push_back({name, threads});
  }

  std::vector<CaseName> take() { return std::move(cases_); }

 private:
  const std::string& filter_;
  const std::vector<Contender>& contenders_;
  const Device& device_;
  std::vector<CaseName> cases_;
};

}  // namespace

std::vector<CaseName> register_cases(const std::string& filter, const std::vector<Contender>& contenders,
                                     const Device& device) {
  Registrar registrar(filter, contenders, device);
  const auto pair_of = [](uint64_t bytes) -> Work {
    return [bytes](benchmark::State& state, const Contender& contender, CUstream stream) {
      pairs(state, contender, stream, bytes);
    };
  };
  for (const NamedSize& size : kPairSizes) {
    registrar.add(fmt::format("pair/{}", size.name), 1, true, pair_of(size.bytes));
  }
  for (const NamedSize& size : kHitSizes) {
    registrar.add(fmt::format("hit/{}", size.name), 1, true,
                  [bytes = size.bytes](benchmark::State& state, const Contender& contender, CUstream stream) {
                    hits(state, contender, stream, bytes);
                  });
  }
  registrar.add("mixed", 1, true, mixed);
  for (const bool own : {true, false}) {
    const char* streams = own ? "own-streams" : "one-stream";
    for (const int threads : {1, 2, kMaxThreads}) {
      registrar.add(fmt::format("threads/{}/pair-64KiB", streams), threads, own, pair_of(64 * kKiB));
      registrar.add(fmt::format("threads/{}/mixed", streams), threads, own, mixed);
    }
  }
  return registrar.take();
}

}  // namespace spillway::bench
