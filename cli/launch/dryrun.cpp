#include "cli/launch/dryrun.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "cli/launch/attempt.h"
#include "cli/launch/child.h"
#include "cli/launch/dryrun_answer.h"
#include "cli/launch/dryrun_page.h"
#include "cli/launch/gpus.h"
#include "cli/launch/program.h"
#include "cli/launch/ranks.h"
#include "cli/output.h"
#include "stats/size.h"

namespace spillway {
namespace {

// A device of these sizes can be simulated.
constexpr uint64_t kLeastGpuBytes = uint64_t{2} << 20;
constexpr uint64_t kMostGpuBytes = uint64_t{16} << 40;

// Holds all that a command was asked for, checked.
struct DryrunQuestion {
  FixedParts fixed;
  std::vector<estimator::GpuMemory> gpus;  // the largest first; none: a size was given
  uint64_t capacity_bytes = 0;             // of the first run
  AttemptSetting setting;
};

Result<uint64_t> given_capacity(const DryrunChoices& choices) {
  const std::optional<uint64_t> bytes = parse_size(*choices.gpu_memory);
  if (!bytes.has_value() || *bytes < kLeastGpuBytes || *bytes > kMostGpuBytes) {
    return Status::invalid_argument(
        fmt::format("--gpu-memory '{}' is no size of a device; allowed: 2MiB to 16TiB, such as 80GiB",
                    *choices.gpu_memory));
  }
  return *bytes;
}

void set_environment(const DryrunChoices& choices) {
  // Where the environment hides every device, PyTorch does not ask the driver.
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
      visible != nullptr && (*visible == '\0' || *visible == '-')) {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  ::setenv("SPILLWAY_DRYRUN_VALUES", choices.no_bytes ? "none" : choices.values.c_str(), 1);
}

Result<DryrunQuestion> question_of(const DryrunChoices& choices, std::vector<std::string> program) {
  DryrunQuestion question;
  question.fixed = fixed_parts(choices.devices > 1 || choices.world_size > 1);
  if (choices.gpus.has_value()) {
    Result<std::vector<estimator::GpuMemory>> gpus = gpus_of(*choices.gpus, question.fixed);
    if (!gpus.ok()) return gpus.take_status();
    question.gpus = std::move(gpus.value());
    question.capacity_bytes = capacity_of(question.gpus.front(), question.fixed);
  } else {
    if (!choices.gpu_memory.has_value()) {
      return Status::invalid_argument(
          "how much memory has a device? --gpu-memory 80GiB, or GPUs by name: --gpu h100-80,a100-40");
    }
    Result<uint64_t> capacity = given_capacity(choices);
    if (!capacity.ok()) return capacity.take_status();
    question.capacity_bytes = capacity.value();
  }
  if (Status status = check_folder(choices.output); !status.ok()) return status;
  if (Status status = check_folders(choices.files); !status.ok()) return status;
  if (Status status = start_with_package(program); !status.ok()) return status;
  Result<std::string> libraries = preload_simulation(python_of(program));
  if (!libraries.ok()) return libraries.take_status();
  Result<int> ranks = choose_ranks(choices.ranks, choices.world_size, choices.devices, program);
  if (!ranks.ok()) return ranks.take_status();
  question.setting = {std::move(program), libraries.value(), ranks.value(),
                      choices.devices,    !choices.no_bytes, choices.files.any()};
  return question;
}

// Tells whether the answer for a device with so much follows from no run on a larger one: what was allocated
// would fit it, and what was reserved would not, of which an allocator gives back what it only keeps.
bool is_open(const Attempt& made, uint64_t capacity_bytes) {
  return made.verdict == DryrunVerdict::kFits &&
         most_bytes(made.results, "peak_allocated_bytes") <= capacity_bytes &&
         most_bytes(made.results, "peak_reserved_bytes") > capacity_bytes;
}

// Judges a run on a device of this size or a larger one.
GpuAnswer answer(const Attempt& made, const estimator::GpuMemory& gpu, const FixedParts& fixed) {
  if (made.verdict == DryrunVerdict::kOutOfMemory) return {gpu, estimator::Verdict::kNo, 0};
  if (made.verdict != DryrunVerdict::kFits) return {gpu, std::nullopt, 0};
  const uint64_t capacity = capacity_of(gpu, fixed);
  const uint64_t allocated = most_bytes(made.results, "peak_allocated_bytes");
  if (allocated > capacity) return {gpu, estimator::Verdict::kNo, allocated + fixed.bytes()};
  const uint64_t needed = most_bytes(made.results, "peak_reserved_bytes") + fixed.bytes();
  return {gpu, estimator::verdict(static_cast<double>(needed), gpu), needed};
}

int code_of(const Attempt& first, const std::vector<GpuAnswer>& answers) {
  const int code = exit_code(first.verdict, first.code);
  if (code != 0) return code;
  const bool some_unknown = std::any_of(answers.begin(), answers.end(),
                                        [](const GpuAnswer& one) { return !one.verdict.has_value(); });
  const bool some_no = std::any_of(answers.begin(), answers.end(), [](const GpuAnswer& one) {
    return one.verdict == estimator::Verdict::kNo;
  });
  if (some_no) return 2;
  if (!some_unknown || first.verdict != DryrunVerdict::kFits) return 0;
  return signal_after(first) != 0 ? 128 + signal_after(first) : 1;
}

// The program has stdout for itself.
Status write_report(const DryrunChoices& choices, const std::string& report) {
  if (!choices.output.empty()) return write_file(choices.output, report);
  std::fputs(report.c_str(), stderr);
  return {};
}

int say(const DryrunChoices& choices, const DryrunQuestion& question, const Attempt& first,
        const std::vector<GpuAnswer>& answers) {
  const std::string text = dryrun_text(first, question.fixed, answers);
  const std::string report = choices.json ? dryrun_json(first, question.fixed, answers).dump(2) + "\n" : text;
  if (const Status written = write_report(choices, report); !written.ok()) return complain(written);
  const int code = code_of(first, answers);
  if (!choices.files.any()) return code;
  const std::string program = name_of_program(question.setting.program);
  const bool says_where = !choices.json || !choices.output.empty();  // stderr has nothing but JSON else
  const Status written = write_snapshots(choices.files, first.results,
                                         dryrun_page(program, first, question.fixed, answers), says_where);
  if (written.ok()) return code;
  complain(written);
  return code == 0 ? 1 : code;
}

int run_on_gpus(const DryrunChoices& choices, const DryrunQuestion& question) {
  std::vector<Attempt> attempts;
  std::vector<GpuAnswer> answers;
  for (const estimator::GpuMemory& gpu : question.gpus) {
    const uint64_t capacity = capacity_of(gpu, question.fixed);
    if (attempts.empty() || is_open(attempts.back(), capacity)) {
      if (!attempts.empty() && signal_after(attempts.back()) != 0) {
        answers.push_back({gpu, std::nullopt, 0});
        continue;
      }
      if (question.gpus.size() > 1) std::fprintf(stderr, "spillway dryrun: on %s\n", gpu.name.c_str());
      Result<Attempt> made = attempt(question.setting, choices.allocator, capacity);
      if (!made.ok()) return complain(made.take_status());
      attempts.push_back(std::move(made.value()));
    }
    answers.push_back(answer(attempts.back(), gpu, question.fixed));
  }
  return say(choices, question, attempts.front(), answers);
}

int compare(const DryrunChoices& choices, const DryrunQuestion& question) {
  std::vector<Attempt> attempts;
  for (const std::string& allocator : kDryrunAllocators) {
    std::fprintf(stderr, "spillway dryrun: allocator %s\n", allocator.c_str());
    Result<Attempt> made = attempt(question.setting, allocator, question.capacity_bytes);
    if (!made.ok()) return complain(made.take_status());
    attempts.push_back(std::move(made.value()));
    if (signal_after(attempts.back()) != 0) break;
  }
  const std::string said =
      choices.json ? comparison_json(attempts, question.fixed).dump(2) + "\n" : comparison_text(attempts);
  if (const Status written = write_report(choices, said); !written.ok()) return complain(written);
  const int code = exit_code(attempts.front().verdict, attempts.front().code);
  return code == 0 && attempts.size() < kDryrunAllocators.size() ? 128 + signal_after(attempts.back()) : code;
}

}  // namespace

int dryrun(const DryrunChoices& choices, std::vector<std::string> program) {
  Result<DryrunQuestion> asked = question_of(choices, std::move(program));
  if (!asked.ok()) return complain(asked.take_status());
  const DryrunQuestion& question = asked.value();
  set_environment(choices);
  const Forwarding forwarding;  // to the report's last line
  if (choices.compare) return compare(choices, question);
  if (!question.gpus.empty()) return run_on_gpus(choices, question);
  Result<Attempt> made = attempt(question.setting, choices.allocator, question.capacity_bytes);
  if (!made.ok()) return complain(made.take_status());
  return say(choices, question, made.value(), {});
}

}  // namespace spillway
