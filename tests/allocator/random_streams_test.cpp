// Random programs on several streams: blocks pass between streams, pools open and close, graphs are captured
// and replayed, memory is short, and driver calls fail. The device runs everything as late as it may, in an
// order that the seed chooses, and its race detector reports any use of memory that is not ordered after the
// one before.
//
// The program does what a correct one must, and no more: an edge before a block is used on another stream,
// and record_stream so that the allocator knows. Nothing else orders the streams, so that each wait that is
// the allocator's to make is missed when it is missing.

#include <algorithm>
#include <array>
#include <set>

#include "tests/support/random_program.h"

namespace spillway::test {
namespace {

constexpr uint32_t kGraphPools = 2;
constexpr uint32_t kEagerPool = 3;
constexpr uint64_t kMostCapturedUses = 40;  // so that a replay costs little

struct Profile {
  std::string device;
  uint64_t capacity_bytes = 64 * kMiB;
  ArenaOptions options;
  bool faults = true;
  bool without_context = false;  // the allocator is called with none current, as by a thread that is new
  // These are of 1000 steps, besides those that allocate and free.
  uint32_t passes = 60;  // a block is used on another stream, and perhaps freed there
  uint32_t trims = 2;
  uint32_t graphs = 20;
};

// A pool that graphs are captured into. The allocator does not see their replays, so that the program orders
// each use of the pool's memory after the one before; but not what other streams did to it before a capture,
// which is the allocator's to settle.
struct GraphPool {
  CUstream origin = nullptr;  // captures, and uses the pool's blocks
  bool open = false;
  uint32_t uses = 0;  // begun and not yet released
  CUevent last_use = nullptr;
  std::vector<CUgraphExec> graphs;
};

// Counts what all programs of a test did together, which shows that they came to what they are for.
struct Reached {
  int64_t stream_waits = 0;
  int64_t host_waits = 0;
  int64_t views = 0;
  int64_t ooms = 0;
  uint64_t captures = 0;
  uint64_t replays = 0;
  uint64_t retirements = 0;    // requests that left fewer mappings
  std::vector<bool> served{};  // request by request; false for one that was refused

  bool operator==(const Reached&) const = default;
};

// No context is current while it lives, if it is told so.
class Detached {
 public:
  Detached(const Device& device, bool detaches) : driver_(*device.driver) {
    if (!detaches) return;
    EXPECT_EQ(driver_.cuCtxGetCurrent(&context_), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  }
  ~Detached() {
    if (context_ == nullptr) return;
    CUcontext left = nullptr;
    EXPECT_EQ(driver_.cuCtxGetCurrent(&left), CUDA_SUCCESS);
    EXPECT_EQ(left, nullptr) << "a call of the allocator left a context current";
    EXPECT_EQ(driver_.cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  Detached(const Detached&) = delete;
  Detached& operator=(const Detached&) = delete;

 private:
  const Driver& driver_;
  CUcontext context_ = nullptr;
};

class StreamsProgram {
 public:
  StreamsProgram(uint32_t seed, const Profile& profile)
      : profile_(profile),
        device_(profile.device + ",backing:none,capacity:" + std::to_string(profile.capacity_bytes / kMiB) +
                "MiB,seed:" + std::to_string(seed)),
        arena_(device_.arena(profile.options)),
        dice_(seed) {
    for (int i = 0; i < 12; ++i) usual_sizes_.push_back(dice_.pick_size());
    for (int i = 0; i < 4; ++i) streams_.push_back(device_.stream());
    streams_.push_back(nullptr);
    for (uint32_t number = 1; number <= kGraphPools; ++number) {
      GraphPool& pool = graph_pool(number);
      pool.origin = streams_[number - 1];
      EXPECT_EQ(device_.driver->cuEventCreate(&pool.last_use, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    }
    // The allocator asks the streams that it knows whether they are captured.
    for (const CUstream stream : streams_) {
      SPW_EXPECT_OK(call([&] { return Arena::free(must_allocate(*arena_, 1, stream)); }));
    }
  }

  void run(uint64_t steps, Reached& reached) {
    for (uint64_t step = 0; step < steps; ++step) {
      one_step();
      // Walking everything costs more than the step: each of the first, then every tenth.
      if (step < 500 || step % 10 == 0) SPW_EXPECT_OK(arena_->validate());
      if (device_.report_count() != 0 || testing::Test::HasFailure()) {
        FAIL() << "step " << step << ": " << device_.reports();
      }
    }
    finish();
    const DeviceStats stats = arena_->stats();
    reached.stream_waits += stats.stream_waits;
    reached.host_waits += stats.host_waits;
    reached.views += stats.rungs.view.hits;
    reached.ooms += stats.num_ooms;
    reached.captures += captures_;
    reached.replays += replays_;
    reached.retirements += retirements_;
    reached.served.insert(reached.served.end(), served_.begin(), served_.end());
    arena_.reset();
    EXPECT_EQ(device_.live_handles(), 0u);
    EXPECT_EQ(device_.live_mappings(), 0u);
    EXPECT_EQ(device_.reports(), "");
  }

 private:
  template <typename Call>
  Status call(Call call) {
    const Detached detached(device_, profile_.without_context);
    return call();
  }

  // ---- What the program does

  void one_step() {
    uint32_t kind = dice_.pick(1000);
    const auto is = [&](uint32_t share) {
      if (kind < share) return true;
      kind -= share;
      return false;
    };
    if (is(profile_.passes)) return pass_on();
    if (is(profile_.trims)) return trim();
    if (is(profile_.graphs)) return graph_step();
    if (is(4)) return eager_pool_step();
    if (is(4)) return set_limit();
    if (is(20)) {
      if (profile_.faults) dice_.inject_fault(device_);
      return;
    }
    if (is(60)) return use_together();
    if (dice_.pick(100) < 56) return allocate();
    free_one();
  }

  void allocate() {
    const CUstream stream = dice_.pick(streams_);
    const uint32_t pool = pool_of(stream);
    // A pool that graphs are replayed over serves only their captures.
    if (is_graph_pool(pool) && !graph_pool(pool).graphs.empty() && !is_capturing(stream)) return;
    if (pool == 0 && is_capturing(stream)) return;
    const size_t bytes = dice_.one_in(2) ? dice_.pick(usual_sizes_) : dice_.pick_size();
    void* pointer = nullptr;
    const uint64_t mapped = device_.live_mappings();
    const Status status = call([&] { return arena_->allocate(bytes, stream, &pointer); });
    served_.push_back(status.ok());
    retirements_ += device_.live_mappings() < mapped ? 1 : 0;
    if (!status.ok()) {
      EXPECT_EQ(pointer, nullptr);
      EXPECT_TRUE(status.code() == SPW_ERROR_OUT_OF_MEMORY || status.code() == SPW_ERROR_DRIVER)
          << status.text();
      return;
    }
    Block& block = live_.add({reinterpret_cast<uint64_t>(pointer), bytes, stream, stream, pool,
                              is_capturing(stream) ? captures_ : 0});
    EXPECT_EQ(arena_->stats().allocation.all.current, static_cast<int64_t>(live_.size()));
    // Memory fetched ahead of time: what comes next in it meets whatever the allocator left unordered.
    if (dice_.one_in(8)) return;
    use(block, stream);
  }

  void free_one() {
    if (live_.empty()) return;
    const auto block = live_.pick(dice_);
    if (dice_.one_in(2)) use(block->second, block->second.used_on);
    free(block);
  }

  // A block goes on to another stream, and there perhaps ends.
  void pass_on() {
    if (live_.empty()) return;
    const auto picked = live_.pick(dice_);
    Block& block = picked->second;
    const CUstream user = dice_.one_in(20) ? CU_STREAM_PER_THREAD : dice_.pick(streams_);
    if (!use(block, user)) return;
    if (dice_.one_in(4)) return read_and_free(picked);
    if (dice_.one_in(2)) free(picked);
  }

  // Several streams read at once, and none waits for the others.
  void read_and_free(LiveBlocks::Iterator picked) {
    const Block& block = picked->second;
    if (is_capturing(block.used_on) || is_graph_pool(block.pool)) return;
    for (int readers = 0; readers < 3; ++readers) {
      const CUstream reader = dice_.pick(streams_);
      if (is_capturing(reader)) continue;
      device_.clear_faults();
      if (reader != block.used_on) device_.order(block.used_on, reader);
      const SpwSimRange range{block.va, block.bytes, 0, 0};
      EXPECT_EQ(device_.touch_ranges(reader, &range, 1, SPW_SIM_READ), CUDA_SUCCESS);
      SPW_EXPECT_OK(call([&] { return Arena::record_stream(block.pointer(), reader); }));
    }
    free(picked);
  }

  // One grid over several blocks: bytes that two of them share would be seen through two addresses.
  void use_together() {
    if (live_.empty()) return;
    const CUstream on = dice_.pick(streams_);
    if (is_capturing(on)) return;
    std::vector<SpwSimRange> ranges;
    for (int i = 0; i < 12; ++i) {
      const Block& block = live_.pick(dice_)->second;
      if (block.used_on != on || is_graph_pool(block.pool)) continue;
      const auto same = [&](const SpwSimRange& range) { return range.ptr == block.va; };
      if (std::any_of(ranges.begin(), ranges.end(), same)) continue;
      ranges.push_back({block.va, block.bytes, 0, 0});
    }
    if (!ranges.empty()) {
      EXPECT_EQ(device_.touch_ranges(on, ranges.data(), ranges.size(), SPW_SIM_READ_WRITE), CUDA_SUCCESS);
    }
  }

  void trim() {
    const Status status = call([&] { return arena_->trim(); });
    EXPECT_TRUE(status.ok() || status.code() == SPW_ERROR_INVALID_STATE ||
                status.code() == SPW_ERROR_DRIVER || status.code() == SPW_ERROR_OUT_OF_MEMORY)
        << status.text();
    if (capturing_ != 0) {
      EXPECT_EQ(status.code(), SPW_ERROR_INVALID_STATE);
    }
  }

  void set_limit() {
    const uint64_t bytes = profile_.capacity_bytes * (25 + dice_.pick(100)) / 100;
    const bool is_soft = dice_.one_in(2);
    SPW_EXPECT_OK(call([&] { return is_soft ? arena_->set_soft_limit(bytes) : arena_->set_limit(bytes); }));
  }

  // A pool without graphs: like the default pool, only that nothing leaves it.
  void eager_pool_step() {
    const PoolId id{kEagerPool, 0};
    if (!eager_open_) {
      SPW_EXPECT_OK(call([&] {
        return arena_->begin_pool(id, [this](CUstream stream) { return pool_of(stream) == kEagerPool; });
      }));
      eager_open_ = true;
      return;
    }
    SPW_EXPECT_OK(call([&] { return arena_->end_pool(id); }));
    SPW_EXPECT_OK(call([&] { return arena_->release_pool(id); }));
    eager_open_ = false;
  }

  void graph_step() {
    const uint32_t number = 1 + dice_.pick(kGraphPools);
    GraphPool& pool = graph_pool(number);
    if (!pool.graphs.empty() && dice_.one_in(2)) return replay(pool);
    if (capturing_ == number) return dice_.one_in(3) ? end_capture() : fork();
    if (pool.open) {
      if (capturing_ == 0 && !dice_.one_in(4)) return begin_capture(number);
      SPW_EXPECT_OK(call([&] { return arena_->end_pool({number, 0}); }));
      pool.open = false;
    } else if (pool.uses > 0 && dice_.one_in(2)) {
      release(number);
    } else {
      SPW_EXPECT_OK(call([&] {
        return arena_->begin_pool({number, 0},
                                  [this, number](CUstream stream) { return pool_of(stream) == number; });
      }));
      pool.open = true;
      ++pool.uses;
    }
  }

  void begin_capture(uint32_t number) {
    const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                         CU_STREAM_CAPTURE_MODE_RELAXED};
    const CUstream origin = graph_pool(number).origin;
    device_.clear_faults();
    device_.begin_capture(origin, modes[dice_.pick(3)]);
    members_ = {origin};
    capturing_ = number;
    captured_uses_ = 0;
    ++captures_;
  }

  // Another stream takes part in the capture, until its end.
  void fork() {
    const CUstream side = dice_.pick(streams_);
    if (side == nullptr || is_capturing(side)) return;
    device_.clear_faults();
    device_.order(graph_pool(capturing_).origin, side);
    members_.insert(side);
  }

  void end_capture() {
    GraphPool& pool = graph_pool(capturing_);
    device_.clear_faults();
    for (const CUstream member : members_) {
      if (member != pool.origin) device_.order(member, pool.origin);
    }
    members_.clear();
    capturing_ = 0;
    const CUgraph graph = device_.end_capture(pool.origin);
    CUgraphExec exec = nullptr;
    ASSERT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(device_.driver->cuGraphDestroy(graph), CUDA_SUCCESS);
    pool.graphs.push_back(exec);
  }

  void replay(const GraphPool& pool) {
    const CUstream on = dice_.pick(streams_);
    if (is_capturing(on)) return;
    device_.clear_faults();
    EXPECT_EQ(device_.driver->cuStreamWaitEvent(on, pool.last_use, 0), CUDA_SUCCESS);
    EXPECT_EQ(device_.graph_launch(pool.graphs[dice_.pick(static_cast<uint32_t>(pool.graphs.size()))], on),
              CUDA_SUCCESS);
    EXPECT_EQ(device_.driver->cuEventRecord(pool.last_use, on), CUDA_SUCCESS);
    ++replays_;
  }

  // With replays still running, and blocks still live.
  void release(uint32_t number) {
    GraphPool& pool = graph_pool(number);
    for (CUgraphExec graph : pool.graphs) EXPECT_EQ(device_.graph_exec_destroy(graph), CUDA_SUCCESS);
    pool.graphs.clear();
    for (; pool.uses > 0; --pool.uses) SPW_EXPECT_OK(call([&] { return arena_->release_pool({number, 0}); }));
  }

  void finish() {
    device_.clear_faults();
    if (capturing_ != 0) end_capture();
    while (!live_.empty()) free(live_.begin());
    for (uint32_t number = 1; number <= kGraphPools; ++number) {
      if (graph_pool(number).open) SPW_EXPECT_OK(call([&] { return arena_->end_pool({number, 0}); }));
      release(number);
      EXPECT_EQ(device_.driver->cuEventDestroy(graph_pool(number).last_use), CUDA_SUCCESS);
    }
    if (eager_open_) eager_pool_step();
    SPW_EXPECT_OK(arena_->validate());
    SPW_EXPECT_OK(call([&] { return arena_->trim(); }));
    SPW_EXPECT_OK(arena_->validate());
    EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
    EXPECT_EQ(arena_->stats().requested_bytes.all.current, 0);
  }

  // ---- What a correct program does for it

  GraphPool& graph_pool(uint32_t number) { return graph_pools_[number - 1]; }
  static bool is_graph_pool(uint32_t number) { return number > 0 && number <= kGraphPools; }
  bool is_capturing(CUstream stream) const { return members_.count(stream) != 0; }

  // The pool that serves the stream now.
  uint32_t pool_of(CUstream stream) {
    if (is_capturing(stream)) return capturing_;
    for (uint32_t number = 1; number <= kGraphPools; ++number) {
      if (graph_pool(number).open && graph_pool(number).origin == stream) return number;
    }
    return eager_open_ && (stream == nullptr || stream == streams_[3]) ? kEagerPool : 0;
  }

  // Uses the block on the stream, in order after its last use, if a program may do that now.
  bool use(Block& block, CUstream on) {
    if (is_capturing(on)) {
      // A graph uses what was allocated in its capture; anything else may be gone when it is replayed.
      if (block.capture != captures_ || captured_uses_ == kMostCapturedUses) return false;
      ++captured_uses_;
    } else {
      const bool now_captured = capturing_ != 0 && block.capture == captures_;
      const bool foreign = block.capture != 0 && on != graph_pool(block.pool).origin;
      if (now_captured || foreign || is_capturing(block.used_on)) return false;
    }
    const bool replayed = is_graph_pool(block.pool) && !is_capturing(on);
    const Driver& driver = *device_.driver;
    if (block.used_on != on || replayed) device_.clear_faults();
    if (block.used_on != on) device_.order(block.used_on, on);
    CUevent last_use = replayed ? graph_pool(block.pool).last_use : nullptr;
    if (replayed) {
      EXPECT_EQ(driver.cuStreamWaitEvent(on, last_use, 0), CUDA_SUCCESS);
    }
    device_.touch(on, block.pointer(), block.bytes);
    if (replayed && on == graph_pool(block.pool).origin) {
      EXPECT_EQ(driver.cuEventRecord(last_use, on), CUDA_SUCCESS);
    }
    block.used_on = on;
    if (on != block.stream) SPW_EXPECT_OK(call([&] { return Arena::record_stream(block.pointer(), on); }));
    return true;
  }

  void free(LiveBlocks::Iterator block) {
    SPW_EXPECT_OK(call([&] { return Arena::free(block->second.pointer()); }));
    live_.remove(block);
    EXPECT_EQ(arena_->stats().allocation.all.current, static_cast<int64_t>(live_.size()));
  }

  const Profile profile_;
  Device device_;
  std::unique_ptr<Arena> arena_;
  Dice dice_;
  std::vector<CUstream> streams_;
  std::vector<size_t> usual_sizes_;  // which places are remembered for
  LiveBlocks live_;
  std::array<GraphPool, kGraphPools> graph_pools_;
  bool eager_open_ = false;
  uint32_t capturing_ = 0;      // the pool that is captured into; 0 while nothing is captured
  std::set<CUstream> members_;  // of the capture
  uint64_t captures_ = 0;
  uint64_t captured_uses_ = 0;
  uint64_t replays_ = 0;
  uint64_t retirements_ = 0;
  std::vector<bool> served_;
};

// The seed also chooses how late the device is.
std::string late_device(uint32_t seed) {
  return seed % 2 == 0 ? "completion:run-ahead" : "completion:late";
}

// What the profiles have in common is how the test scales.
Reached run_seeds(Profile profile) {
  Reached reached;
  for_each_seed(4, 5000, [&](uint32_t seed, uint64_t steps) {
    profile.device = late_device(seed);
    StreamsProgram(seed, profile).run(steps, reached);
  });
  return reached;
}

TEST(RandomStreams, MemoryIsShort) {
  const Reached reached = run_seeds({});
  EXPECT_GT(reached.stream_waits, 0);
  EXPECT_GT(reached.host_waits, 0);
  EXPECT_GT(reached.views, 0);
  EXPECT_GT(reached.ooms, 0);
  EXPECT_GT(reached.captures, 0u);
  EXPECT_GT(reached.replays, 0u);
}

// Nothing of the program orders one stream after another: only the allocator does, and a rare trim.
TEST(RandomStreams, BlocksStayOnTheirStreams) {
  Profile profile;
  profile.passes = profile.graphs = 0;
  profile.trims = 1;
  profile.faults = false;
  EXPECT_GT(run_seeds(profile).stream_waits, 0);
}

// A thread that is new has no context, and is served as any other.
TEST(RandomStreams, ThreadsAreServedAlikeWithoutAContext) {
  Profile with;
  with.capacity_bytes = 32 * kMiB;
  with.faults = false;  // they would strike elsewhere: changing contexts takes calls
  Profile without = with;
  without.without_context = true;
  for_each_seed(4, 5000, [&](uint32_t seed, uint64_t steps) {
    with.device = without.device = late_device(seed);
    Reached reached;
    StreamsProgram(seed, with).run(steps, reached);
    Reached reached_without;
    StreamsProgram(seed, without).run(steps, reached_without);
    EXPECT_EQ(reached_without, reached);
  });
}

TEST(RandomStreams, MemoryIsAmple) {
  Profile profile;
  profile.capacity_bytes = 256 * kMiB;
  run_seeds(profile);
}

TEST(RandomStreams, ViewsAreRetiredOften) {
  Profile profile;
  profile.capacity_bytes = 128 * kMiB;
  profile.options.most_mappings = 100;
  EXPECT_GT(run_seeds(profile).retirements, 0u);
}

TEST(RandomStreams, WithoutSharedEdges) {
  Profile profile;
  profile.options.share_edges = false;
  run_seeds(profile);
}

TEST(RandomStreams, WithoutVmm) {
  Profile profile;
  profile.options.use_vmm = false;
  profile.graphs = 0;  // cuMemAlloc is refused while a stream captures
  run_seeds(profile);
}

}  // namespace
}  // namespace spillway::test
