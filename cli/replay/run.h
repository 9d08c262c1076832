// One replay of a program: on a given target, or in a process of its own with a fresh simulated device.
//
// A replay stops at the first allocation that finds no memory, as a training run would. Counters are the
// simulated driver's, from the first allocation on; the replay itself makes no driver call after that.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/replay/program.h"
#include "cli/replay/target.h"
#include "driver/status.h"

namespace spillway {

struct SimDevice;

enum class AllocatorKind : uint8_t { kSpillway, kNative, kExpandable };
enum class Completion : uint8_t { kInstant, kRunAhead };
enum class SetAccessCost : uint8_t { kPerCall, kPerMapping };

const char* name_of(AllocatorKind kind);

// Calls by kind. Up to kSynchronize they manage memory or wait on the host: what is reported as driver calls.
// The rest orders streams and asks for state, which costs little and which work on several streams needs
// whatever the allocator does; it is reported apart. What belongs to no kind is "other".
enum class CallKind : uint8_t {
  kCreate,
  kRelease,
  kMap,
  kUnmap,
  kSetAccess,
  kReserve,
  kMemAlloc,
  kMemFree,
  kSynchronize,
  kEventRecord,
  kEventQuery,
  kStreamWait,
  kOther,
  kCount
};
const char* name_of(CallKind kind);
using CallCounts = std::array<uint64_t, static_cast<size_t>(CallKind::kCount)>;

// The page of the simulated device, which cannot have less.
inline constexpr uint64_t kLeastCapacityBytes = uint64_t{2} << 20;

struct RunRequest {
  AllocatorKind allocator = AllocatorKind::kSpillway;
  Completion completion = Completion::kInstant;
  SetAccessCost set_access_cost = SetAccessCost::kPerCall;
  bool dear_costs = false;
  std::string profile = "ordinary";  // Spillway's option
  uint64_t capacity_bytes = 0;
  uint32_t repeats = 1;
  // Instead of counting, measure the processor time of a pass: the program is looped with instant completion
  // until passes no longer call the driver for memory, then timed.
  bool measure_time = false;
  // The simulated driver to use; empty: default_sim_path().
  std::string sim_path;
};

// Plain data: it travels through a pipe.
struct RunResult {
  bool completed = false;  // every pass ran to its end
  uint64_t peak_reserved_bytes = 0;
  uint64_t peak_physical_bytes = 0;
  uint64_t peak_mappings = 0;
  uint64_t metadata_bytes = 0;  // at the end; 0 where the allocator does not tell
  uint64_t driver_calls = 0;    // those up to kSynchronize; so is last_pass_driver_calls
  CallCounts calls_by_kind{};
  uint64_t last_pass_driver_calls = 0;  // the last pass with the wrap before it
  uint64_t host_waits = 0;
  uint64_t last_pass_host_waits = 0;
  uint64_t stream_waits = 0;
  uint64_t last_pass_stream_waits = 0;
  uint64_t virtual_driver_ns = 0;
  double ns_per_event = 0;  // measure_time only
  uint64_t ooms = 0;
  uint64_t oom_bytes = 0;  // the request that found no memory
  uint64_t oom_pass = 0;
};

// Replays on a target in this process.
Result<RunResult> run_program(const ReplayProgram& program, const RunRequest& request, const SimDevice& sim,
                              ReplayTarget& target);

// Replays in a worker process; a crash of the worker is an error.
Result<RunResult> run_in_worker(const ReplayProgram& program, const RunRequest& request);

// All of them, at most `jobs` at a time; results in the order of the requests.
Result<std::vector<RunResult>> run_in_workers(const ReplayProgram& program,
                                              const std::vector<RunRequest>& requests, unsigned jobs);

}  // namespace spillway
