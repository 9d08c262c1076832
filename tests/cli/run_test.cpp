// Shows what a replay does to its target, on the simulated driver: targets small enough to see through.
#include "cli/replay/run.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <type_traits>

#include "cli/replay/sim_device.h"
#include "cli/trace/snapshot.h"
#include "sim/cuda/sim_control.h"
#include "tests/support/snapshot_writer.h"

namespace spillway {
namespace {

// The command may not include the simulation's header; here both are seen.
static_assert(std::is_same_v<decltype(SimDevice::touch), decltype(&spwSimTouch)>);
static_assert(std::is_same_v<decltype(SimDevice::mark), decltype(&spwSimMark)>);
static_assert(std::is_same_v<decltype(SimDevice::complete_to), decltype(&spwSimCompleteTo)>);
static_assert(std::is_same_v<decltype(SimDevice::calls_of), decltype(&spwSimCalls)>);
static_assert(std::is_same_v<decltype(SimDevice::total_calls), decltype(&spwSimTotalCalls)>);
static_assert(std::is_same_v<decltype(SimDevice::entry_point), decltype(&spwSimEntryPoint)>);
static_assert(std::is_same_v<decltype(SimDevice::reset_counters), decltype(&spwSimResetCounters)>);
static_assert(std::is_same_v<decltype(SimDevice::host_waits), decltype(&spwSimHostWaits)>);
static_assert(std::is_same_v<decltype(SimDevice::stream_waits), decltype(&spwSimStreamWaits)>);
static_assert(std::is_same_v<decltype(SimDevice::virtual_ns), decltype(&spwSimVirtualNs)>);
static_assert(std::is_same_v<decltype(SimDevice::peak_physical_bytes), decltype(&spwSimPeakPhysicalBytes)>);
static_assert(std::is_same_v<decltype(SimDevice::peak_mappings), decltype(&spwSimPeakMappings)>);

using test::add_free;
using test::Event;

constexpr int64_t kMiB = 1 << 20;
constexpr int kNotReady = 600;

struct CUevent_st;

// The driver's own entry points, for the targets below.
struct Driver {
  int (*mem_alloc)(uint64_t*, size_t) = nullptr;
  int (*mem_free)(uint64_t) = nullptr;
  int (*event_create)(CUevent_st**, unsigned) = nullptr;
  int (*event_record)(CUevent_st*, CUstream_st*) = nullptr;
  int (*event_query)(CUevent_st*) = nullptr;
  int (*stream_wait)(CUstream_st*, CUevent_st*, unsigned) = nullptr;
};

class RunTest : public ::testing::Test {
 protected:
  void start(const std::string& settings) {
    void* library = dlopen(default_sim_path().c_str(), RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    int (*configure)(const char*) = nullptr;
    find(library, "spwSimConfigure", configure);
    find(library, "cuMemAlloc_v2", driver_.mem_alloc);
    find(library, "cuMemFree_v2", driver_.mem_free);
    find(library, "cuEventCreate", driver_.event_create);
    find(library, "cuEventRecord", driver_.event_record);
    find(library, "cuEventQuery", driver_.event_query);
    find(library, "cuStreamWaitEvent", driver_.stream_wait);
    ASSERT_EQ(configure(("backing:none,races:off," + settings).c_str()), 0);
    auto sim = SimDevice::open(default_sim_path());
    ASSERT_TRUE(sim.ok()) << sim.status().text();
    sim_ = sim.value();
  }

  template <typename Function>
  static void find(void* library, const char* name, Function*& out) {
    void* symbol = dlsym(library, name);
    ASSERT_NE(symbol, nullptr) << name;
    std::memcpy(&out, &symbol, sizeof out);
  }

  static ReplayProgram compiled(const std::vector<Event>& events, const std::vector<test::Live>& live = {}) {
    const auto trace = parse_snapshot(test::snapshot({events}, live));
    EXPECT_TRUE(trace.ok()) << trace.status().text();
    return compile(trace.value());
  }

  RunResult run(const ReplayProgram& program, const RunRequest& request, ReplayTarget& target) const {
    auto result = run_program(program, request, sim_, target);
    EXPECT_TRUE(result.ok()) << result.status().text();
    return result.ok() ? result.value() : RunResult();
  }

  Driver driver_;
  SimDevice sim_;
};

// Every block is a cuMemAlloc of its own.
class PlainTarget : public ReplayTarget {
 public:
  explicit PlainTarget(const Driver& driver) : driver_(driver) {}

  spw_status allocate(uint64_t bytes, CUstream_st*, void** out) override {
    uint64_t pointer = 0;
    if (driver_.mem_alloc(&pointer, bytes) != 0) return SPW_ERROR_OUT_OF_MEMORY;
    *out = reinterpret_cast<void*>(pointer);
    live_[*out] = bytes;
    live_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    return SPW_OK;
  }
  spw_status free(void* block) override {
    if (live_.count(block) != 1) return SPW_ERROR_INVALID_POINTER;
    live_bytes_ -= live_[block];
    live_.erase(block);
    return driver_.mem_free(reinterpret_cast<uint64_t>(block)) == 0 ? SPW_OK : SPW_ERROR_DRIVER;
  }
  spw_status record_stream(void*, CUstream_st*) override { return SPW_OK; }
  uint64_t peak_reserved_bytes() override { return peak_bytes_; }
  std::string last_error() override { return "not a live block"; }

  size_t live_blocks() const { return live_.size(); }

 private:
  const Driver& driver_;
  std::map<void*, uint64_t> live_;
  uint64_t live_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

std::vector<Event> three_blocks() {
  std::vector<Event> events = {{"alloc", 512, 4 * kMiB}, {"alloc", 1024, 6 * kMiB}};
  add_free(events, 512, 4 * kMiB);
  events.push_back({"alloc", 2048, 2 * kMiB});
  add_free(events, 4096, 10 * kMiB);
  return events;
}

TEST_F(RunTest, CountsTheCallsOfTheTargetAndNoOthers) {
  start("capacity:1GiB,completion:instant");
  PlainTarget target(driver_);
  const ReplayProgram program = compiled(three_blocks(), {{1024, 6 * kMiB}, {2048, 2 * kMiB}});
  const RunResult result = run(program, {}, target);
  EXPECT_TRUE(result.completed);
  EXPECT_EQ(result.driver_calls, 4u + 2u);
  EXPECT_EQ(result.calls_by_kind[static_cast<size_t>(CallKind::kMemAlloc)], 4u);
  EXPECT_EQ(result.calls_by_kind[static_cast<size_t>(CallKind::kMemFree)], 2u);
  EXPECT_EQ(result.calls_by_kind[static_cast<size_t>(CallKind::kOther)], 0u);
  EXPECT_EQ(result.host_waits, 2u) << "cuMemFree waits for the device";
  EXPECT_EQ(result.stream_waits, 0u);
  EXPECT_GT(result.virtual_driver_ns, 0u);
  EXPECT_EQ(result.peak_reserved_bytes, program.peak_live_bytes);
  EXPECT_EQ(result.peak_physical_bytes, program.peak_live_bytes);
  EXPECT_EQ(target.live_blocks(), 2u);
}

TEST_F(RunTest, EveryPassAsksForTheSame) {
  start("capacity:1GiB,completion:instant");
  PlainTarget target(driver_);
  RunRequest request;
  request.repeats = 5;
  const ReplayProgram program = compiled(three_blocks(), {{1024, 6 * kMiB}, {2048, 2 * kMiB}});
  const RunResult result = run(program, request, target);
  EXPECT_TRUE(result.completed);
  // A pass and the wrap before it: three allocations and two frees, two leftovers freed, the start brought
  // back.
  EXPECT_EQ(result.last_pass_driver_calls, 5u + 3u);
  EXPECT_EQ(result.last_pass_host_waits, 4u);
  EXPECT_EQ(result.driver_calls, 6u + 4 * 8u);
  EXPECT_EQ(result.peak_reserved_bytes, program.peak_live_bytes);
  EXPECT_EQ(target.live_blocks(), 2u);
}

// Every allocation lets its stream wait once.
class OrderedTarget final : public PlainTarget {
 public:
  explicit OrderedTarget(const Driver& driver) : PlainTarget(driver), driver_(driver) {}
  spw_status allocate(uint64_t bytes, CUstream_st* stream, void** out) override {
    CUevent_st* event = nullptr;
    if (driver_.event_create(&event, 2) != 0 || driver_.stream_wait(stream, event, 0) != 0) {
      return SPW_ERROR_DRIVER;
    }
    return PlainTarget::allocate(bytes, stream, out);
  }

 private:
  const Driver& driver_;
};

TEST_F(RunTest, WaitsOfStreamsAreCountedInAllAndInTheLastPass) {
  start("capacity:1GiB,completion:instant");
  OrderedTarget target(driver_);
  RunRequest request;
  request.repeats = 3;
  const RunResult result =
      run(compiled(three_blocks(), {{1024, 6 * kMiB}, {2048, 2 * kMiB}}), request, target);
  EXPECT_EQ(result.stream_waits, 4u + 2 * 4u) << "three allocations in a pass, and the start's block";
  EXPECT_EQ(result.last_pass_stream_waits, 4u);
}

TEST_F(RunTest, StopsAtTheFirstAllocationThatFindsNoMemory) {
  start("capacity:18MiB,completion:instant");
  PlainTarget target(driver_);
  const RunResult result = run(compiled(three_blocks(), {{1024, 6 * kMiB}, {2048, 2 * kMiB}}), {}, target);
  EXPECT_FALSE(result.completed);
  EXPECT_EQ(result.ooms, 1u);
  EXPECT_EQ(result.oom_bytes, static_cast<uint64_t>(6 * kMiB));
  EXPECT_EQ(result.oom_pass, 0u);
}

TEST_F(RunTest, MeasuresTimeInsteadOfCountingPasses) {
  start("capacity:1GiB,completion:instant");
  PlainTarget target(driver_);
  RunRequest request;
  request.measure_time = true;
  const RunResult result = run(compiled(three_blocks()), request, target);
  EXPECT_TRUE(result.completed);
  EXPECT_GT(result.ns_per_event, 0);
}

class BrokenTarget final : public PlainTarget {
 public:
  using PlainTarget::PlainTarget;
  spw_status free(void*) override { return SPW_ERROR_INVALID_POINTER; }
  std::string last_error() override { return "lost the block"; }
};

TEST_F(RunTest, AnyOtherFailureOfTheTargetIsAnError) {
  start("capacity:1GiB,completion:instant");
  BrokenTarget target(driver_);
  const auto result = run_program(compiled(three_blocks()), {}, sim_, target);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().text(), ::testing::HasSubstr("lost the block"));
}

class InvalidTarget final : public PlainTarget {
 public:
  using PlainTarget::PlainTarget;
  Status validate() override { return Status::internal("counters are off"); }
};

TEST_F(RunTest, ATargetThatDoesNotAddUpIsAnError) {
  start("capacity:1GiB,completion:instant");
  InvalidTarget target(driver_);
  const auto result = run_program(compiled(three_blocks()), {}, sim_, target);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().text(), "counters are off");
}

// Treats recorded streams as PyTorch does: an event at the free, asked at every allocation. Writes down what
// it sees: a for an allocation, f for a free, r for a free with a recorded stream, + where such a block
// became usable.
class EventTarget final : public ReplayTarget {
 public:
  explicit EventTarget(const Driver& driver) : driver_(driver) {}

  spw_status allocate(uint64_t, CUstream_st* stream, void** out) override {
    ask();
    log += 'a';
    *out = &blocks_[next_++];
    stream_of_[*out] = stream;
    return SPW_OK;
  }
  spw_status free(void* block) override {
    if (recorded_.count(block) == 0) {
      log += 'f';
      return SPW_OK;
    }
    log += 'r';
    CUstream_st* stream = recorded_[block];
    recorded_.erase(block);
    EXPECT_NE(stream, stream_of_[block]);
    if (late_events) {
      waiting_.push_back({nullptr, stream});
      return SPW_OK;
    }
    return record(stream);
  }
  spw_status record_stream(void* block, CUstream_st* stream) override {
    recorded_[block] = stream;
    return SPW_OK;
  }
  uint64_t peak_reserved_bytes() override { return 0; }
  std::string last_error() override { return ""; }

  std::string log;
  bool late_events = false;  // record the event when the block is asked for, not at the free

 private:
  struct Waiting {
    CUevent_st* event;
    CUstream_st* stream;
  };

  spw_status record(CUstream_st* stream) {
    CUevent_st* event = nullptr;
    if (driver_.event_create(&event, 2) != 0 || driver_.event_record(event, stream) != 0)
      return SPW_ERROR_DRIVER;
    waiting_.push_back({event, stream});
    return SPW_OK;
  }

  void ask() {
    std::vector<Waiting> still;
    for (Waiting waiting : waiting_) {
      if (waiting.event == nullptr) {
        driver_.event_create(&waiting.event, 2);
        driver_.event_record(waiting.event, waiting.stream);
      }
      if (driver_.event_query(waiting.event) == kNotReady) {
        still.push_back(waiting);
      } else {
        log += '+';
      }
    }
    waiting_ = still;
  }

  const Driver& driver_;
  char blocks_[64] = {};
  size_t next_ = 0;
  std::map<void*, CUstream_st*> stream_of_;
  std::map<void*, CUstream_st*> recorded_;
  std::vector<Waiting> waiting_;
};

// A pending free, an allocation before it completes, one after.
std::vector<Event> pending_free(int64_t stream) {
  return {{"alloc", 512, 1, stream},
          {"free_requested", 512, 1, stream},
          {"alloc", 1024, 1, stream},
          {"free_completed", 512, 1, stream},
          {"alloc", 2048, 1, stream}};
}

RunRequest run_ahead() {
  RunRequest request;
  request.completion = Completion::kRunAhead;
  return request;
}

TEST_F(RunTest, APendingFreeIsPendingUntilTheTraceShowsItCompleted) {
  for (const int64_t stream : {0, 5}) {
    start("capacity:1GiB,completion:run-ahead");
    EventTarget target(driver_);
    const RunResult result = run(compiled(pending_free(stream)), run_ahead(), target);
    EXPECT_EQ(target.log, "ara+a");
    EXPECT_EQ(result.host_waits, 0u);
  }
}

TEST_F(RunTest, WithInstantCompletionTheBlockIsHeldUntilTheTraceShowsItCompleted) {
  start("capacity:1GiB,completion:instant");
  EventTarget target(driver_);
  run(compiled(pending_free(0)), {}, target);
  EXPECT_EQ(target.log, "aafa") << "no stream could hold it: the replay does";
}

TEST_F(RunTest, AnEventThatIsRecordedLateOnAnIdleStreamIsNoReasonToWait) {
  start("capacity:1GiB,completion:run-ahead");
  EventTarget target(driver_);
  target.late_events = true;
  std::vector<Event> events = {{"alloc", 512, 1}, {"free_requested", 512, 1}};
  // Work elsewhere, then completion with nothing asked in between.
  add_free(events, 4096, 1);
  events.push_back({"free_completed", 512, 1});
  events.push_back({"alloc", 2048, 1});
  run(compiled(events), run_ahead(), target);
  EXPECT_EQ(target.log, "aarf+a") << "the first a is the block that is live at the start";
}

TEST_F(RunTest, WhatIsPendingAtTheEndOfAPassCompletesAtTheWrap) {
  start("capacity:1GiB,completion:run-ahead");
  EventTarget target(driver_);
  RunRequest request = run_ahead();
  request.repeats = 2;
  run(compiled({{"alloc", 512, 1}, {"free_requested", 512, 1}, {"alloc", 1024, 1}}), request, target);
  EXPECT_EQ(target.log, "araf+ara");
}

TEST_F(RunTest, OrdinaryWorkDoesNotCompleteByItself) {
  start("capacity:1GiB,completion:run-ahead");
  // An event behind the block's own work, as an allocator records one to lend a block to another stream.
  class Lender final : public PlainTarget {
   public:
    explicit Lender(const Driver& driver) : PlainTarget(driver), driver_(driver) {}
    spw_status allocate(uint64_t bytes, CUstream_st* stream, void** out) override {
      if (event_ != nullptr) code = driver_.event_query(event_);
      return PlainTarget::allocate(bytes, stream, out);
    }
    spw_status free(void*) override {
      driver_.event_create(&event_, 2);
      return driver_.event_record(event_, nullptr) == 0 ? SPW_OK : SPW_ERROR_DRIVER;
    }
    int code = -1;

   private:
    const Driver& driver_;
    CUevent_st* event_ = nullptr;
  };
  Lender target(driver_);
  std::vector<Event> events = {{"alloc", 512, 1}};
  add_free(events, 512, 1);
  events.push_back({"alloc", 1024, 1});
  run(compiled(events), run_ahead(), target);
  EXPECT_EQ(target.code, kNotReady);
}

}  // namespace
}  // namespace spillway
