#include "cli/report/rank_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/report/history.h"
#include "cli/size.h"

namespace spillway {
namespace {

constexpr size_t kSitesInTimeline = 8;
constexpr double kLittle = 0.02;  // of what is reserved: not worth a change

// The first moments at which most was reserved and most was live.
struct Peaks {
  int64_t reserved_at = -1;
  int64_t live_at = -1;
  Parts at_reserved;
  Parts at_live;
};

// The reserved peak is taken after the allocation that new memory was for.
Result<Peaks> peaks_of(const MemoryView& view, History& history) {
  Peaks out;
  bool awaits = false;
  const Status played = history.play([&](int64_t index, const Parts& parts) {
    const bool first = index < 0;
    const bool allocates =
        !first && view.events[static_cast<size_t>(index)].kind == MemoryEvent::Kind::kAllocate;
    if (first || parts.reserved() > out.at_reserved.reserved()) {
      out.reserved_at = index;
      out.at_reserved = parts;
      awaits = !allocates;
    } else if (awaits) {
      if (parts.reserved() != out.at_reserved.reserved()) {
        awaits = false;
      } else if (allocates) {
        out.reserved_at = index;
        out.at_reserved = parts;
        awaits = false;
      }
    }
    if (first || parts.live + parts.pending > out.at_live.live + out.at_live.pending) {
      out.live_at = index;
      out.at_live = parts;
    }
  });
  if (!played.ok()) return played;
  return out;
}

void note_misfit(MemoryView& view, const Status& status) {
  view.notes.push_back(fmt::format("the events are left out: {}", status.text()));
  view.events.clear();
}

void raise_peaks(MemoryView& view, const Peaks& peaks) {
  view.reserved_peak_bytes = peaks.at_reserved.reserved();
  view.live_peak_bytes = peaks.at_live.live + peaks.at_live.pending;
}

Moment moment_of(const MemoryView& view, const History& history, const char* name, int64_t index,
                 const Parts& parts) {
  Moment out;
  out.name = name;
  out.event = index;
  out.time_us = index < 0 ? 0 : view.events[static_cast<size_t>(index)].time_us;
  out.parts = parts;
  out.segments = history.segments();
  out.tables = tables_of(out.segments, view.sites);
  return out;
}

Status add_moments(RankReport& report, History& history) {
  const Result<Peaks> peaks = peaks_of(report.view, history);
  if (!peaks.ok()) return peaks.status();
  raise_peaks(report.view, peaks.value());
  const int64_t end = static_cast<int64_t>(report.view.events.size()) - 1;
  report.moments.resize(3);
  return history.play([&](int64_t index, const Parts& parts) {
    if (index == peaks.value().reserved_at)
      report.moments[0] = moment_of(report.view, history, "reserved peak", index, parts);
    if (index == peaks.value().live_at)
      report.moments[1] = moment_of(report.view, history, "live peak", index, parts);
    if (index == end) report.moments[2] = moment_of(report.view, history, "end", index, parts);
  });
}

void read_history(RankReport& report) {
  Result<History> history = History::build(report.view);
  if (!history.ok()) return note_misfit(report.view, history.status());
  report.records_segments = history->records_segments();
  if (!report.records_segments)
    report.view.notes.push_back("the trace records no segments: what is reserved is what is active");
  if (Status status = add_moments(report, history.value()); !status.ok()) {
    report.moments.clear();
    return note_misfit(report.view, status);
  }
  std::vector<std::string> largest;
  for (const SiteRow& row : report.live().tables.sites) {
    if (largest.size() < kSitesInTimeline) largest.push_back(row.site);
  }
  report.timelines = timelines_of(report.view, history.value(), largest);
  report.growth = find_growth(report.view, history.value());
}

// ---- Verdict

double share(uint64_t part, uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// The largest part of what is reserved and not live, and what helps against it.
// `grew`: more was reserved at that moment.
std::string loss_sentence(const Parts& parts, bool grew) {
  struct Loss {
    uint64_t bytes;
    const char* what;
    const char* remedy;
  };
  const Loss losses[] = {
      {parts.rounding, "rounding", "requests of odd sizes are rounded up; pad or batch them to round sizes"},
      {parts.pending, "freed and not yet done with on another stream",
       "free on the stream that uses the block, or record fewer streams"},
      {parts.inactive_split, "free pieces of segments in use",
       "run it under Spillway, which joins free pages that are apart, or with expandable segments"},
      {parts.cached, "free segments",
       grew ? "no request fitted them, so more was reserved; run it under Spillway, which joins free pages, "
              "or with "
              "expandable segments"
            : "none needed where nothing else wants the memory; a trim returns them"}};
  const Loss& largest = *std::max_element(std::begin(losses), std::end(losses),
                                          [](const Loss& a, const Loss& b) { return a.bytes < b.bytes; });
  return fmt::format("Of it {} ({:.1f} %) is {}: {}.", format_size(largest.bytes),
                     100 * share(largest.bytes, parts.reserved()), largest.what, largest.remedy);
}

void judge(RankReport& report) {
  const Moment& main = report.main();
  const uint64_t reserved = main.parts.reserved();
  const uint64_t lost = reserved - main.parts.live;
  auto& out = report.verdict;
  if (report.view.ooms > 0) {
    out.push_back(fmt::format("{} requests ran out of memory.", report.view.ooms));
  }
  if (reserved == 0) {
    out.emplace_back("Nothing is reserved.");
    return;
  }
  out.push_back(fmt::format("At the {} the program used {} of {} reserved, {:.1f} %.",
                            main.name == "now" ? "moment of the dump" : main.name,
                            format_size(main.parts.live), format_size(reserved),
                            100 * share(main.parts.live, reserved)));
  if (share(lost, reserved) < kLittle) {
    std::string sentence = "The allocator has little to give back: use less at once.";
    const auto& sites = report.live().tables.sites;
    if (!sites.empty() && sites.front().site != "unknown")
      sentence += fmt::format(" The most is held by {}: {}.", sites.front().site,
                              format_size(sites.front().live_bytes));
    out.push_back(sentence);
  } else {
    out.push_back(loss_sentence(main.parts, main.name == "reserved peak"));
  }
  if (!report.growth.rows.empty()) {
    const GrowingRow& row = report.growth.rows.front();
    out.push_back(fmt::format("It grows: {} holds {} more with every step. Find who keeps it.", row.name,
                              format_size(static_cast<uint64_t>(row.bytes_per_step))));
  }
}

}  // namespace

Parts find_peaks(MemoryView& view) {
  if (view.events.empty()) return view.now;
  Result<History> history = History::build(view);
  if (!history.ok()) {
    note_misfit(view, history.status());
    return view.now;
  }
  const Result<Peaks> peaks = peaks_of(view, history.value());
  if (!peaks.ok()) return view.now;
  raise_peaks(view, peaks.value());
  return peaks.value().at_reserved;
}

estimator::Measurement measurement_of(const MemoryView& view, const Parts& parts) {
  const auto bytes = [](uint64_t value) { return static_cast<double>(value); };
  estimator::Measurement out;
  out.source = view.source;
  out.hardware = view.hardware;
  out.memory_bytes = bytes(view.device_bytes.value_or(0));
  out.rank = view.rank;
  out.process_id = view.process_id;
  out.device = view.device;
  out.time_seconds = view.time_us / 1'000'000;
  const uint64_t allocated = parts.live + parts.rounding;
  out.requested = {bytes(parts.live + parts.pending),
                   bytes(std::max(view.live_peak_bytes, parts.live + parts.pending))};
  out.allocated = {bytes(allocated), bytes(std::max(view.allocated_peak_bytes, allocated))};
  out.active = {bytes(parts.active()), bytes(parts.active())};
  out.reserved = {bytes(parts.reserved()), bytes(std::max(view.reserved_peak_bytes, parts.reserved()))};
  out.inactive_split = {bytes(parts.inactive_split),
                        bytes(std::max(view.split_peak_bytes, parts.inactive_split))};
  out.cached_free_bytes = bytes(parts.cached);
  out.retries = view.retries;
  out.ooms = view.ooms;
  out.annotations = view.annotations;
  for (const SegmentView& segment : view.segments) {
    for (const BlockView& block : segment.blocks) {
      if (block.state != BlockState::kInactive) out.blocks.push_back(bytes(block.requested_bytes));
    }
  }
  return out;
}

RankReport rank_report(MemoryView view) {
  RankReport out;
  out.view = std::move(view);
  if (!out.view.events.empty()) read_history(out);
  if (out.moments.empty()) {
    Moment now{"now", -1, out.view.time_us, out.view.now, {}, out.view.segments};
    now.tables = tables_of(now.segments, out.view.sites);
    out.moments.push_back(std::move(now));
  }
  out.fits = fits_of(out.view);
  out.largest_free_bytes = out.view.largest_free_bytes.value_or(0);
  out.findings = estimator::diagnose({measurement_of(out.view, out.main().parts)}, nullptr);
  judge(out);
  return out;
}

}  // namespace spillway
