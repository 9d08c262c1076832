#include "cli/estimate/html.h"

#include "cli/size.h"
#include "estimator/reserved.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <vector>

namespace spillway {
namespace {

using estimator::Bucket;
using estimator::Buckets;
using estimator::Estimate;
using estimator::GpuMemory;
using estimator::Phase;
using estimator::RankClass;

constexpr double kBarHeight = 22;  // pixels
constexpr double kRowHeight = 34;

// Told apart by people who do not see all colours (Okabe and Ito).
constexpr std::array<const char*, 12> kColours = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                  "#56b4e9", "#d55e00", "#f0e442", "#999999",
                                                  "#882255", "#44aa99", "#6a51a3", "#ddcc77"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string gib(double bytes) {
  return fmt::format("{:.3f} GiB", bytes / kGiB);
}

// Rows of bars, each with its name: beside it on a screen, above it on a phone. Bars and the lines of the
// GPUs' sizes are shares of the axis, in percent, so that a picture is as wide as the page.
class Chart {
 public:
  Chart(double most_bytes, const Question& question) : most_(most_bytes) {
    for (const GpuMemory& gpu : question.gpus) {
      if (gpu.bytes < 1.5 * most_bytes) most_ = std::max(most_, gpu.bytes);
    }
    for (const GpuMemory& gpu : question.gpus) {
      (gpu.bytes <= most_ ? gpus_ : beyond_).push_back(gpu);
    }
    std::sort(gpus_.begin(), gpus_.end(),
              [](const GpuMemory& a, const GpuMemory& b) { return a.bytes < b.bytes; });
  }

  double share(double bytes) const { return 100 * bytes / most_; }

  static std::string open(std::string_view title) {
    return fmt::format("<div class=\"chart\" role=\"img\" aria-label=\"{}\">\n", title);
  }

  std::string row(std::string_view name, const std::string& bars) const {
    std::string lines;
    for (const GpuMemory& gpu : gpus_) lines += line(gpu, kRowHeight);
    return drawn(escaped(name), kRowHeight, bars + lines);
  }

  // Says what the lines are, and which GPUs have none as they end far beyond the bars.
  std::string note() const {
    std::string out = gpus_.empty() ? "" : " The lines are what GPUs have.";
    for (const GpuMemory& gpu : beyond_)
      out += escaped(fmt::format(" {} has {}, which is beyond the picture.", gpu.name, gib(gpu.bytes)));
    return out;
  }

  // Below the bars stands the axis; below that each GPU's name at the end of its line, below those before it:
  // on a phone any two would meet.
  std::string close() const {
    std::string names = ticks();
    double y = kTicksHeight;
    for (const GpuMemory& gpu : gpus_) {
      y += 14;
      const double x = share(gpu.bytes);
      names +=
          line(gpu, y) + fmt::format("<text x=\"{:.2f}%\" y=\"{}\" dx=\"{}\" text-anchor=\"{}\">{}</text>\n",
                                     x, y, x < 50 ? 4 : -4, x < 50 ? "start" : "end",
                                     escaped(fmt::format("{}, {}", gpu.name, gib(gpu.bytes))));
    }
    return drawn("", y + 4, names) + "</div>\n";
  }

 private:
  static constexpr double kTicksHeight = 18;

  // Round sizes, three to six of them.
  std::string ticks() const {
    const double most = most_ / kGiB;
    if (most <= 0) return "";
    double step = std::pow(10, std::floor(std::log10(most / 3)));
    step *= most / step >= 15 ? 5 : most / step >= 6 ? 2 : 1;
    std::string out;
    for (int i = 0; i * step <= most; ++i) {
      const double x = share(i * step * kGiB);
      const bool is_crossed = std::any_of(gpus_.begin(), gpus_.end(), [&](const GpuMemory& gpu) {
        return std::abs(share(gpu.bytes) - x) < 3;
      });
      if (is_crossed) continue;
      out += fmt::format(
          "<line x1=\"{0:.2f}%\" y1=\"0\" x2=\"{0:.2f}%\" y2=\"4\" class=\"tick\"/>"
          "<text x=\"{0:.2f}%\" y=\"15\" class=\"tick\" text-anchor=\"{1}\">{2:g}{3}</text>\n",
          x,
          i == 0   ? "start"
          : x > 95 ? "end"
                   : "middle",
          i * step, i == 0 ? " GiB" : "");
    }
    return out;
  }

  std::string line(const GpuMemory& gpu, double height) const {
    return fmt::format("<line x1=\"{0:.2f}%\" y1=\"0\" x2=\"{0:.2f}%\" y2=\"{1}\" class=\"gpu\"/>\n",
                       share(gpu.bytes), height);
  }

  static std::string drawn(const std::string& name, double height, const std::string& inside) {
    return fmt::format("<div class=\"row\"><span>{}</span><svg height=\"{}\">\n{}</svg></div>\n", name,
                       height, inside);
  }

  std::vector<GpuMemory> gpus_;    // that are on the axis, the smallest first
  std::vector<GpuMemory> beyond_;  // the others
  double most_;
};

// `from` and `width`: shares of the axis.
std::string bar(double from, double width, const char* colour, std::string_view title) {
  return fmt::format(
      "<rect x=\"{:.2f}%\" y=\"{}\" width=\"{:.2f}%\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>\n",
      from, (kRowHeight - kBarHeight) / 2, std::max(0.0, width), kBarHeight, colour, escaped(title));
}

struct LegendRow {
  const char* colour;
  std::string text;
};

std::string legend(const std::vector<LegendRow>& rows) {
  std::string out = "<p class=\"legend\">";
  for (const LegendRow& row : rows)
    out += fmt::format("<span><i style=\"background:{}\"></i>{}</span> ", row.colour, escaped(row.text));
  return out + "</p>\n";
}

// One bar for each phase of a step: what is held between steps, and what comes on top. The sum of both stands
// with the name, as on a bar it would seem to be that of the part it lies on.
std::string phases_picture(const RankClass& rank, const Chart& chart) {
  std::string out = Chart::open("memory by phase");
  for (const Phase& phase : rank.phases) {
    const double held = std::min(phase.bytes, rank.steady_bytes);
    out +=
        chart.row(fmt::format("{}: {}", phase.name, gib(phase.bytes)),
                  bar(0, chart.share(held), kColours[0], fmt::format("held between steps: {}", gib(held))) +
                      bar(chart.share(held), chart.share(phase.bytes - held), kColours[1],
                          fmt::format("only now: {}", gib(phase.bytes - held))));
  }
  return out + chart.close() +
         legend({{kColours[0], "held between steps"}, {kColours[1], "only in this phase"}});
}

// One colour for a bucket of a name, wherever it is.
class BucketColours {
 public:
  explicit BucketColours(const Estimate& estimate) {
    add(estimate.peak());
    for (const RankClass& rank : estimate.ranks) add(rank);
  }

  const char* of(const Bucket& bucket) const {
    const auto found = std::find(names_.begin(), names_.end(), bucket.name);
    return kColours[static_cast<size_t>(found - names_.begin()) % kColours.size()];
  }
  std::string legend_text() const {
    std::vector<LegendRow> rows;
    for (size_t i = 0; i < names_.size(); ++i) rows.push_back({kColours[i % kColours.size()], names_[i]});
    return legend(rows);
  }

 private:
  void add(const RankClass& rank) {
    for (const Buckets* buckets : {&rank.steady, &rank.peak}) {
      for (const Bucket& bucket : *buckets) {
        const bool is_known = std::find(names_.begin(), names_.end(), bucket.name) != names_.end();
        if (bucket.bytes > 0 && !is_known) names_.emplace_back(bucket.name);
      }
    }
  }

  std::vector<std::string> names_;
};

// The buckets of one rank class, one after the other.
std::string buckets_bars(const RankClass& rank, const Chart& chart, const BucketColours& colours) {
  std::string out;
  double from = 0;
  for (const Buckets* buckets : {&rank.steady, &rank.peak}) {
    for (const Bucket& bucket : *buckets) {
      if (bucket.bytes <= 0) continue;
      out += bar(from, chart.share(bucket.bytes), colours.of(bucket),
                 fmt::format("{}: {}", bucket.name, gib(bucket.bytes)));
      from += chart.share(bucket.bytes);
    }
  }
  return out;
}

std::string ranks_picture(const Estimate& estimate, const Chart& chart, const BucketColours& colours) {
  std::string out = Chart::open("buckets by rank class");
  for (const RankClass& rank : estimate.ranks)
    out += chart.row(fmt::format("stage {}: {}", rank.stage, gib(rank.peak_bytes)),
                     buckets_bars(rank, chart, colours));
  return out + chart.close() + colours.legend_text();
}

std::string bucket_table(const RankClass& rank, const BucketColours& colours) {
  std::string out =
      "<div "
      "class=\"scroll\"><table>\n<tr><th></th><th>bucket</th><th>GiB</th><th>formula</th><th>source</th></"
      "tr>\n";
  for (const Buckets* buckets : {&rank.steady, &rank.peak}) {
    for (const Bucket& bucket : *buckets) {
      const char* shown = bucket.bytes > 0 ? colours.of(bucket) : "none";
      out += fmt::format(
          "<tr><td style=\"background:{}\"></td><td>{}</td><td "
          "class=\"number\">{:.3f}</td><td>{}</td><td>{}</td>"
          "</tr>\n",
          shown, escaped(bucket.name), bucket.bytes / kGiB, escaped(bucket.formula), escaped(bucket.source));
    }
    const bool steady = buckets == &rank.steady;
    out +=
        fmt::format("<tr class=\"total\"><td></td><td>= {}</td><td class=\"number\">{:.3f}</td></tr>\n",
                    steady ? "between steps" : "peak", (steady ? rank.steady_bytes : rank.peak_bytes) / kGiB);
  }
  return out + "</table></div>\n";
}

std::string verdicts(const Question& question, const Estimate& estimate) {
  const double needed = estimator::needed_bytes(question.run, estimate);
  std::string out = "<ul>\n";
  for (const GpuMemory& gpu : question.gpus) {
    out += fmt::format("<li><b>{}</b> on {} ({}): {} needed, {:.1f} % of it</li>\n",
                       estimator::verdict_name(estimator::verdict(needed, gpu)), escaped(gpu.name),
                       gib(gpu.bytes), gib(needed), 100 * needed / gpu.bytes);
  }
  return out + "</ul>\n";
}

// Shows what each allocator takes of the device for the peak; the one that the verdict counts is marked.
std::string reserved_table(const estimator::TrainingRun& run, double peak_bytes) {
  std::string out =
      "<div class=\"scroll\"><table>\n<tr><th></th><th>reserved for the peak by</th><th>GiB</th>"
      "<th>at least</th><th>at most</th></tr>\n";
  for (const estimator::AllocatorModel allocator : estimator::kAllocators) {
    const estimator::ReservedBytes bytes = estimator::reserved_bytes(run, peak_bytes, allocator);
    out += fmt::format(
        "<tr{}><td></td><td>{}{}</td><td class=\"number\">{:.3f}</td><td class=\"number\">{:.3f}</td>"
        "<td class=\"number\">{:.3f}</td></tr>\n",
        allocator == run.allocator ? " class=\"total\"" : "", estimator::allocator_name(allocator),
        allocator == run.allocator ? ", which is counted" : "", bytes.expected / kGiB, bytes.lowest / kGiB,
        bytes.highest / kGiB);
  }
  return out + "</table></div>\n";
}

constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Spillway "
    "estimate</title>\n"
    "<style>\n:root{color-scheme:light dark;--text:#222;--page:#fff;--note:#666}\n"
    "@media (prefers-color-scheme:dark){:root{--text:#ddd;--page:#181a1b;--note:#aaa}}\n"
    "body{font:14px sans-serif;max-width:900px;margin:2em auto;padding:0 "
    "1em;color:var(--text);background:var(--page)}\n"
    "h1{font-size:24px}h2{font-size:18px}.scroll{overflow-x:auto}svg{width:100%;display:block}\n"
    ".row{display:grid;grid-template-columns:190px minmax(0,1fr);align-items:center}\n"
    ".row span{text-align:right;padding-right:8px;font-size:12px}\n"
    "@media (max-width:600px){.row{grid-template-columns:minmax(0,1fr)}.row span{text-align:left}}\n"
    "text{font:12px sans-serif;fill:var(--text)}\n"
    ".tick{stroke:var(--note)}text.tick{stroke:none;fill:var(--note);font-size:11px}\n"
    ".gpu{stroke:var(--text);stroke-dasharray:4 3}\ntable{border-collapse:collapse}\n"
    "td,th{padding:2px 8px;text-align:left}\n.number{text-align:right}\n.total{font-weight:bold}\n"
    "td:first-child{width:12px}.legend span{margin-right:1em;white-space:nowrap}.legend "
    "i{display:inline-block;"
    "width:12px;height:12px;margin-right:4px;vertical-align:-1px}\n.note,footer{color:var(--note)}footer{"
    "margin-top:3em}\n"
    "li{overflow-wrap:anywhere}\n</style>\n</head>\n<body>\n";

// As docs/estimate.md has it.
constexpr const char* kNotation =
    "<p class=\"note\">e: bytes of an element of activations; i: of a kept input of a product; "
    "m: 1 with dropout, else 0; T: tokens of a micro-batch on a rank; s: sequence; b: micro-batch; "
    "h: hidden size; f: feed-forward width; a: heads; k: key-value heads; d: size of a head; L: layers; "
    "V: vocabulary; K: experts for each token; t, c, p: tensor-, context-, pipeline-parallel size; "
    "t_sp: t under sequence parallelism; v: virtual stages; "
    "etp, ep: expert tensor- and expert-parallel size.</p>\n";

}  // namespace

std::string answer_html(const Question& question, const Estimate& estimate, const std::string& made) {
  const RankClass& rank = estimate.peak();
  const BucketColours colours(estimate);
  const Chart chart(rank.peak_bytes, question);
  std::string out = kHead;
  out += fmt::format(
      "<h1>{}</h1>\n<p>{}: {} parameters; stage {} of {} peaks at {}, between {} and {}.</p>\n",
      escaped(std::filesystem::path(question.source.file()).filename().string()),
      escaped(question.run.model.type), grouped(static_cast<uint64_t>(estimate.parameters)), rank.stage,
      question.run.parallel.pipeline, gib(rank.peak_bytes), gib(rank.lowest_bytes), gib(rank.highest_bytes));
  out += verdicts(question, estimate) + reserved_table(question.run, rank.held_bytes());
  if (!rank.host.empty()) out += fmt::format("<p>In host memory: {}</p>\n", gib(total_bytes(rank.host)));
  if (!rank.nvme.empty()) out += fmt::format("<p>On NVMe: {}</p>\n", gib(total_bytes(rank.nvme)));
  if (rank.pool_bytes > 0)
    out += fmt::format("<p>Free in captured graphs' pools, for nothing else: {}</p>\n", gib(rank.pool_bytes));
  for (const std::string& warning : question.run.notes.warnings)
    out += fmt::format("<p>Not in these figures: {}</p>\n", escaped(warning));
  out +=
      fmt::format("<h2>By phase of a step</h2>\n<p class=\"note\">What one GPU holds in each phase.{}</p>\n",
                  chart.note()) +
      phases_picture(rank, chart);
  out +=
      "<h2>By rank class</h2>\n<p class=\"note\">Ranks that hold the same are one class: each bar is what "
      "one rank "
      "of it holds at its peak.</p>\n" +
      ranks_picture(estimate, chart, colours);
  out += "<h2>Buckets of the rank class that peaks</h2>\n" + bucket_table(rank, colours) + kNotation;
  out += "<h2>Assumed</h2>\n<ul>\n";
  for (const std::string& assumed : question.run.notes.assumptions)
    out += fmt::format("<li>{}</li>\n", escaped(assumed));
  return out + fmt::format("</ul>\n<footer>{}</footer>\n</body>\n</html>\n", escaped(made));
}

}  // namespace spillway
