#include "cli/top/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace spillway {
namespace {

constexpr double kNsPerSecond = 1e9;

// Figures of a page may be anything, so arithmetic on them is in doubles.
double number(int64_t value) {
  return static_cast<double>(value);
}

std::string size_text(double bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string rate_text(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.1f}M/s", per_second / 1e6);
  if (per_second >= 1e4) return fmt::format("{:.1f}k/s", per_second / 1e3);
  return fmt::format("{:.0f}/s", per_second);
}

std::string age_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", std::max(seconds, 0.0));
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.0f} h", seconds / 3600);
}

double all_driver_calls(const spw_stats& stats) {
  double sum = 0;
#define SPW_STATS_MEMBER(name, Name) sum += number(stats.driver_calls.name);
  SPW_STATS_DRIVER_CALLS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  return sum;
}

struct RungFigures {
  std::string name;
  double hits = 0;
  double per_s = 0;
};

std::vector<RungFigures> rungs_of(const LiveReading& page, const LiveRow& row) {
  std::vector<RungFigures> out;
  const double seconds = number(page.apart_ns) / kNsPerSecond;
  const auto add = [&](std::string name, const spw_rung& now, const spw_rung& before) {
    std::replace(name.begin(), name.end(), '_', ' ');
    const double came = number(now.hits) - number(before.hits);
    out.push_back({std::move(name), number(now.hits), seconds > 0 ? came / seconds : 0});
  };
#define SPW_STATS_MEMBER(name, Name) add(#name, row.now.stats.rungs.name, row.before.stats.rungs.name);
  SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  return out;
}

void add_process(TopLines& screen, const LiveReading& page, int64_t now_ns) {
  screen.line();
  screen.item(fmt::format("PID {}", page.process.pid), TopColour::kBold);
  screen.item(page.program, TopColour::kBold);
  screen.item(fmt::format("rank {}", page.rank));
  const bool is_running = page.life == LiveLife::kRunning;
  screen.item(life_name(page.life), is_running                      ? TopColour::kGreen
                                    : page.life == LiveLife::kEnded ? TopColour::kRed
                                                                    : TopColour::kYellow);
  // A process that runs writes every interval; one that was replaced by another program does not.
  const double age = (number(now_ns) - number(page.written_ns)) / kNsPerSecond;
  if (!is_running || age > 3 + 3 * static_cast<double>(page.interval_ns) / kNsPerSecond) {
    screen.item(fmt::format("as of {} ago", age_text(age)), TopColour::kYellow);
  }
}

void add_memory(TopLines& screen, const LiveDevice& device) {
  const spw_stats& stats = device.stats;
  const auto total = static_cast<double>(device.total_bytes);
  screen.line();
  screen.indent();
  screen.item(fmt::format("GPU {}", device.ordinal), TopColour::kBold);
  screen.item(device.name);
  screen.item(size_text(total));
  if (stats.limit_bytes != INT64_MAX && number(stats.limit_bytes) < total) {
    screen.item("limit " + size_text(number(stats.limit_bytes)));
  }
  const double active = number(stats.active_bytes.all.current);
  const double split = number(stats.inactive_split_bytes.all.current);
  const double cached = number(stats.cached_free_bytes);
  screen.line();
  screen.indent();
  screen.bar({{active / total, "\u2588", "#", TopColour::kGreen},
              {split / total, "\u2593", "+", TopColour::kYellow},
              {cached / total, "\u2591", ".", TopColour::kBlue}});
  screen.line();
  screen.indent();
  screen.item("active " + size_text(active), TopColour::kGreen);
  screen.item("inactive split " + size_text(split), TopColour::kYellow);
  screen.item("cached " + size_text(cached), TopColour::kBlue);
  screen.item("reserved " + size_text(number(stats.reserved_bytes.all.current)));
  screen.item("peak " + size_text(number(stats.reserved_bytes.all.peak)));
}

void add_fragmentation(TopLines& screen, const spw_stats& stats) {
  const double free = number(stats.inactive_split_bytes.all.current) + number(stats.cached_free_bytes);
  const double scattered = external_fragmentation(stats);
  screen.line();
  screen.indent();
  screen.item(fmt::format("fragmentation {:.0f} %", 100 * scattered),
              scattered > 0.5 ? TopColour::kYellow : TopColour::kNone);
  screen.item(fmt::format("largest range {} of {} free", size_text(number(stats.largest_free_bytes)),
                          size_text(free)));
  if (free <= 0) return;
  screen.line();
  screen.indent();
  screen.bar(
      {{1 - scattered, "\u2588", "=", TopColour::kBlue}, {scattered, "\u2591", ".", TopColour::kYellow}});
}

void add_rates(TopLines& screen, const LiveReading& page, const LiveRow& row) {
  const TopRates rates = rates_of(page, row);
  const spw_stats& stats = row.now.stats;
  screen.line();
  screen.indent();
  screen.item("allocations " + rate_text(rates.allocations_per_s));
  screen.item("driver calls " + rate_text(rates.driver_calls_per_s));
  screen.item("host waits " + rate_text(rates.host_waits_per_s),
              rates.host_waits_per_s > 0 ? TopColour::kYellow : TopColour::kNone);
  screen.item(fmt::format("retries {}", stats.num_alloc_retries),
              stats.num_alloc_retries > 0 ? TopColour::kYellow : TopColour::kNone);
  screen.item(fmt::format("OOMs {}", stats.num_ooms),
              stats.num_ooms > 0 ? TopColour::kRed : TopColour::kNone);
  screen.line();
  screen.indent();
  screen.item("ladder");
  for (const RungFigures& rung : rungs_of(page, row)) {
    if (rung.hits <= 0) continue;
    const std::string rate = rung.per_s > 0 ? fmt::format(" ({})", rate_text(rung.per_s)) : "";
    screen.item(fmt::format("{} {:.0f}{}", rung.name, rung.hits, rate),
                rung.per_s > 0 ? TopColour::kYellow : TopColour::kDim);
  }
}

void add_tiers(TopLines& screen, const LiveReading& page, const LiveDevice& device) {
  const spw_tier_stats& tiers = device.tiers;
  const auto host =
      static_cast<double>(tiers.region_host_bytes) + static_cast<double>(tiers.stash_host_bytes);
  const auto disk =
      static_cast<double>(tiers.region_disk_bytes) + static_cast<double>(tiers.stash_disk_bytes);
  const double placed = number(device.stats.host_placed_bytes);
  const double pinned = page.pinned.has_value() ? number(page.pinned->reserved_bytes.current) : 0;
  if (device.has_tiers == 0 && placed == 0 && pinned == 0) return;
  screen.line();
  screen.indent();
  screen.item("tiers");
  screen.item("host " + size_text(host));
  screen.item("disk " + size_text(disk));
  screen.item("placed in host memory " + size_text(placed));
  screen.item("pinned " + size_text(pinned));
}

}  // namespace

TopRates rates_of(const LiveReading& page, const LiveRow& row) {
  TopRates rates;
  if (page.apart_ns <= 0) return rates;
  const double seconds = number(page.apart_ns) / kNsPerSecond;
  const spw_stats& now = row.now.stats;
  const spw_stats& before = row.before.stats;
  const auto rate = [&](int64_t later, int64_t earlier) {
    return (number(later) - number(earlier)) / seconds;
  };
  rates.allocations_per_s = rate(now.allocation.all.allocated, before.allocation.all.allocated);
  rates.frees_per_s = rate(now.allocation.all.freed, before.allocation.all.freed);
  rates.driver_calls_per_s = (all_driver_calls(now) - all_driver_calls(before)) / seconds;
  rates.host_waits_per_s = rate(now.host_waits, before.host_waits);
  for (const RungFigures& rung : rungs_of(page, row)) rates.rung_hits_per_s += rung.per_s;
  return rates;
}

double external_fragmentation(const spw_stats& stats) {
  const double free = number(stats.inactive_split_bytes.all.current) + number(stats.cached_free_bytes);
  if (!(free > 0)) return 0;
  return std::clamp(1 - number(stats.largest_free_bytes) / free, 0.0, 1.0);
}

bool is_over(const LiveReading& page) {
  return page.life == LiveLife::kEnded;
}

double sort_value(const LiveReading& page, TopSort sort) {
  double sum = 0;
  for (const LiveRow& row : page.devices) {
    const spw_stats& stats = row.now.stats;
    if (sort == TopSort::kReserved) sum += number(stats.reserved_bytes.all.current);
    if (sort == TopSort::kActive) sum += number(stats.active_bytes.all.current);
    if (sort == TopSort::kAllocations) sum += rates_of(page, row).allocations_per_s;
  }
  if (sort == TopSort::kRank) return -number(page.rank);
  return sort == TopSort::kPid ? -number(page.process.pid) : sum;
}

std::vector<const LiveReading*> ordered(const LiveListing& listing, TopSort sort, const std::string& filter) {
  std::vector<const LiveReading*> out;
  for (const LiveReading& page : listing.pages) {
    const std::string names = fmt::format("{} {} rank {}", page.process.pid, page.program, page.rank);
    if (names.find(filter) != std::string::npos) out.push_back(&page);
  }
  std::stable_sort(out.begin(), out.end(), [&](const LiveReading* a, const LiveReading* b) {
    if (is_over(*a) != is_over(*b)) return is_over(*b);
    return sort_value(*a, sort) > sort_value(*b, sort);
  });
  return out;
}

double reserved_peak(const LiveReading& page) {
  double peak = 0;
  for (const LiveRow& row : page.devices) peak += number(row.now.stats.reserved_bytes.all.peak);
  return peak;
}

void add_row(TopLines& screen, const LiveReading& page, int64_t now_ns) {
  double active = 0, reserved = 0, total = 0;
  for (const LiveRow& row : page.devices) {
    active += number(row.now.stats.active_bytes.all.current);
    reserved += number(row.now.stats.reserved_bytes.all.current);
    total += static_cast<double>(row.now.total_bytes);
  }
  const std::string who = fmt::format("{:>8} {:>4} {:<22.22}", page.process.pid, page.rank, page.program);
  if (is_over(page)) {
    const double age = (number(now_ns) - number(page.written_ns)) / kNsPerSecond;
    screen.rest(
        fmt::format("{} {:>10} ended, as of {} ago", who, size_text(reserved_peak(page)), age_text(age)),
        TopColour::kDim);
    return;
  }
  screen.rest(fmt::format("{} {:>10}", who, size_text(reserved)));
  screen.rest(" ");
  if (screen.left() > 10)
    screen.bar({{active / total, "\u2588", "#", TopColour::kGreen},
                {(reserved - active) / total, "\u2591", ".", TopColour::kBlue}});
}

void add_details(TopLines& screen, const LiveReading& page, int64_t now_ns) {
  screen.line();
  add_process(screen, page, now_ns);
  for (const LiveRow& row : page.devices) {
    add_memory(screen, row.now);
    add_fragmentation(screen, row.now.stats);
    add_rates(screen, page, row);
    add_tiers(screen, page, row.now);
  }
}

void add_problems(TopLines& screen, const LiveListing& listing) {
  if (!listing.problems.empty()) screen.line();
  for (const std::string& problem : listing.problems) screen.paragraph(problem, TopColour::kRed);
}

std::vector<std::string> top_lines(const LiveListing& listing, int64_t now_ns, const TopStyle& style) {
  const std::vector<const LiveReading*> pages = ordered(listing, TopSort::kReserved, "");
  const auto over =
      std::find_if(pages.begin(), pages.end(), [](const LiveReading* page) { return is_over(*page); });
  TopLines screen(style);
  screen.line();
  screen.item("spillway", TopColour::kBold);
  screen.item(fmt::format("{} running", over - pages.begin()));
  if (over != pages.end()) {
    screen.item(
        fmt::format("{} ended{}", pages.end() - over, pages.size() == 1 ? "" : " (--json, or a PID, shows)"));
  }
  for (auto page = pages.begin(); page != over; ++page) add_details(screen, **page, now_ns);
  // One that was asked for, or is alone, is told of.
  if (over != pages.end() && pages.size() == 1) {
    screen.line();
    add_process(screen, **over, now_ns);
    screen.item("peak " + size_text(reserved_peak(**over)));
  }
  add_problems(screen, listing);
  return screen.take();
}

}  // namespace spillway
