#include "cli/replay/command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/replay/capacity_search.h"
#include "cli/replay/report.h"
#include "cli/size.h"
#include "cli/trace/recording.h"
#include "stats/size.h"

namespace spillway {

namespace {

// Passes that a comparison takes to reach the steady state, and that its counters are read in.
constexpr uint32_t kSteadyRepeats = 10;

struct Options {
  std::vector<std::string> traces;
  std::string capacity = "unlimited";
  std::string allocator = "spillway";
  std::string completion = "instant";
  std::string set_access_cost = "per-call";
  std::string costs = "cheap";
  std::string profile = "ordinary";
  std::string output;
  uint32_t repeats = 1;
  int device = -1;
  unsigned jobs = 0;
  bool json = false;
  bool compare = false;
};

enum class CapacityMode : uint8_t { kUnlimited, kMinimum, kBytes, kShare };

struct Capacity {
  CapacityMode mode = CapacityMode::kUnlimited;
  uint64_t bytes = 0;
  double share = 0;  // of peak live
};

Result<Capacity> parse_capacity(const std::string& text) {
  Capacity capacity;
  if (text == "unlimited") return capacity;
  if (text == "min") {
    capacity.mode = CapacityMode::kMinimum;
    return capacity;
  }
  if (!text.empty() && text.back() == '%') {
    // A percentage reads like a number of bytes.
    const auto hundredths = parse_size(text.substr(0, text.size() - 1) + "K");
    const double share = hundredths ? static_cast<double>(*hundredths) / 102400 : 0;
    if (text.find_first_not_of("0123456789.%") == std::string::npos && share > 0 && share <= 1000) {
      capacity.mode = CapacityMode::kShare;
      capacity.share = share;
      return capacity;
    }
  } else if (const auto bytes = parse_size(text)) {
    capacity.mode = CapacityMode::kBytes;
    capacity.bytes = *bytes;
    return capacity;
  }
  return Status::invalid_argument(fmt::format(
      "--capacity {}: allowed: min, unlimited, a size such as 24GiB, or a share of peak live such as 101%",
      text));
}

// Everything that is asked about one trace and one allocator.
class TraceReplay {
 public:
  TraceReplay(const Options& options, const Trace& trace, const ReplayProgram& program,
              AllocatorKind allocator, Progress& progress)
      : program_(program), progress_(progress) {
    base_.allocator = allocator;
    base_.completion = options.completion == "run-ahead" ? Completion::kRunAhead : Completion::kInstant;
    base_.set_access_cost =
        options.set_access_cost == "per-mapping" ? SetAccessCost::kPerMapping : SetAccessCost::kPerCall;
    base_.dear_costs = options.costs == "dear";
    base_.profile = options.profile;
    base_.repeats = options.repeats;
    // Room for the worst of the peers, which reserves less than half again as much as is live.
    base_.capacity_bytes = 4 * program.peak_live_bytes + (uint64_t{4} << 30);
    jobs_ = options.jobs != 0 ? options.jobs : std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
    row_.trace = trace.path;
    row_.device = trace.device;
    row_.devices_with_events = trace.devices_with_events;
    row_.allocator = allocator;
    row_.completion = base_.completion;
    row_.repeats = base_.repeats;
    row_.events = program.calls_per_pass;
    row_.peak_live_bytes = program.peak_live_bytes;
  }

  Result<ReplayRow> run(const Capacity& capacity) {
    Status status = capacity.mode == CapacityMode::kMinimum ? search() : at_capacity(capacity);
    if (status.ok()) status = measure_time();
    if (!status.ok()) return status;
    return row_;
  }

 private:
  std::string label() const {
    return fmt::format("{} {}", std::filesystem::path(row_.trace).filename().string(),
                       name_of(row_.allocator));
  }

  Status one(const RunRequest& request, RunResult* out) {
    auto result = run_in_worker(program_, request);
    if (!result.ok()) return result.take_status();
    *out = result.value();
    return {};
  }

  Status at_capacity(const Capacity& capacity) {
    progress_.show(label());
    RunRequest request = base_;
    if (capacity.mode == CapacityMode::kBytes) request.capacity_bytes = capacity.bytes;
    if (capacity.mode == CapacityMode::kShare) {
      request.capacity_bytes = std::max<uint64_t>(
          1, static_cast<uint64_t>(capacity.share * static_cast<double>(row_.peak_live_bytes)));
    }
    if (capacity.mode != CapacityMode::kUnlimited) row_.capacity_bytes = request.capacity_bytes;
    if (request.capacity_bytes < kLeastCapacityBytes) {
      return Status::invalid_argument(fmt::format(
          "--capacity: {} is less than a device can have; allowed: at least 2MiB, the page in which "
          "a device gives its memory",
          format_size(request.capacity_bytes)));
    }
    return one(request, &row_.run);
  }

  // The smallest capacity at which runs in this mode complete, with no host wait where that is asked.
  Status smallest(Completion completion, bool stall_free, RunResult* unlimited,
                  std::optional<uint64_t>* out) {
    RunRequest request = base_;
    request.completion = completion;
    const auto good = [&](const RunResult& run) {
      return run.completed && (!stall_free || run.host_waits == 0);
    };
    const std::string what = fmt::format("{}: {} capacity", label(), stall_free ? "stall-free" : "minimum");
    progress_.show(what);
    if (Status status = one(request, unlimited); !status.ok()) return status;
    if (!good(*unlimited)) return {};

    const CapacityGrid grid{program_.peak_live_bytes};
    const uint64_t held = std::max(unlimited->peak_physical_bytes, unlimited->peak_reserved_bytes);
    const uint64_t points = grid.first_from(held) + 1;
    uint64_t done = 0;
    const auto probe = [&](const std::vector<uint64_t>& capacities) -> Result<std::vector<bool>> {
      progress_.bar(what, done, points);
      std::vector<RunRequest> requests;
      for (const uint64_t capacity : capacities) {
        requests.push_back(request);
        requests.back().capacity_bytes = capacity;
      }
      auto results = run_in_workers(program_, requests, jobs_);
      if (!results.ok()) return results.take_status();
      std::vector<bool> outcomes;
      for (const RunResult& run : results.value()) outcomes.push_back(good(run));
      done += capacities.size();
      return outcomes;
    };
    auto found = smallest_capacity(grid, held, jobs_, probe);
    if (!found.ok()) return found.take_status();
    *out = found.value();
    return {};
  }

  Status search() {
    row_.searched = true;
    RunResult unlimited;
    RunResult unlimited_run_ahead;
    Status status = smallest(Completion::kInstant, false, &unlimited, &row_.min_capacity_bytes);
    if (status.ok()) {
      status = smallest(Completion::kRunAhead, true, &unlimited_run_ahead, &row_.stall_free_capacity_bytes);
    }
    // With work still running a block changes hands at its free, behind a device-side wait, before it is
    // complete, so that run-ahead can take less memory than it takes to complete at once. A capacity counts
    // only where both complete.
    if (!row_.min_capacity_bytes) row_.stall_free_capacity_bytes.reset();
    if (row_.stall_free_capacity_bytes) {
      row_.stall_free_capacity_bytes = std::max(*row_.stall_free_capacity_bytes, *row_.min_capacity_bytes);
    }
    RunRequest request = base_;
    if (row_.min_capacity_bytes) request.capacity_bytes = *row_.min_capacity_bytes;
    row_.capacity_bytes = row_.min_capacity_bytes;
    if (status.ok()) status = one(request, &row_.run);
    request = base_;
    if (status.ok()) status = one(request, &unlimited);
    row_.unlimited_peak_reserved_bytes = unlimited.peak_reserved_bytes;
    row_.unlimited_driver_calls = unlimited.driver_calls;
    request.repeats = std::max(kSteadyRepeats, request.repeats);
    if (status.ok()) status = one(request, &unlimited);
    row_.unlimited_steady_driver_calls = unlimited.last_pass_driver_calls;
    return status;
  }

  Status measure_time() {
    progress_.show(label() + ": time per event");
    RunRequest request = base_;
    request.measure_time = true;
    RunResult result;
    if (Status status = one(request, &result); !status.ok()) return status;
    row_.ns_per_event = result.ns_per_event;
    return {};
  }

  const ReplayProgram& program_;
  Progress& progress_;
  unsigned jobs_ = 1;
  RunRequest base_;
  ReplayRow row_;
};

std::vector<AllocatorKind> allocators(const Options& options) {
  if (options.compare) return {AllocatorKind::kSpillway, AllocatorKind::kNative, AllocatorKind::kExpandable};
  if (options.allocator == "native") return {AllocatorKind::kNative};
  if (options.allocator == "expandable") return {AllocatorKind::kExpandable};
  return {AllocatorKind::kSpillway};
}

Result<std::vector<ReplayRow>> replay_all(const Options& options) {
  auto capacity = parse_capacity(options.compare ? "min" : options.capacity);
  if (!capacity.ok()) return capacity.take_status();
  // All input is read before anything runs, so that a bad file at the end of a list costs no waiting.
  std::vector<Trace> traces;
  for (const std::string& path : options.traces) {
    auto trace = read_trace(path, {options.device});
    if (!trace.ok()) return trace.take_status();
    traces.push_back(std::move(trace.value()));
  }
  Progress progress;
  std::vector<ReplayRow> rows;
  for (const Trace& trace : traces) {
    const ReplayProgram program = compile(trace);
    for (const AllocatorKind allocator : allocators(options)) {
      auto row = TraceReplay(options, trace, program, allocator, progress).run(capacity.value());
      if (!row.ok()) {
        return Status(row.status().code(), fmt::format("{}: {}", trace.path, row.status().text()));
      }
      rows.push_back(std::move(row.value()));
    }
  }
  return rows;
}

int run_replay(const Options& options) {
  auto rows = replay_all(options);
  if (!rows.ok()) return complain("replay", rows.status());
  const std::string text = options.json ? to_json(rows.value()) : to_text(rows.value());
  const Status written = write_answer(options.output, text);
  if (!written.ok()) return complain("replay", written);
  const bool out_of_memory = std::any_of(rows->begin(), rows->end(), [](const ReplayRow& row) {
    return row.run.ooms > 0 || (row.searched && !row.min_capacity_bytes);
  });
  return out_of_memory ? 2 : 0;
}

void add_device_options(CLI::App& command, Options& options) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->group("What is run");
  };
  CLI::Option* capacity =
      add("--capacity", options.capacity,
          "Device memory: unlimited, a size (24GiB), a GPU (h100-80), a share of peak live (101%), or min: "
          "search for "
          "the smallest (exit code 2 where a trace runs out of memory)")
          ->type_name("SIZE")
          ->transform(name_of_gpu())
          ->capture_default_str();
  add("--repeat", options.repeats, "Run the trace this many times in a loop")
      ->type_name("N")
      ->check(whole(1, 1000000))
      ->capture_default_str();
  CLI::Option* allocator =
      add("--allocator", options.allocator, "Spillway, or PyTorch's own without or with expandable segments")
          ->type_name("NAME")
          ->check(one_of({"spillway", "native", "expandable"}))
          ->capture_default_str();
  add("--completion", options.completion,
      "When enqueued work completes: at once, or not before the host waits for it")
      ->type_name("WHEN")
      ->check(one_of({"instant", "run-ahead"}))
      ->capture_default_str();
  add("--profile", options.profile, "Spillway's option profile")
      ->type_name("NAME")
      ->check(one_of({"ordinary", "careful", "plain"}))
      ->capture_default_str();
  add("--device", options.device, "Device of the snapshot; the one with the most events unless told")
      ->type_name("N")
      ->check(whole(0, 1023));
  command
      .add_flag("--compare", options.compare,
                "Spillway, native and expandable side by side, with --capacity min")
      ->excludes(capacity)
      ->excludes(allocator)
      ->group("What is run");
}

void add_cost_options(CLI::App& command, Options& options) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->group("How it is counted");
  };
  add("--set-access-cost", options.set_access_cost,
      "Reading of the published cost of cuMemSetAccess in virtual_driver_ns")
      ->type_name("KIND")
      ->check(one_of({"per-call", "per-mapping"}))
      ->capture_default_str();
  add("--costs", options.costs,
      "Published run whose costs of calls make virtual_driver_ns: the cheap or the dear one")
      ->type_name("KIND")
      ->check(one_of({"cheap", "dear"}))
      ->capture_default_str();
  add("--jobs", options.jobs, "Replays at a time in a capacity search; one for each processor unless told")
      ->type_name("N")
      ->check(whole(1, 256));
}

}  // namespace

std::function<std::optional<int>()> add_replay_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "replay",
      "Run recorded memory traces through an allocator on a simulated device and report what it took");
  command->group("Look at what happened");
  command
      ->add_option("TRACE", options->traces,
                   "Traces of Spillway's, or PyTorch memory snapshots (.pickle, .pickle.gz)")
      ->required();
  add_device_options(*command, *options);
  add_cost_options(*command, *options);
  command->add_option("--output", options->output, "Write the answer to this file instead of stdout")
      ->type_name("FILE")
      ->check(file_to_write())
      ->group("Answer");
  command->add_flag("--json", options->json, "An array with one object for each trace")->group("Answer");
  set_examples(*command,
               {{"What would the smallest device be?", "spillway replay step.pickle --capacity min"},
                {"Beside PyTorch's own allocators", "spillway replay step.pickle --compare"}});
  return [options, command]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    return run_replay(*options);
  };
}

}  // namespace spillway
