#include "cli/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cli/size.h"

namespace spillway {
namespace {

constexpr size_t kWide = 64;  // of a call site

// Of "function path:line" the path loses its first folders: the line says most, and stands at the end.
std::string shortened(const std::string& text) {
  if (text.size() <= kWide) return text;
  const size_t slash = text.find('/');
  const size_t blank = slash == std::string::npos ? slash : text.rfind(' ', slash);
  const size_t path = blank == std::string::npos ? 0 : blank + 1;
  if (slash == std::string::npos || path + 3 >= kWide) {
    const size_t line = std::min(text.rfind(':'), text.size());
    const size_t kept = std::min<size_t>(text.size() - line, 12);
    return text.substr(0, kWide - 3 - kept) + "..." + text.substr(text.size() - kept);
  }
  const size_t rest = text.size() - (kWide - path - 3);
  const size_t folder = text.find('/', rest);
  return text.substr(0, path) + "..." + text.substr(folder == std::string::npos ? rest : folder);
}

double percent(uint64_t part, uint64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string heading(std::string_view text) {
  return fmt::format("\n{}\n", text);
}

// ---- Parts

struct PartName {
  char sign;
  const char* name;
  uint64_t Parts::*bytes;
};
constexpr PartName kParts[] = {{' ', "live, as the program requested", &Parts::live},
                               {'+', "rounding of it", &Parts::rounding},
                               {'+', "freed, a stream is not done with it", &Parts::pending},
                               {'+', "inactive split: free, segment in use", &Parts::inactive_split},
                               {'+', "cached: free segments", &Parts::cached}};

std::string parts_text(const Parts& parts) {
  std::string out;
  for (const PartName& part : kParts) out += sum_line(part.sign, part.name, parts.*part.bytes);
  return out + sum_line('=', "reserved", parts.reserved());
}

std::string device_text(const MemoryView& view) {
  if (!view.device_bytes) return {};
  const uint64_t reserved = view.now.reserved();
  const uint64_t rest = *view.device_bytes - std::min(*view.device_bytes, reserved);
  if (!view.other_bytes) {
    return sum_line('+', "others and free (not told apart)", rest) + sum_line('=', "device", reserved + rest);
  }
  // The figures were taken one after the other: what is free takes up the difference.
  const uint64_t others = std::min(rest, *view.other_bytes);
  return sum_line('+', "other processes, contexts, libraries", others) +
         sum_line('+', "free on the device", rest - others) + sum_line('=', "device", reserved + rest);
}

std::string moments_text(const RankReport& report) {
  std::string out = fmt::format("  {:<38}", "");
  for (const Moment& moment : report.moments) out += fmt::format("{:>20}", moment.name);
  out += fmt::format("\n  {:<38}", "after event");
  for (const Moment& moment : report.moments) out += fmt::format("{:>20}", moment.event);
  out += "\n";
  for (const PartName& part : kParts) {
    out += fmt::format("{} {:<38}", part.sign, part.name);
    for (const Moment& moment : report.moments)
      out += fmt::format("{:>20}", format_size(moment.parts.*part.bytes));
    out += "\n";
  }
  out += fmt::format("= {:<38}", "reserved");
  for (const Moment& moment : report.moments)
    out += fmt::format("{:>20}", format_size(moment.parts.reserved()));
  return out + "\n";
}

std::string tiers_text(const TierView& tiers) {
  const bool is_used = tiers.host_placed + tiers.host + tiers.disk + tiers.disk_today > 0;
  if (!is_used && tiers.lasting_error == 0) return {};
  std::string out = heading("Beside the device");
  out += sum_line(' ', "placed in host memory", tiers.host_placed);
  out += sum_line('+', "left the device, in host memory", tiers.host);
  out += sum_line('+', "left the device, on disk", tiers.disk);
  out += sum_line('=', "beside the device", tiers.host_placed + tiers.host + tiers.disk);
  if (tiers.disk_today > 0) out += sum_line(' ', "written to disk on that day", tiers.disk_today);
  if (tiers.disk_daily_limit)
    out += sum_line(' ', "of what may be written in a day", *tiers.disk_daily_limit);
  if (tiers.lasting_error > 0) {
    out += fmt::format("  nothing is moved any more since error {} of the driver, which lasts\n",
                       tiers.lasting_error);
  }
  return out;
}

std::string annotations_text(const std::map<std::string, double>& annotations) {
  std::string out;
  for (const auto& [name, bytes] : annotations) {
    if (bytes >= 1) out += sum_line(' ', name.c_str(), static_cast<uint64_t>(bytes));
  }
  return out.empty() ? out : heading("As annotated") + out;
}

// ---- Tables

std::string classes_text(const std::vector<ClassRow>& classes, std::string_view when) {
  if (classes.empty()) return {};
  std::string out = heading(fmt::format("By size of request, {}", when));
  out += fmt::format("  {:>12} {:>9} {:>18} {:>16} {:>18} {:>7}\n", "up to", "blocks", "live bytes",
                     "rounding", "cumulative", "");
  uint64_t total = 0;
  for (const ClassRow& row : classes) total += row.live_bytes;
  uint64_t sum = 0;
  uint64_t rounding = 0;
  uint64_t blocks = 0;
  for (const ClassRow& row : classes) {
    sum += row.live_bytes;
    rounding += row.rounding_bytes;
    blocks += row.blocks;
    out += fmt::format("{} {:>12} {:>9} {:>18} {:>16} {:>18} {:>5.1f} %\n", sum == row.live_bytes ? ' ' : '+',
                       format_bound(row.up_to_bytes), row.blocks, format_size(row.live_bytes),
                       format_size(row.rounding_bytes), format_size(sum), percent(sum, total));
  }
  return out +
         fmt::format("= {:>12} {:>9} {:>18} {:>16}\n", "", blocks, format_size(sum), format_size(rounding));
}

std::string sites_text(const std::vector<SiteRow>& sites, size_t most, std::string_view when) {
  if (sites.empty()) return {};
  std::string out = heading(fmt::format("By call site, {}", when));
  uint64_t total = 0;
  for (const SiteRow& row : sites) total += row.live_bytes;
  uint64_t rest = total;
  for (size_t i = 0; i < std::min(most, sites.size()); ++i) {
    rest -= sites[i].live_bytes;
    out += fmt::format("{} {:>18} {:>5.1f} % {:>8} blocks  {}\n", i == 0 ? ' ' : '+',
                       format_size(sites[i].live_bytes), percent(sites[i].live_bytes, total), sites[i].blocks,
                       shortened(sites[i].site));
  }
  if (sites.size() > most)
    out += fmt::format("+ {:>18} {:>5.1f} %           {} others\n", format_size(rest), percent(rest, total),
                       sites.size() - most);
  return out + fmt::format("= {:>18}\n", format_size(total));
}

std::string holders_text(const std::vector<HolderRow>& rows, const char* title, size_t most) {
  if (rows.empty()) return {};
  std::string out = heading(title);
  out += fmt::format("  {:<22} {:>18} {:>18} {:>18} {:>18}\n", "", "reserved", "active", "stranded",
                     "largest free");
  HolderRow total;
  HolderRow rest;
  for (size_t i = 0; i < rows.size(); ++i) {
    const HolderRow& row = rows[i];
    total.reserved_bytes += row.reserved_bytes;
    total.active_bytes += row.active_bytes;
    if (i >= most) {
      rest.reserved_bytes += row.reserved_bytes;
      rest.active_bytes += row.active_bytes;
      continue;
    }
    out += fmt::format("{} {:<22} {:>18} {:>18} {:>18} {:>18}\n", i == 0 ? ' ' : '+', row.name,
                       format_size(row.reserved_bytes), format_size(row.active_bytes),
                       format_size(row.stranded_bytes()), format_size(row.largest_free_bytes));
  }
  const auto sum = [&](char sign, const std::string& name, const HolderRow& row) {
    return fmt::format("{} {:<22} {:>18} {:>18} {:>18}\n", sign, name, format_size(row.reserved_bytes),
                       format_size(row.active_bytes), format_size(row.stranded_bytes()));
  };
  if (rows.size() > most) out += sum('+', fmt::format("{} others", rows.size() - most), rest);
  return out + sum('=', "", total);
}

// ---- Fragmentation

const char* answer_name(FitsAnswer answer) {
  switch (answer) {
    case FitsAnswer::kYes:
      return "yes";
    case FitsAnswer::kNo:
      return "no";
    case FitsAnswer::kUnknown:
      break;
  }
  return "unknown";
}

std::string fragmentation_text(const RankReport& report, const TextOptions& options) {
  const uint64_t free = report.view.now.free();
  std::string out = heading("Fragmentation");
  out += fmt::format("  external index {:.3f}: of {} free, the largest range has {}\n",
                     external_index(free, report.largest_free_bytes), format_size(free),
                     format_size(report.largest_free_bytes));
  const auto row = [&](const char* when, const std::optional<uint64_t>& most) {
    const std::string size =
        most ? format_size(*most) : "unknown: the file does not say what the device has free";
    const std::string answer =
        options.fits ? fmt::format(": {}", answer_name(answer_of(*options.fits, most))) : "";
    return fmt::format("  {:<44} {}{}\n", when, size, answer);
  };
  out += options.fits ? fmt::format("  would a request of {} fit, and the largest that would:\n",
                                    format_size(*options.fits))
                      : std::string("  the largest request that would fit:\n");
  return out + row("within what is reserved", report.fits.within) +
         row("now, or with new memory of the device", report.fits.now) +
         row("after a trim of cached memory", report.fits.after_trim) +
         row("after a trim and evicting unpinned regions", report.fits.after_evict);
}

std::string ladder_text(const MemoryView& view, size_t most) {
  std::string out;
  for (const RungView& rung : view.rungs) {
    if (rung.hits == 0 && rung.time_ns == 0) continue;
    out += fmt::format("  {:<18} served {:>10} times, {:>14.3f} ms\n", rung.name, rung.hits,
                       static_cast<double>(rung.time_ns) / 1e6);
  }
  const size_t first = view.climbs.size() - std::min(most, view.climbs.size());
  for (size_t i = first; i < view.climbs.size(); ++i) {
    const ClimbView& climb = view.climbs[i];
    out += fmt::format("  {} for stream 0x{:x}:", format_size(climb.requested_bytes), climb.stream);
    for (const auto& [rung, ns] : climb.rung_ns)
      out += fmt::format(" {} {:.3f} ms,", rung, static_cast<double>(ns) / 1e6);
    out += fmt::format(" {}\n", climb.outcome.empty() ? "not ended" : climb.outcome);
  }
  return out.empty() ? out : heading("The ladder: what was tried when memory was short") + out;
}

std::string growth_text(const Growth& growth, size_t most) {
  if (growth.steps.how.empty()) return {};
  std::string out = heading("Growth from step to step");
  out += fmt::format("  {} steps, {}\n", growth.steps.starts.size() - 1, growth.steps.how);
  if (growth.rows.empty())
    return out + "  nothing holds more at the start of each step than of the one before\n";
  for (size_t i = 0; i < std::min(most, growth.rows.size()); ++i) {
    const GrowingRow& row = growth.rows[i];
    out += fmt::format("  {:>12} a step, {} to {}: {}\n",
                       format_size(static_cast<uint64_t>(std::max(0.0, row.bytes_per_step))),
                       format_size(row.first_bytes), format_size(row.last_bytes), shortened(row.name));
  }
  return out;
}

std::string finding_text(const estimator::Finding& finding, std::string_view where) {
  std::string out = fmt::format("  {}{}: {}\n    cause: {}\n    do: {}\n", finding.rule, where,
                                finding.evidence, finding.cause, finding.mitigation);
  if (finding.saved_bytes > 0)
    out += fmt::format("    saves up to {}\n", format_size(static_cast<uint64_t>(finding.saved_bytes)));
  return out;
}

std::string rank_text(const RankReport& report, const TextOptions& options, bool with_findings) {
  const MemoryView& view = report.view;
  std::string out = fmt::format("{}{}: {}\n", view.label(),
                                view.hardware.empty() ? "" : " (" + view.hardware + ")", view.source);
  for (const std::string& note : view.notes) out += fmt::format("  note: {}\n", note);
  if (report.moments.size() > 1) {
    out += moments_text(report);
  } else {
    out += parts_text(report.main().parts);
    out += sum_line(' ', "most ever reserved", view.reserved_peak_bytes);
    out += sum_line(' ', "most ever requested at once", view.live_peak_bytes);
    if (view.device_bytes) out += heading("The device") + sum_line(' ', "reserved", view.now.reserved());
  }
  out += device_text(view);
  out += tiers_text(view.tiers);
  out += annotations_text(view.annotations);
  const std::string at_live = "at the " + report.live().name;
  out += classes_text(report.live().tables.classes, report.live().name == "now" ? "now" : at_live);
  out += sites_text(report.live().tables.sites, options.rows, report.live().name == "now" ? "now" : at_live);
  const std::string at_main = report.main().name == "now" ? ", now" : ", at the " + report.main().name;
  out += holders_text(report.main().tables.pools, ("By pool" + at_main).c_str(), options.rows);
  out += holders_text(report.main().tables.streams, ("By stream" + at_main).c_str(), options.rows);
  out += fragmentation_text(report, options);
  out += ladder_text(view, options.rows);
  out += growth_text(report.growth, options.rows);
  out += heading("Verdict");
  for (const std::string& sentence : report.verdict) out += fmt::format("  {}\n", sentence);
  if (with_findings) {
    for (const estimator::Finding& finding : report.findings) out += finding_text(finding, "");
  }
  return out;
}

// ---- Ranks

std::string row_text(const RankRow& row) {
  return fmt::format("  {:<20} {:>18} {:>18} {:>10.1f} {:>6}  {}\n", row.label,
                     format_size(row.reserved_peak_bytes), format_size(row.live_peak_bytes), row.deviation,
                     row.ooms, row.source);
}

std::string spread_text(const char* name, const Spread& spread) {
  return fmt::format("  {:<16} {:>18} {:>18} {:>18} {:>18} {:>10.3f}\n", name, format_size(spread.least),
                     format_size(spread.median), format_size(spread.mean), format_size(spread.most),
                     spread.imbalance());
}

std::string list_text(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < std::min<size_t>(4, names.size()); ++i) out += (i == 0 ? "" : "; ") + names[i];
  return names.size() > 4 ? fmt::format("{}; and {} more", out, names.size() - 4) : out;
}

// Dumps that are no rows: a rank is known by its number alone, and its last dump counts.
std::string earlier_text(size_t dumps) {
  if (dumps == 0) return "";
  return fmt::format(", {} earlier {} of the same {} in the timeline alone", dumps,
                     dumps == 1 ? "recording" : "recordings", dumps == 1 ? "rank" : "ranks");
}

std::string job_text(const JobReport& job, const TextOptions& options) {
  std::string out = fmt::format("{} ranks and devices in {} files, {} not read{}\n", job.rows.size(),
                                job.files, job.complaints.size(), earlier_text(job.earlier_dumps));
  out += heading(job.outliers.empty() ? "Outliers: none" : "Outliers");
  if (!job.outliers.empty()) {
    out += fmt::format("  {:<20} {:>18} {:>18} {:>10} {:>6}\n", "", "reserved peak", "live peak", "deviation",
                       "OOMs");
    for (size_t i = 0; i < std::min(options.rows, job.outliers.size()); ++i)
      out += row_text(job.rows[job.outliers[i]]);
    if (job.outliers.size() > options.rows)
      out += fmt::format("  and {} more\n", job.outliers.size() - options.rows);
  }
  out += heading("Imbalance");
  out += fmt::format("  {:<16} {:>18} {:>18} {:>18} {:>18} {:>10}\n", "", "least", "median", "mean", "most",
                     "most/mean");
  out += spread_text("reserved peak", job.reserved_peak) + spread_text("live peak", job.live_peak) +
         spread_text("live", job.live);
  out += heading(job.differences.empty() ? "Configuration: the same everywhere" : "Configuration differs");
  for (const Difference& each : job.differences)
    out += fmt::format("  {}: '{}', most have '{}': {}\n", each.option, each.other, each.most,
                       list_text(each.ranks));
  out += heading("All ranks") + parts_text(job.total);
  out += classes_text(job.classes, "all ranks") + sites_text(job.sites, options.rows, "all ranks");
  out += heading(job.findings.empty() ? "Findings: none" : "Findings");
  for (const JobFinding& each : job.findings)
    out += finding_text(each.finding,
                        fmt::format(" ({} of {}; {})", each.ranks, job.rows.size(), each.finding.source));
  return out;
}

}  // namespace

std::string sum_line(char sign, std::string_view what, uint64_t bytes) {
  return fmt::format("{} {:<38}{:>20} {:>14}\n", sign, what, grouped(bytes), format_size(bytes));
}

FitsAnswer answer_of(uint64_t request, const std::optional<uint64_t>& most) {
  if (!most) return FitsAnswer::kUnknown;
  return *most >= request ? FitsAnswer::kYes : FitsAnswer::kNo;
}

std::string report_text(const JobReport& job, const TextOptions& options) {
  std::string out;
  if (!job.is_one()) {
    out += job_text(job, options);
  } else if (job.earlier_dumps > 0) {
    out += fmt::format("The last of {} files{}\n\n", job.files, earlier_text(job.earlier_dumps));
  }
  if (!job.shown) return out;
  if (!job.is_one()) out += "\n";
  return out + rank_text(*job.shown, options, true);
}

}  // namespace spillway
