#include "cli/report/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>
#include <utility>

#include "cli/report/read.h"

namespace spillway {
namespace {

constexpr unsigned kMostThreads = 8;
constexpr size_t kSitesKept = 100;        // of each file
constexpr double kOutlierDeviations = 5;  // in robust standard deviations
constexpr double kOutlierShare = 0.01;    // of the median, at least

// Holds what is kept of a file.
struct Kept {
  RankRow row;
  int64_t process_id = 0;
  std::map<std::string, std::string> options;
  estimator::Measurement measurement;
  Tables tables;  // without pools and streams
};

struct FileResult {
  std::vector<Kept> kept;
  std::string complaint;
};

Kept keep(MemoryView view) {
  Kept out;
  const bool is_trace = !view.events.empty();
  if (is_trace) {
    RankReport report = rank_report(std::move(view));
    out.tables = std::move(report.moments.front().tables);
    out.row.parts = report.moments.front().parts;
    view = std::move(report.view);
  } else {
    out.row.parts = view.now;
    out.tables = tables_of(view.segments, view.sites);
  }
  if (out.tables.sites.size() > kSitesKept) out.tables.sites.resize(kSitesKept);
  out.measurement = measurement_of(view, out.row.parts);
  out.options = std::move(view.config);
  if (!view.hardware.empty()) out.options["device name"] = view.hardware;
  if (view.device_bytes) out.options["device bytes"] = std::to_string(*view.device_bytes);
  out.process_id = view.process_id;
  out.row.source = view.source;
  out.row.label = view.label();
  out.row.rank = view.rank;
  out.row.device = view.device;
  out.row.time_us = view.time_us;
  out.row.tiers = std::move(view.tiers);
  out.row.reserved_peak_bytes = view.reserved_peak_bytes;
  out.row.live_peak_bytes = view.live_peak_bytes;
  out.row.retries = view.retries;
  out.row.ooms = view.ooms;
  return out;
}

FileResult read_one(const std::string& path) {
  FileResult out;
  Result<std::vector<MemoryView>> views = read_views(path);
  if (!views.ok()) {
    out.complaint = views.status().text();
    return out;
  }
  for (MemoryView& view : views.value()) out.kept.push_back(keep(std::move(view)));
  return out;
}

std::vector<FileResult> read_all(const std::vector<std::string>& paths, const JobOptions& options) {
  std::vector<FileResult> out(paths.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t done = 0;
  const auto work = [&] {
    for (size_t i = next++; i < paths.size(); i = next++) {
      out[i] = read_one(paths[i]);
      const std::lock_guard lock(mutex);
      options.progress(++done, paths.size());
    }
  };
  const size_t threads =
      std::min<size_t>({paths.size(), std::max(1u, std::thread::hardware_concurrency()), kMostThreads});
  std::vector<std::thread> workers;
  for (size_t i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  return out;
}

Spread spread_of(std::vector<uint64_t> values) {
  Spread out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  out.least = values.front();
  out.median = values[values.size() / 2];
  out.most = values.back();
  double sum = 0;
  for (const uint64_t value : values) sum += static_cast<double>(value);
  out.mean = static_cast<uint64_t>(sum / static_cast<double>(values.size()));
  return out;
}

template <typename Get>
Spread spread_by(const std::vector<RankRow>& rows, Get get) {
  std::vector<uint64_t> values;
  for (const RankRow& row : rows) values.push_back(get(row));
  return spread_of(std::move(values));
}

// Median absolute deviation, which outliers do not move; 1.4826 of it is a standard deviation of normal data.
void find_outliers(JobReport& job) {
  const uint64_t median = job.reserved_peak.median;
  const auto distance = [&](const RankRow& row) {
    return static_cast<double>(row.reserved_peak_bytes) - static_cast<double>(median);
  };
  std::vector<uint64_t> distances;
  for (const RankRow& row : job.rows) distances.push_back(static_cast<uint64_t>(std::abs(distance(row))));
  const double least = kOutlierShare * static_cast<double>(median);
  const double scale =
      std::max(1.4826 * static_cast<double>(spread_of(distances).median), least / kOutlierDeviations);
  for (size_t i = 0; i < job.rows.size(); ++i) {
    RankRow& row = job.rows[i];
    row.deviation = scale > 0 ? distance(row) / scale : 0;
    const bool far = std::abs(row.deviation) > kOutlierDeviations && std::abs(distance(row)) > least;
    if (job.rows.size() > 1 && (far || row.ooms > 0)) job.outliers.push_back(i);
  }
  std::stable_sort(job.outliers.begin(), job.outliers.end(), [&](size_t a, size_t b) {
    const RankRow &left = job.rows[a], &right = job.rows[b];
    return std::pair(left.ooms > 0, std::abs(left.deviation)) >
           std::pair(right.ooms > 0, std::abs(right.deviation));
  });
}

void find_differences(const std::vector<const Kept*>& ranks, JobReport& job) {
  std::map<std::string, std::map<std::string, std::vector<std::string>>> values;
  for (const Kept* kept : ranks) {
    for (const auto& [option, value] : kept->options) values[option][value].push_back(kept->row.label);
  }
  for (auto& [option, by_value] : values) {
    // A rank without the option has another one than those with it.
    size_t having = 0;
    for (const auto& [value, labels] : by_value) having += labels.size();
    if (having < ranks.size()) {
      for (const Kept* kept : ranks) {
        if (kept->options.count(option) == 0) by_value["(not set)"].push_back(kept->row.label);
      }
    }
    // Where nearly every rank has its own, as with names of files, none differs.
    if (by_value.size() < 2 || 2 * by_value.size() > ranks.size()) continue;
    const auto most = std::max_element(by_value.begin(), by_value.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    for (const auto& [value, labels] : by_value) {
      if (value != most->first) job.differences.push_back({option, most->first, value, labels});
    }
  }
}

void merge_findings(const std::vector<estimator::Finding>& findings, JobReport& job) {
  for (const estimator::Finding& finding : findings) {
    const auto known = std::find_if(job.findings.begin(), job.findings.end(), [&](const JobFinding& other) {
      return other.finding.rule == finding.rule;
    });
    if (known == job.findings.end()) {
      job.findings.push_back({finding, 1});
    } else {
      ++known->ranks;
    }
  }
}

void sum_up(const std::vector<const Kept*>& ranks, JobReport& job) {
  std::map<uint64_t, ClassRow> classes;
  std::map<std::string, SiteRow> sites;
  for (const Kept* kept : ranks) {
    job.rows.push_back(kept->row);
    const Parts& parts = kept->row.parts;
    job.total.live += parts.live;
    job.total.rounding += parts.rounding;
    job.total.pending += parts.pending;
    job.total.inactive_split += parts.inactive_split;
    job.total.cached += parts.cached;
    add_classes(classes, kept->tables.classes);
    add_sites(sites, kept->tables.sites);
  }
  for (const auto& [up_to, row] : classes) job.classes.push_back(row);
  job.sites = by_bytes(sites);
  job.reserved_peak = spread_by(job.rows, [](const RankRow& row) { return row.reserved_peak_bytes; });
  job.live_peak = spread_by(job.rows, [](const RankRow& row) { return row.live_peak_bytes; });
  job.live = spread_by(job.rows, [](const RankRow& row) { return row.parts.live; });
  find_outliers(job);
  find_differences(ranks, job);
}

// A rank and device; without a rank, a file.
using Key = std::pair<std::pair<int64_t, std::string>, int64_t>;
Key key_of(const RankRow& row) {
  return {{row.rank.value_or(-1), row.rank ? std::string() : row.source}, row.device};
}

// Reads again the file of the rank to show, with the other dumps of its process for the timeline.
std::optional<RankReport> show(const RankRow& row, const std::vector<const Kept*>& all) {
  std::vector<MemoryView> dumps;
  std::optional<RankReport> out;
  for (const Kept* kept : all) {
    if (key_of(kept->row) != key_of(row)) continue;
    Result<std::vector<MemoryView>> views = read_views(kept->row.source);
    if (!views.ok()) continue;
    for (MemoryView& view : views.value()) {
      if (view.device != row.device) continue;
      MemoryView light = view;
      light.segments.clear();
      light.events.clear();
      dumps.push_back(std::move(light));
      if (kept->row.source == row.source) out = rank_report(std::move(view));
    }
  }
  if (out && dumps.size() > 1) {
    std::stable_sort(dumps.begin(), dumps.end(),
                     [](const MemoryView& a, const MemoryView& b) { return a.time_us < b.time_us; });
    std::vector<const MemoryView*> ordered;
    for (const MemoryView& dump : dumps) ordered.push_back(&dump);
    out->timelines.insert(out->timelines.begin(), timeline_of_dumps(ordered));
  }
  return out;
}

const RankRow* row_to_show(const JobReport& job, const JobOptions& options) {
  const RankRow* out = nullptr;
  for (const RankRow& row : job.rows) {
    if (options.rank && row.rank != options.rank) continue;
    if (out == nullptr || row.reserved_peak_bytes > out->reserved_peak_bytes) out = &row;
  }
  return out;
}

}  // namespace

JobReport report_job(const std::vector<std::string>& paths, const JobOptions& options) {
  const std::vector<FileResult> files = read_all(paths, options);
  JobReport out;
  out.files = paths.size();
  std::vector<const Kept*> all;
  std::map<Key, const Kept*> last;
  std::vector<estimator::Measurement> measurements;
  for (const FileResult& file : files) {
    if (!file.complaint.empty()) out.complaints.push_back(file.complaint);
    for (const Kept& kept : file.kept) {
      all.push_back(&kept);
      measurements.push_back(kept.measurement);
      const Kept*& latest = last[key_of(kept.row)];
      if (latest == nullptr || kept.row.time_us >= latest->row.time_us) latest = &kept;
    }
  }
  std::vector<const Kept*> ranks;
  for (const auto& [key, kept] : last) ranks.push_back(kept);
  out.earlier_dumps = all.size() - ranks.size();
  sum_up(ranks, out);
  merge_findings(estimator::diagnose(measurements, nullptr), out);
  if (const RankRow* row = row_to_show(out, options)) out.shown = show(*row, all);
  if (options.rank && !out.shown) {
    out.complaints.push_back(fmt::format("--rank {}: none of the files is of that rank", *options.rank));
  }
  return out;
}

}  // namespace spillway
