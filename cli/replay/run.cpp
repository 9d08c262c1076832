#include "cli/replay/run.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <fmt/format.h>

#include "cli/replay/sim_device.h"

namespace spillway {

namespace {

struct KindRow {
  CallKind kind;
  const char* name;
  std::vector<const char*> entry_points;
};

const std::vector<KindRow>& kinds() {
  static const std::vector<KindRow> kRows = {
      {CallKind::kCreate, "create", {"cuMemCreate"}},
      {CallKind::kRelease, "release", {"cuMemRelease"}},
      {CallKind::kMap, "map", {"cuMemMap"}},
      {CallKind::kUnmap, "unmap", {"cuMemUnmap"}},
      {CallKind::kSetAccess, "set_access", {"cuMemSetAccess"}},
      {CallKind::kReserve, "reserve", {"cuMemAddressReserve", "cuMemAddressFree"}},
      {CallKind::kMemAlloc, "mem_alloc", {"cuMemAlloc"}},
      {CallKind::kMemFree, "mem_free", {"cuMemFree"}},
      {CallKind::kSynchronize,
       "synchronize",
       {"cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"}},
      {CallKind::kEventRecord, "event_record", {"cuEventRecord", "cuEventRecordWithFlags"}},
      {CallKind::kEventQuery, "event_query", {"cuEventQuery", "cuStreamQuery"}},
      {CallKind::kStreamWait, "stream_wait", {"cuStreamWaitEvent"}},
      {CallKind::kOther, "other", {}},
  };
  return kRows;
}

// The state of one replay: where each block is, and which work holds it.
class Replay {
 public:
  Replay(const ReplayProgram& program, const RunRequest& request, const SimDevice& sim, ReplayTarget& target)
      : program_(program),
        sim_(sim),
        target_(target),
        run_ahead_(request.completion == Completion::kRunAhead && !request.measure_time),
        instant_(request.completion == Completion::kInstant && !request.measure_time),
        pointers_(program.blocks.size(), nullptr),
        marks_(program.blocks.size(), 0),
        held_(program.blocks.size(), false) {}

  Status make_streams() {
    for (const uint64_t name : program_.streams) {
      if (name == 0) {
        streams_.push_back(nullptr);
        continue;
      }
      auto stream = sim_.create_stream();
      if (!stream.ok()) return stream.take_status();
      streams_.push_back(stream.value());
    }
    for (uint32_t i = 0; i < program_.helpers; ++i) {
      auto stream = sim_.create_stream();
      if (!stream.ok()) return stream.take_status();
      helpers_.push_back(stream.value());
    }
    return {};
  }

  // SPW_ERROR_OUT_OF_MEMORY at the first allocation that finds none.
  spw_status run(const std::vector<ReplayOperation>& operations) {
    for (const ReplayOperation& operation : operations) {
      const spw_status code = step(operation);
      if (code != SPW_OK) return code;
    }
    return SPW_OK;
  }

  // From the end of one pass to the start of the next.
  spw_status wrap() {
    if (run_ahead_) {
      for (CUstream_st* helper : helpers_) sim_.complete_to(helper, sim_.mark(helper));
    }
    for (uint32_t block = 0; instant_ && block < held_.size(); ++block) {
      const spw_status code = held_[block] ? let_go(block) : SPW_OK;
      if (code != SPW_OK) return code;
    }
    return run(program_.wrap);
  }

  uint64_t refused_bytes() const { return refused_bytes_; }

 private:
  // Where nothing completes by itself, a block's stream has work behind its allocation and in front of its
  // free, so that an event that the allocator records there has something to wait for.
  spw_status step(const ReplayOperation& operation) {
    const ReplayProgram::Block& block = program_.blocks[operation.block];
    void*& pointer = pointers_[operation.block];
    spw_status code = SPW_OK;
    switch (operation.kind) {
      case ReplayOperation::Kind::kAllocate:
        code = target_.allocate(block.bytes, streams_[block.stream], &pointer);
        if (code == SPW_ERROR_OUT_OF_MEMORY) refused_bytes_ = block.bytes;
        if (run_ahead_) sim_.touch(streams_[block.stream], nullptr, 0, 0);
        return code;
      case ReplayOperation::Kind::kFree:
        if (run_ahead_) sim_.touch(streams_[block.stream], nullptr, 0, 0);
        return target_.free(pointer);
      case ReplayOperation::Kind::kFreePending: {
        if (instant_) {
          held_[operation.block] = true;
          return SPW_OK;
        }
        CUstream_st* helper = helpers_[operation.helper];
        if (run_ahead_) {
          sim_.touch(streams_[block.stream], nullptr, 0, 0);
          sim_.touch(helper, nullptr, 0, 0);
        }
        code = target_.record_stream(pointer, helper);
        if (code == SPW_OK) code = target_.free(pointer);
        // Behind whatever the allocator recorded there, so that its event completes with the work.
        if (run_ahead_) marks_[operation.block] = sim_.mark(helper);
        return code;
      }
      case ReplayOperation::Kind::kComplete:
        if (instant_) return let_go(operation.block);
        if (run_ahead_) sim_.complete_to(helpers_[operation.helper], marks_[operation.block]);
        return SPW_OK;
    }
    return SPW_ERROR_INTERNAL;
  }

  // Where all work completes at once, no device can hold a block between its two frees: the replay does, and
  // frees it where the trace says that the work was done.
  spw_status let_go(uint32_t block) {
    held_[block] = false;
    return target_.free(pointers_[block]);
  }

  const ReplayProgram& program_;
  const SimDevice& sim_;
  ReplayTarget& target_;
  const bool run_ahead_;
  const bool instant_;
  std::vector<void*> pointers_;
  std::vector<uint64_t> marks_;
  std::vector<bool> held_;  // instant_ only: free requested, not completed
  std::vector<CUstream_st*> streams_;
  std::vector<CUstream_st*> helpers_;
  uint64_t refused_bytes_ = 0;
};

Status failure(ReplayTarget& target, spw_status code) {
  return Status(code, fmt::format("the allocator failed with code {}: {}", static_cast<int>(code),
                                  target.last_error()));
}

CallCounts counts_by_kind(const SimDevice& sim, uint64_t total) {
  CallCounts counts{};
  uint64_t known = 0;
  for (const KindRow& row : kinds()) {
    uint64_t& count = counts[static_cast<size_t>(row.kind)];
    count = row.kind == CallKind::kOther ? total - known : sim.calls(row.entry_points);
    known += count;
  }
  return counts;
}

uint64_t driver_calls(const SimDevice& sim) {
  uint64_t sum = 0;
  for (const KindRow& row : kinds()) {
    if (row.kind <= CallKind::kSynchronize) sum += sim.calls(row.entry_points);
  }
  return sum;
}

// Returns this thread's time, which other work on the machine cannot stretch.
double processor_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// Loops until a pass no longer calls the driver for memory, or kMostWarmUp times, then for as long as the
// clock needs; the median pass counts. A program that never settles is not waited for: both parts end after
// some seconds.
Result<double> time_passes(Replay& replay, const ReplayProgram& program, const SimDevice& sim,
                           ReplayTarget& target) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLeastWarmUp = 3;
  constexpr int kMostWarmUp = 30;
  constexpr size_t kLeast = 7;
  constexpr size_t kMost = 101;
  constexpr auto kEnough = std::chrono::milliseconds(200);
  constexpr auto kLongest = std::chrono::seconds(5);
  spw_status code = replay.run(program.start);
  if (code == SPW_OK) code = replay.run(program.pass);
  const auto loop = [&] {
    if (code == SPW_OK) code = replay.wrap();
    if (code == SPW_OK) code = replay.run(program.pass);
  };
  auto begin = Clock::now();
  for (int i = 0; i < kMostWarmUp && Clock::now() - begin < kLongest; ++i) {
    const uint64_t before = driver_calls(sim);
    loop();
    if (i + 1 >= kLeastWarmUp && driver_calls(sim) == before) break;
  }
  std::vector<double> passes;
  begin = Clock::now();
  while (code == SPW_OK && passes.size() < kMost &&
         (passes.size() < kLeast || Clock::now() - begin < kEnough) &&
         (passes.empty() || Clock::now() - begin < kLongest)) {
    const double start = processor_ns();
    loop();
    passes.push_back(processor_ns() - start);
  }
  if (code != SPW_OK) return failure(target, code);
  std::nth_element(passes.begin(), passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2),
                   passes.end());
  return passes[passes.size() / 2] / static_cast<double>(program.calls_per_pass + program.calls_per_wrap);
}

}  // namespace

const char* name_of(AllocatorKind kind) {
  switch (kind) {
    case AllocatorKind::kSpillway:
      return "spillway";
    case AllocatorKind::kNative:
      return "native";
    case AllocatorKind::kExpandable:
      return "expandable";
  }
  return "?";
}

const char* name_of(CallKind kind) {
  return kinds()[static_cast<size_t>(kind)].name;
}

Result<RunResult> run_program(const ReplayProgram& program, const RunRequest& request, const SimDevice& sim,
                              ReplayTarget& target) {
  Replay replay(program, request, sim, target);
  if (Status made = replay.make_streams(); !made.ok()) return made;
  sim.reset_counters();

  RunResult result;
  if (request.measure_time) {
    auto time = time_passes(replay, program, sim, target);
    if (!time.ok()) return time.take_status();
    result.ns_per_event = time.value();
  } else {
    spw_status code = replay.run(program.start);
    uint64_t calls_before = 0;
    uint64_t waits_before = 0;
    uint64_t stream_waits_before = 0;
    for (uint32_t pass = 0; code == SPW_OK && pass < std::max(1u, request.repeats); ++pass) {
      result.oom_pass = pass;
      calls_before = pass == 0 ? 0 : driver_calls(sim);
      waits_before = pass == 0 ? 0 : sim.host_waits();
      stream_waits_before = pass == 0 ? 0 : sim.stream_waits();
      if (pass > 0) code = replay.wrap();
      if (code == SPW_OK) code = replay.run(program.pass);
    }
    if (code == SPW_ERROR_OUT_OF_MEMORY) {
      result.ooms = 1;
      result.oom_bytes = replay.refused_bytes();
    } else if (code != SPW_OK) {
      return failure(target, code);
    }
    result.last_pass_driver_calls = driver_calls(sim) - calls_before;
    result.last_pass_host_waits = sim.host_waits() - waits_before;
    result.last_pass_stream_waits = sim.stream_waits() - stream_waits_before;
  }
  result.completed = result.ooms == 0;
  result.peak_reserved_bytes = target.peak_reserved_bytes();
  result.peak_physical_bytes = sim.peak_physical_bytes(0);
  result.metadata_bytes = target.metadata_bytes();
  result.peak_mappings = sim.peak_mappings();
  result.driver_calls = driver_calls(sim);
  result.calls_by_kind = counts_by_kind(sim, sim.total_calls());
  result.host_waits = sim.host_waits();
  result.stream_waits = sim.stream_waits();
  result.virtual_driver_ns = sim.virtual_ns();
  if (Status valid = target.validate(); !valid.ok()) return valid;
  return result;
}

}  // namespace spillway
