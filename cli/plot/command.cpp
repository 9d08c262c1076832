#include "cli/plot/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/plot/picture.h"
#include "cli/plot/timeline.h"
#include "cli/size.h"
#include "stats/size.h"

namespace spillway {
namespace {

constexpr size_t kColumns = 1000;

struct PlotOptions {
  std::string trace;
  std::vector<std::string> outputs;
  std::string by = "auto";
  std::string limit;
  int device = -1;
  PictureSize size;
  bool json = false;
};

struct ConvertOptions {
  std::string from;
  std::string to;
  int device = -1;
};

// Says what of a file was not there to read, which is no error of the rest.
void warn_of_gaps(const char* command, const Recording& recording) {
  if (!recording.missing.empty())
    std::fprintf(stderr, "spillway %s: %s: %s; what is before is shown\n", command, recording.path.c_str(),
                 recording.missing.c_str());
  if (recording.dropped > 0)
    std::fprintf(stderr, "spillway %s: %s: %llu records were lost while the program ran\n", command,
                 recording.path.c_str(), static_cast<unsigned long long>(recording.dropped));
}

Status check_name(const std::string& path) {
  for (const char* ending : {".png", ".svg", ".json"}) {
    if (path.ends_with(ending)) return {};
  }
  return Status::invalid_argument(
      fmt::format("--output {}: allowed: a name that ends in .svg, .png or .json", path));
}

std::string to_json(const PlotTimeline& timeline) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (size_t layer = 0; layer < timeline.layers.size(); ++layer) {
    layers.push_back({{"name", timeline.layers[layer]}, {"bytes", timeline.bytes[layer]}});
  }
  constexpr const char* kNames[] = {"mark", "retry", "out_of_memory", "evict"};
  nlohmann::ordered_json marks = nlohmann::ordered_json::array();
  for (const PlotMark& mark : timeline.marks) {
    marks.push_back(
        {{"kind", kNames[static_cast<size_t>(mark.kind)]}, {"time_ns", mark.time_ns}, {"text", mark.text}});
  }
  const nlohmann::ordered_json out{{"schema_version", 1},
                                   {"begin_ns", timeline.begin_ns},
                                   {"end_ns", timeline.end_ns},
                                   {"has_times", timeline.has_times},
                                   {"peak_live_bytes", timeline.peak_live_bytes},
                                   {"limit_bytes", timeline.limit_bytes},
                                   {"layers", layers},
                                   {"reserved_bytes", timeline.reserved_bytes},
                                   {"marks", marks}};
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

PlotBy by_of(const PlotOptions& options, const Recording& recording) {
  if (options.by == "size") return PlotBy::kSize;
  if (options.by == "stream") return PlotBy::kStream;
  return options.by == "tag" || !recording.tags.empty() ? PlotBy::kTag : PlotBy::kSize;
}

Result<std::string> contents(const std::string& path, const PlotTimeline& timeline, const PictureSize& size) {
  if (path.ends_with(".json")) return to_json(timeline);
  return draw(timeline, path.ends_with(".png") ? PictureFormat::kPng : PictureFormat::kSvg, size);
}

Status plot(const PlotOptions& options) {
  std::vector<std::string> outputs = options.outputs;
  if (outputs.empty() && !options.json) {
    const std::filesystem::path name = std::filesystem::path(options.trace).filename();
    outputs.push_back(name.string() + ".svg");
  }
  for (const std::string& path : outputs) {
    if (Status status = check_name(path); !status.ok()) return status;
  }
  const auto limit = parse_size(options.limit);
  if (!options.limit.empty() && !limit)
    return Status::invalid_argument(fmt::format("--limit {}: allowed: a size such as 24GiB", options.limit));
  auto recording = read_recording(options.trace, {options.device});
  if (!recording.ok()) return recording.take_status();
  warn_of_gaps("plot", recording.value());
  const int device = options.device >= 0 ? options.device : busiest_device(recording.value());
  auto timeline = make_timeline(recording.value(), device, by_of(options, recording.value()), kColumns);
  if (!timeline.ok())
    return Status(timeline.status().code(), fmt::format("{}: {}", options.trace, timeline.status().text()));
  if (limit) timeline->limit_bytes = *limit;
  for (const std::string& path : outputs) {
    Result<std::string> shown = contents(path, timeline.value(), options.size);
    if (!shown.ok()) return shown.take_status();
    if (Status status = write_file(path, shown.value()); !status.ok()) return status;
  }
  const bool is_written = std::any_of(outputs.begin(), outputs.end(),
                                      [](const std::string& path) { return path.ends_with(".json"); });
  if (options.json && !is_written) return write_stdout(to_json(timeline.value()));
  std::string written;
  for (const std::string& path : outputs) written += path + "\n";
  return write_stdout(written);
}

Status convert(const ConvertOptions& options) {
  const bool to_pickle = options.to.ends_with(".pickle");
  if (!to_pickle && !options.to.ends_with(".zst"))
    return Status::invalid_argument(fmt::format(
        "{}: allowed: a name that ends in .pickle (a PyTorch snapshot) or .zst (a trace)", options.to));
  auto recording = read_recording(options.from, {options.device});
  if (!recording.ok()) return recording.take_status();
  warn_of_gaps("convert", recording.value());
  // What cannot be put together is no run to convert.
  if (auto trace = to_trace(recording.value(), options.device); !trace.ok())
    return Status(trace.status().code(), fmt::format("{}: {}", options.from, trace.status().text()));
  return to_pickle ? write_file(options.to, to_snapshot(recording.value()))
                   : write_trace_file(recording.value(), options.to, SPILLWAY_VERSION);
}

int finish(const char* command, const Status& status) {
  return status.ok() ? 0 : complain(command, status);
}

void add_plot_options(CLI::App& command, PlotOptions& plots) {
  command.add_option("TRACE", plots.trace, "A trace, or a PyTorch memory snapshot")->required();
  command
      .add_option("--by", plots.by,
                  "What blocks on the device are told apart by; auto: tags if there are any")
      ->type_name("WHAT")
      ->check(one_of({"auto", "size", "tag", "stream"}))
      ->capture_default_str();
  command
      .add_option("--limit", plots.limit,
                  "A line at this size, or at a GPU's (h100-80), instead of the limit in the trace")
      ->type_name("SIZE")
      ->transform(name_of_gpu());
  command.add_option("--device", plots.device, "The device; the one with the most events unless told")
      ->type_name("N")
      ->check(whole(0, 127));
  command
      .add_option(
          "--output", plots.outputs,
          "The picture, .svg or .png, or .json for what it shows; may be given again (TRACE.svg here, "
          "unless told)")
      ->type_name("FILE")
      ->check(file_to_write())
      ->group("Answer");
  command.add_option("--width", plots.size.width, "Pixels")
      ->type_name("N")
      ->check(whole(400, 10000))
      ->capture_default_str()
      ->group("Answer");
  command.add_option("--height", plots.size.height, "Pixels")
      ->type_name("N")
      ->check(whole(300, 10000))
      ->capture_default_str()
      ->group("Answer");
  command.add_flag("--json", plots.json, "Print what the picture shows, as JSON")->group("Answer");
  set_examples(command,
               {{"A picture of a snapshot", "spillway plot step.pickle --output step.png"},
                {"By tag, with a GPU's limit", "spillway plot run.trace.zst --by tag --limit a100-40"}});
}

void add_convert_options(CLI::App& command, ConvertOptions& converts) {
  command.add_option("IN", converts.from, "A trace, or a PyTorch memory snapshot")->required();
  command.add_option("OUT", converts.to, ".pickle: a snapshot; .zst: a trace")->required();
  command.add_option("--device", converts.device, "Of a snapshot; the one with the most events unless told")
      ->type_name("N")
      ->check(whole(0, 127));
  set_examples(command, {{"For pytorch.org/memory_viz", "spillway convert run.trace.zst run.pickle"},
                         {"A snapshot as a small trace", "spillway convert step.pickle step.zst"}});
}

}  // namespace

std::function<std::optional<int>()> add_trace_commands(CLI::App& app) {
  auto plots = std::make_shared<PlotOptions>();
  auto converts = std::make_shared<ConvertOptions>();
  CLI::App* plot_command =
      app.add_subcommand("plot", "Draw a recorded run's memory over time, as SVG or PNG");
  CLI::App* convert_command = app.add_subcommand(
      "convert",
      "Write a recorded run in the other format: a PyTorch memory snapshot, or a trace of Spillway's");
  for (CLI::App* command : {plot_command, convert_command}) command->group("Look at what happened");
  add_plot_options(*plot_command, *plots);
  add_convert_options(*convert_command, *converts);
  return [=]() -> std::optional<int> {
    if (plot_command->parsed()) return finish("plot", plot(*plots));
    if (convert_command->parsed()) return finish("convert", convert(*converts));
    return std::nullopt;
  };
}

}  // namespace spillway
