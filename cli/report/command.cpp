#include "cli/report/command.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/report/diff.h"
#include "cli/report/html.h"
#include "cli/report/job.h"
#include "cli/report/json.h"
#include "cli/report/perfetto.h"
#include "cli/report/read.h"
#include "cli/report/text.h"
#include "cli/size.h"
#include "stats/redact.h"
#include "stats/size.h"

namespace spillway {
namespace {

struct ReportChoices {
  std::vector<std::string> files;
  std::string html;
  std::string perfetto;
  std::string output;
  std::string fits;
  std::optional<int64_t> rank;
  size_t rows = 10;
  bool redact = false;
  bool no_redact = false;
  bool json = false;
};

struct DiffChoices {
  std::string before, after;
  std::string max_peak;
  std::string html;
  std::string output;
  std::optional<double> max_ratio;
  std::string of = "reserved";
  size_t rows = 10;
  bool redact = false;
  bool json = false;
};

// One line on stderr for each.
int complain(const char* command, std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::fprintf(stderr, "spillway %s: %s\n", command, text.c_str());
  return 1;
}

// Text of the outside shall not drive the terminal.
std::string printable(std::string text) {
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20 && letter != '\n') letter = '?';
  }
  return text;
}

// ---- report

Status write_shared(const JobReport& job, const ReportChoices& choices, const std::optional<uint64_t>& fits) {
  if (!choices.html.empty()) {
    nlohmann::ordered_json page = page_json(job, fits);
    if (!choices.no_redact) redact_json(page);
    const std::string title =
        job.is_one() ? "Memory of one process" : fmt::format("Memory of {} ranks", job.rows.size());
    if (Status status = write_and_say(choices.html, page_html(page, "Spillway: " + title, SPILLWAY_VERSION));
        !status.ok())
      return status;
  }
  if (!choices.perfetto.empty() && job.shown) {
    nlohmann::ordered_json trace = perfetto_json(*job.shown);
    if (!choices.no_redact) redact_json(trace);
    if (Status status = write_and_say(choices.perfetto, dump_json(trace, -1)); !status.ok()) return status;
  }
  return {};
}

std::string answer_of_report(const JobReport& job, const ReportChoices& choices,
                             const std::optional<uint64_t>& fits) {
  if (choices.json) {
    nlohmann::ordered_json out = report_json(job, fits);
    if (choices.redact) redact_json(out);
    return dump_json(out, 2);
  }
  const std::string text = printable(report_text(job, {fits, choices.rows}));
  return choices.redact ? redact_text(text, this_machine()) : text;
}

bool fits_nowhere(const JobReport& job, const std::optional<uint64_t>& fits) {
  return fits && job.shown && answer_of(*fits, job.shown->fits.after_evict) == FitsAnswer::kNo;
}

int report(const ReportChoices& choices) {
  Progress progress;
  JobOptions options;
  options.rank = choices.rank;
  options.progress = [&](size_t done, size_t all) { progress.bar("reading", done, all); };
  const JobReport job = report_job(choices.files, options);
  progress.clear();
  for (const std::string& complaint : job.complaints) complain("report", printable(complaint));
  if (job.rows.empty() || (choices.rank && !job.shown)) return 1;
  const std::optional<uint64_t> fits = parse_size(choices.fits);
  if (Status status = write_shared(job, choices, fits); !status.ok())
    return complain("report", status.text());
  if (Status status = write_answer(choices.output, answer_of_report(job, choices, fits)); !status.ok())
    return complain("report", status.text());
  if (!job.complaints.empty()) return 1;
  return fits_nowhere(job, fits) ? 2 : 0;
}

void add_report_options(CLI::App* command, ReportChoices& choices) {
  command
      ->add_option("DUMP", choices.files,
                   "Spillway dumps and traces, and PyTorch memory snapshots, of any number of ranks")
      ->required();
  const CLI::Option* html =
      command->add_option("--html", choices.html, "Write one self-contained page to this file")
          ->type_name("FILE")
          ->check(file_to_write())
          ->group("Answer");
  const CLI::Option* perfetto =
      command->add_option("--perfetto", choices.perfetto, "Write a trace for ui.perfetto.dev to this file")
          ->type_name("FILE")
          ->check(file_to_write())
          ->group("Answer");
  command
      ->add_option("--fits", choices.fits, "Say whether a request of this size would fit; exit code 2 if not")
      ->type_name("SIZE")
      ->check(size_of_memory());
  command
      ->add_option("--rank", choices.rank,
                   "The rank to report in full; else the one with the highest reserved peak")
      ->type_name("N")
      ->check(whole(0, INT64_MAX));
  command->add_option("--rows", choices.rows, "Of call sites, pools, streams and outliers, at most")
      ->type_name("N")
      ->check(whole(1, 1'000'000));
  command->add_flag("--redact", choices.redact, "No folders, host names and user names on stdout either")
      ->group("Answer");
  command->add_flag("--no-redact", choices.no_redact, "Keep them in the files of --html and --perfetto")
      ->check(goes_with({html, perfetto}))
      ->group("Answer");
  command->add_option("--output", choices.output, "Write the answer to this file instead of stdout")
      ->type_name("FILE")
      ->check(file_to_write())
      ->group("Answer");
  command->add_flag("--json", choices.json, "JSON instead of text")->group("Answer");
  set_examples(*command,
               {{"Which lines held the memory when it ran out?", "spillway report oom.json --html oom.html"},
                {"All ranks of a job, the third in full", "spillway report rank*.pickle --rank 3"}});
}

// ---- diff

// The view with the highest reserved peak.
Result<RankReport> read_for_diff(const std::string& path) {
  Result<std::vector<MemoryView>> views = read_views(path);
  if (!views.ok()) return views.take_status();
  for (MemoryView& view : views.value()) find_peaks(view);
  const auto most = std::max_element(
      views->begin(), views->end(),
      [](const MemoryView& a, const MemoryView& b) { return a.reserved_peak_bytes < b.reserved_peak_bytes; });
  return rank_report(std::move(*most));
}

int diff(const DiffChoices& choices) {
  Result<RankReport> before = read_for_diff(choices.before);
  Result<RankReport> after = read_for_diff(choices.after);
  std::string wrong;
  for (const auto* each : {&before, &after})
    if (!each->ok()) wrong += (wrong.empty() ? "" : "; ") + each->status().text();
  if (!wrong.empty()) return complain("diff", printable(wrong));
  const Diff changed = diff_of(before.value(), after.value());
  const std::vector<std::string> broken =
      exceeded(changed, {parse_size(choices.max_peak), choices.max_ratio, choices.of == "live"});
  if (!choices.html.empty()) {
    nlohmann::ordered_json page = change_page_json(before.value(), after.value(), changed, broken);
    redact_json(page);
    const std::string html = page_html(page, "Spillway: what changed", SPILLWAY_VERSION);
    if (Status status = write_and_say(choices.html, html); !status.ok())
      return complain("diff", status.text());
  }
  std::string text;
  if (choices.json) {
    nlohmann::ordered_json out = diff_json(changed, broken);
    if (choices.redact) redact_json(out);
    text = dump_json(out, 2);
  } else {
    text = printable(diff_text(changed, broken, choices.rows));
    if (choices.redact) text = redact_text(text, this_machine());
  }
  if (Status status = write_answer(choices.output, text); !status.ok())
    return complain("diff", status.text());
  return broken.empty() ? 0 : 2;
}

void add_diff_options(CLI::App* command, DiffChoices& choices) {
  command->add_option("BEFORE", choices.before, "A Spillway dump or trace, or a PyTorch memory snapshot")
      ->required();
  command->add_option("AFTER", choices.after, "Another one")->required();
  const CLI::Option* max_peak = command
                                    ->add_option("--max-peak", choices.max_peak,
                                                 "Exit code 2 where the second file's peak is above this "
                                                 "size, or does not fit this GPU (h100-80)")
                                    ->type_name("SIZE")
                                    ->transform(name_of_gpu())
                                    ->check(size_of_memory());
  const CLI::Option* max_ratio =
      command
          ->add_option(
              "--max-ratio", choices.max_ratio,
              "Exit code 2 where the second file's peak is above this share of the first one's, such as 1.02")
          ->type_name("RATIO")
          ->check(number(0.001, 1000));
  command->add_option("--of", choices.of, "Which peak these bound")
      ->type_name("PEAK")
      ->check(one_of({"reserved", "live"}))
      ->check(goes_with({max_peak, max_ratio}));
  command->add_option("--rows", choices.rows, "Of size classes and call sites, at most")
      ->type_name("N")
      ->check(whole(1, 1'000'000));
  command->add_flag("--redact", choices.redact, "No folders, host names and user names")->group("Answer");
  command
      ->add_option("--html", choices.html, "Write the flame graph of what changed to this file, as one page")
      ->type_name("FILE")
      ->check(file_to_write())
      ->group("Answer");
  command->add_option("--output", choices.output, "Write the answer to this file instead of stdout")
      ->type_name("FILE")
      ->check(file_to_write())
      ->group("Answer");
  command->add_flag("--json", choices.json, "JSON instead of text")->group("Answer");
  set_examples(
      *command,
      {{"What changed since yesterday's run?", "spillway diff yesterday.pickle today.pickle"},
       {"In CI: no peak more than 2 % above main's", "spillway diff main.json pr.json --max-ratio 1.02"}});
}

}  // namespace

std::function<std::optional<int>()> add_report_commands(CLI::App& app) {
  auto report_choices = std::make_shared<ReportChoices>();
  auto diff_choices = std::make_shared<DiffChoices>();
  CLI::App* reports =
      app.add_subcommand("report", "Say where every byte is, from dumps and snapshots of all ranks");
  CLI::App* diffs =
      app.add_subcommand("diff", "Say what changed between two dumps or snapshots, and hold it to bounds");
  for (CLI::App* command : {reports, diffs}) command->group("Look at what happened");
  add_report_options(reports, *report_choices);
  add_diff_options(diffs, *diff_choices);
  return [=]() -> std::optional<int> {
    if (reports->parsed()) return report(*report_choices);
    if (diffs->parsed()) return diff(*diff_choices);
    return std::nullopt;
  };
}

}  // namespace spillway
