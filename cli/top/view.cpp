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

enum class Colour : uint8_t { kNone, kBold, kDim, kGreen, kYellow, kBlue, kRed };
constexpr std::array<const char*, 7> kCodes{"", "1", "2", "32", "33", "34", "31"};

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

// Lines of items that are kept whole where they fit: the next begins a line where it does not.
class Screen {
 public:
  explicit Screen(const TopStyle& style) : style_(style) {
    style_.columns = std::max(style_.columns, TopStyle::kNarrowest);
  }

  void line() {
    lines_.emplace_back();
    used_ = 0;
  }
  // Appends an item of one-column characters, two blanks after the one before.
  void item(std::string_view text, Colour colour = Colour::kNone) {
    const std::string shown(text.substr(0, style_.columns - kIndent));
    if (used_ > 0 && used_ + 2 + shown.size() > style_.columns) {
      line();
      raw(std::string(kIndent, ' '), kIndent, Colour::kNone);
    } else if (used_ > kIndent) {
      raw("  ", 2, Colour::kNone);
    }
    raw(shown, shown.size(), colour);
  }
  // Lines of its own, as many as the text takes.
  void paragraph(std::string_view text, Colour colour) {
    while (!text.empty()) {
      line();
      const std::string shown(text.substr(0, style_.columns));
      raw(shown, shown.size(), colour);
      text.remove_prefix(shown.size());
    }
  }
  void indent() { raw(std::string(kIndent, ' '), kIndent, Colour::kNone); }
  // Parts of a whole, each a share of it and how it looks.
  struct Part {
    double share;
    const char* block;
    const char* letter;
    Colour colour;
  };
  void bar(const std::vector<Part>& parts) {
    const size_t width = std::min<size_t>(style_.columns - kIndent - 2, 72);
    raw("[", 1, Colour::kNone);
    size_t drawn = 0;
    double until = 0;
    for (const Part& part : parts) {
      until += std::isfinite(part.share) ? std::clamp(part.share, 0.0, 1.0) : 0;
      const auto end = static_cast<size_t>(std::lround(std::min(until, 1.0) * static_cast<double>(width)));
      std::string text;
      const size_t columns = end - std::min(drawn, end);
      for (size_t i = 0; i < columns; ++i) text += style_.has_unicode ? part.block : part.letter;
      raw(text, columns, part.colour);
      drawn = std::max(drawn, end);
    }
    raw(std::string(width - drawn, ' ') + "]", width - drawn + 1, Colour::kNone);
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  static constexpr size_t kIndent = 2;

  void raw(const std::string& text, size_t columns, Colour colour) {
    if (columns == 0) return;
    const bool is_plain = !style_.has_colour || colour == Colour::kNone;
    lines_.back() +=
        is_plain ? text : fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<size_t>(colour)], text);
    used_ += columns;
  }

  TopStyle style_;
  std::vector<std::string> lines_;
  size_t used_ = 0;
};

void add_process(Screen& screen, const LiveReading& page, int64_t now_ns) {
  screen.line();
  screen.item(fmt::format("PID {}", page.process.pid), Colour::kBold);
  screen.item(page.program, Colour::kBold);
  screen.item(fmt::format("rank {}", page.rank));
  const bool is_running = page.life == LiveLife::kRunning;
  screen.item(life_name(page.life), is_running                      ? Colour::kGreen
                                    : page.life == LiveLife::kEnded ? Colour::kRed
                                                                    : Colour::kYellow);
  // A process that runs writes every interval; one that was replaced by another program does not.
  const double age = (number(now_ns) - number(page.written_ns)) / kNsPerSecond;
  if (!is_running || age > 3 + 3 * static_cast<double>(page.interval_ns) / kNsPerSecond) {
    screen.item(fmt::format("as of {} ago", age_text(age)), Colour::kYellow);
  }
}

void add_memory(Screen& screen, const LiveDevice& device) {
  const spw_stats& stats = device.stats;
  const auto total = static_cast<double>(device.total_bytes);
  screen.line();
  screen.indent();
  screen.item(fmt::format("GPU {}", device.ordinal), Colour::kBold);
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
  screen.bar({{active / total, "\u2588", "#", Colour::kGreen},
              {split / total, "\u2593", "+", Colour::kYellow},
              {cached / total, "\u2591", ".", Colour::kBlue}});
  screen.line();
  screen.indent();
  screen.item("active " + size_text(active), Colour::kGreen);
  screen.item("inactive split " + size_text(split), Colour::kYellow);
  screen.item("cached " + size_text(cached), Colour::kBlue);
  screen.item("reserved " + size_text(number(stats.reserved_bytes.all.current)));
  screen.item("peak " + size_text(number(stats.reserved_bytes.all.peak)));
}

void add_fragmentation(Screen& screen, const spw_stats& stats) {
  const double free = number(stats.inactive_split_bytes.all.current) + number(stats.cached_free_bytes);
  const double scattered = external_fragmentation(stats);
  screen.line();
  screen.indent();
  screen.item(fmt::format("fragmentation {:.0f} %", 100 * scattered),
              scattered > 0.5 ? Colour::kYellow : Colour::kNone);
  screen.item(fmt::format("largest range {} of {} free", size_text(number(stats.largest_free_bytes)),
                          size_text(free)));
  if (free <= 0) return;
  screen.line();
  screen.indent();
  screen.bar({{1 - scattered, "\u2588", "=", Colour::kBlue}, {scattered, "\u2591", ".", Colour::kYellow}});
}

void add_rates(Screen& screen, const LiveReading& page, const LiveRow& row) {
  const TopRates rates = rates_of(page, row);
  const spw_stats& stats = row.now.stats;
  screen.line();
  screen.indent();
  screen.item("allocations " + rate_text(rates.allocations_per_s));
  screen.item("driver calls " + rate_text(rates.driver_calls_per_s));
  screen.item("host waits " + rate_text(rates.host_waits_per_s),
              rates.host_waits_per_s > 0 ? Colour::kYellow : Colour::kNone);
  screen.item(fmt::format("retries {}", stats.num_alloc_retries),
              stats.num_alloc_retries > 0 ? Colour::kYellow : Colour::kNone);
  screen.item(fmt::format("OOMs {}", stats.num_ooms), stats.num_ooms > 0 ? Colour::kRed : Colour::kNone);
  screen.line();
  screen.indent();
  screen.item("ladder");
  for (const RungFigures& rung : rungs_of(page, row)) {
    if (rung.hits <= 0) continue;
    const std::string rate = rung.per_s > 0 ? fmt::format(" ({})", rate_text(rung.per_s)) : "";
    screen.item(fmt::format("{} {:.0f}{}", rung.name, rung.hits, rate),
                rung.per_s > 0 ? Colour::kYellow : Colour::kDim);
  }
}

void add_tiers(Screen& screen, const LiveReading& page, const LiveDevice& device) {
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

std::vector<std::string> top_lines(const LiveListing& listing, int64_t now_ns, const TopStyle& style) {
  Screen screen(style);
  screen.line();
  screen.item("spillway", Colour::kBold);
  screen.item(fmt::format("{} process{}", listing.pages.size(), listing.pages.size() == 1 ? "" : "es"));
  for (const LiveReading& page : listing.pages) {
    screen.line();
    add_process(screen, page, now_ns);
    for (const LiveRow& row : page.devices) {
      add_memory(screen, row.now);
      add_fragmentation(screen, row.now.stats);
      add_rates(screen, page, row);
      add_tiers(screen, page, row.now);
    }
  }
  if (!listing.problems.empty()) screen.line();
  for (const std::string& problem : listing.problems) {
    screen.paragraph(problem, Colour::kRed);
  }
  return screen.take();
}

}  // namespace spillway
