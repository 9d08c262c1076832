// The comparator against figures taken before it existed: PyTorch's own allocator on recorded traces,
// measured with another harness on another simulated device. If both agree, what replay says about PyTorch is
// PyTorch's doing.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "cli/replay/program.h"
#include "cli/replay/run.h"
#include "cli/replay/sim_device.h"
#include "cli/torch_peer/torch_peer.h"
#include "cli/trace/file.h"
#include "cli/trace/pickle.h"
#include "cli/trace/snapshot.h"

namespace spillway {
namespace {

// Ratios over the peak of live requested bytes.
struct Figures {
  const char* name;
  const char* file;
  double native_reserved;
  double native_minimum;
  double expandable_reserved;
  double expandable_minimum;
};

// The name of a case in a list of tests; GoogleTest looks for this function.
// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const Figures& figures, std::ostream* out) {
  *out << figures.name;
}

constexpr Figures kTraces[] = {
    {"ctx128_forward", "snapshots/lm_2p7b_ctx128_forward.pickle", 1.0157, 1.0157, 1.0016, 1.0016},
    {"ctx128_train_step", "snapshots/lm_2p7b_ctx128_train_step.pickle", 1.1151, 1.0082, 1.0129, 1.0129},
    {"ctx512_train_step", "snapshots/lm_2p7b_ctx512_train_step.pickle", 1.1494, 1.0185, 1.0147, 1.0136},
    {"tinyllama_qlora", "snapshots/tinyllama_qlora_finetune.pickle", 1.1049, 1.0742, 1.0068, 1.0061},
    {"llama_1b_fixed", "traces/llama_1b_fixed.pickle.gz", 1.0139, 1.0139, 1.0455, 1.0032},
    {"moe_random_routing", "traces/moe_random_routing.pickle.gz", 1.2670, 1.0497, 1.0663, 1.0028},
    {"resnet50_multires", "traces/resnet50_multires.pickle.gz", 1.1298, 1.0095, 1.0026, 1.0021},
    {"gather_free_prefetch", "traces/gather_free_prefetch.pickle.gz", 1.4416, 1.0524, 1.2675, 1.0198},
};

constexpr double kTolerance = 0.005;
constexpr uint64_t kUnlimitedBytes = 1ULL << 40;

std::string path_of(const char* file) {
  return std::string(SPILLWAY_TRACES) + "/" + file;
}

class TorchPeerTest : public testing::TestWithParam<Figures> {
 protected:
  void SetUp() override {
    Result<Trace> trace = read_snapshot(path_of(GetParam().file));
    ASSERT_TRUE(trace.ok()) << trace.status().text();
    program_ = compile(trace.value());
  }

  Result<RunResult> run(AllocatorKind allocator, uint64_t capacity_bytes) const {
    RunRequest request;
    request.allocator = allocator;
    request.capacity_bytes = capacity_bytes;
    return run_in_worker(program_, request);
  }

  double ratio(uint64_t bytes) const {
    return static_cast<double>(bytes) / static_cast<double>(program_.peak_live_bytes);
  }

  // Plain bisection, as the figures were found: PyTorch's allocator may fail on a larger device where it
  // passes on a smaller one, so this is one place where it changes its mind, not the definition that replay
  // reports.
  void expect_peak_and_minimum(AllocatorKind allocator, double reserved, double minimum) const {
    const Result<RunResult> unlimited = run(allocator, kUnlimitedBytes);
    ASSERT_TRUE(unlimited.ok()) << unlimited.status().text();
    ASSERT_TRUE(unlimited.value().completed);
    EXPECT_NEAR(ratio(unlimited.value().peak_reserved_bytes), reserved, reserved * kTolerance);

    uint64_t failing = program_.peak_live_bytes;
    uint64_t passing = unlimited.value().peak_reserved_bytes;
    while (passing - failing > program_.peak_live_bytes / 5000) {
      const uint64_t middle = failing + (passing - failing) / 2;
      const Result<RunResult> result = run(allocator, middle);
      ASSERT_TRUE(result.ok()) << result.status().text();
      (result.value().completed ? passing : failing) = middle;
    }
    EXPECT_NEAR(ratio(passing), minimum, minimum * kTolerance);
  }

  ReplayProgram program_;
};

TEST_P(TorchPeerTest, NativeHoldsWhatItHeldBefore) {
  expect_peak_and_minimum(AllocatorKind::kNative, GetParam().native_reserved, GetParam().native_minimum);
}

TEST_P(TorchPeerTest, ExpandableSegmentsHoldWhatTheyHeldBefore) {
  expect_peak_and_minimum(AllocatorKind::kExpandable, GetParam().expandable_reserved,
                          GetParam().expandable_minimum);
}

INSTANTIATE_TEST_SUITE_P(Traces, TorchPeerTest, testing::ValuesIn(kTraces),
                         [](const auto& test) { return std::string(test.param.name); });

// The sizes of the segments that the GPU of the recording gave, in order.
Result<std::vector<uint64_t>> recorded_segments(const std::string& data) {
  Result<PickleDocument> parsed = PickleDocument::parse(data);
  if (!parsed.ok()) return parsed.take_status();
  const PickleDocument& document = parsed.value();
  const auto field = [&](const PickleValue& dictionary, std::string_view name) {
    const std::vector<PickleValue>& pairs = document.pairs(dictionary);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (pairs[i].is(PickleValue::Kind::kText) && document.text(pairs[i]) == name) return pairs[i + 1];
    }
    return PickleValue();
  };
  std::vector<uint64_t> sizes;
  for (const PickleValue& trace : document.items(field(document.root(), "device_traces"))) {
    for (const PickleValue& event : document.items(trace)) {
      if (document.text(field(event, "action")) != "segment_alloc") continue;
      sizes.push_back(static_cast<uint64_t>(field(event, "size").integer()));
    }
  }
  return sizes;
}

// Runs the trace on PyTorch's allocator and writes the size of each segment that it takes to `fd`. In a
// process of its own, which it ends.
[[noreturn]] void write_replayed_segments(const Trace& trace, int fd) {
  const auto fail = [](const std::string& text) {
    (void)std::fprintf(stderr, "%s\n", text.c_str());
    std::_Exit(1);
  };
  const std::string driver = default_sim_path();
  setenv("SPILLWAY_LIBCUDA", driver.c_str(), 1);
  setenv("SPILLWAY_SIM", "capacity:1TiB,backing:none,races:off", 1);
  Result<const TorchPeer*> loaded = load_torch_peer(false, 1);
  if (!loaded.ok()) fail(loaded.status().text());
  const TorchPeer& peer = *loaded.value();
  std::vector<void*> blocks(trace.blocks.size(), nullptr);
  const auto allocate = [&](size_t index) {
    if (peer.allocate(trace.blocks[index].bytes, nullptr, &blocks[index]) != SPW_OK) fail(peer.last_error());
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (trace.blocks[i].initially_live) allocate(i);
  }
  static std::vector<uint64_t> sizes;
  const spw_status watching =
      peer.watch_segments([](void* /*context*/, uint64_t bytes) { sizes.push_back(bytes); }, nullptr);
  if (watching != SPW_OK) fail(peer.last_error());
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceEvent::Kind::kAllocate) {
      allocate(event.block);
    } else if (event.kind == TraceEvent::Kind::kFree) {
      if (peer.free(blocks[event.block]) != SPW_OK) fail(peer.last_error());
    } else {
      fail("these recordings have no pending frees");
    }
  }
  const auto* data = reinterpret_cast<const char*>(sizes.data());
  size_t left = sizes.size() * sizeof sizes[0];
  while (left > 0) {
    const ssize_t written = write(fd, data, left);
    if (written <= 0) fail("the pipe to the test broke");
    data += written;
    left -= static_cast<size_t>(written);
  }
  std::_Exit(0);
}

class TorchPeerSegmentTest : public testing::TestWithParam<Figures> {};

// The two recordings that begin where nothing was cached; what the others had cached before is not in the
// file.
TEST_P(TorchPeerSegmentTest, TakesTheRecordedSegments) {
  const std::string path = path_of(GetParam().file);
  Result<std::string> data = read_file(path);
  ASSERT_TRUE(data.ok()) << data.status().text();
  const Result<std::vector<uint64_t>> recorded = recorded_segments(data.value());
  ASSERT_TRUE(recorded.ok()) << recorded.status().text();
  ASSERT_GT(recorded.value().size(), 100U);
  const Result<Trace> trace = read_snapshot(path);
  ASSERT_TRUE(trace.ok()) << trace.status().text();

  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(fds[0]);
    write_replayed_segments(trace.value(), fds[1]);
  }
  close(fds[1]);
  std::string bytes;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(fds[0], buffer, sizeof buffer)) > 0;) {
    bytes.append(buffer, static_cast<size_t>(got));
  }
  close(fds[0]);
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  ASSERT_EQ(state, 0);
  std::vector<uint64_t> replayed(bytes.size() / sizeof(uint64_t));
  std::copy_n(bytes.data(), replayed.size() * sizeof(uint64_t), reinterpret_cast<char*>(replayed.data()));
  EXPECT_EQ(replayed, recorded.value());
}

INSTANTIATE_TEST_SUITE_P(Snapshots, TorchPeerSegmentTest, testing::Values(kTraces[0], kTraces[1]),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway
