#include "cli/top/screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace spillway {
namespace {

constexpr std::array<const char*, kTopSorts> kSortNames = {"reserved", "active", "allocations", "rank",
                                                           "process id"};

struct Shown {
  std::vector<const LiveReading*> pages;  // in order; ended ones too, where they are shown
  size_t ended = 0;                       // of all that the filter leaves
  size_t chosen = 0;
};

Shown shown_of(const TopScreen& screen, const LiveListing& listing) {
  Shown out;
  out.pages = ordered(listing, screen.sort, screen.filter);
  const auto over = std::find_if(out.pages.begin(), out.pages.end(),
                                 [](const LiveReading* page) { return is_over(*page); });
  out.ended = static_cast<size_t>(out.pages.end() - over);
  if (!screen.shows_ended) out.pages.erase(over, out.pages.end());
  for (size_t i = 0; i < out.pages.size(); ++i) {
    if (out.pages[i]->process.pid == screen.chosen) out.chosen = i;
  }
  return out;
}

void move(TopScreen& screen, const Shown& shown, bool down) {
  if (shown.pages.empty()) return;
  const size_t last = shown.pages.size() - 1;
  const size_t to = down ? std::min(shown.chosen + 1, last) : shown.chosen - (shown.chosen > 0 ? 1 : 0);
  screen.chosen = shown.pages[to]->process.pid;
}

void type(TopScreen& screen, const std::string& key) {
  if (key == "\r" || key == "\n" || key == "\x1b") {
    screen.is_typing = false;
    if (key == "\x1b") screen.filter.clear();
  } else if (key == "\x7f" || key == "\b") {
    if (!screen.filter.empty()) screen.filter.pop_back();
  } else if (key.size() == 1 && key.front() >= ' ' && key.front() <= '~') {
    screen.filter += key;
  }
}

void ask(TopScreen& screen, const Shown& shown) {
  if (shown.pages.empty()) return;
  const LiveReading& page = *shown.pages[shown.chosen];
  if (page.life == LiveLife::kEnded || page.life == LiveLife::kElsewhere) {
    screen.message = fmt::format("process {} is not one that can be ended from here", page.process.pid);
    return;
  }
  screen.asked_about = page.process.pid;
  screen.message = fmt::format("end process {} ({}) with SIGTERM? y/n", page.process.pid, page.program);
}

void add_help(TopLines& out) {
  for (const char* text :
       {"", "arrows   choose a process; all of it stands below", "s        sort by the next figure",
        "/        filter by program, process id or rank; Enter keeps it, Escape drops it",
        "e        show processes that have ended, or fold them",
        "k        end the chosen process, after a question", "h        this help", "q        quit", "",
        "bars: active, then free but reserved, of the device"}) {
    out.line();
    out.rest(text);
  }
}

void add_top(TopLines& out, const TopScreen& screen, const Shown& shown) {
  out.line();
  out.item("spillway", TopColour::kBold);
  const size_t running = shown.pages.size() - (screen.shows_ended ? shown.ended : 0);
  out.item(fmt::format("{} running", running), running > 0 ? TopColour::kGreen : TopColour::kNone);
  if (shown.ended > 0)
    out.item(fmt::format("{} ended{}", shown.ended, screen.shows_ended ? "" : " (e shows)"));
  out.item(fmt::format("by {}", kSortNames[static_cast<size_t>(screen.sort)]));
  if (!screen.filter.empty() || screen.is_typing)
    out.item(fmt::format("filter: {}{}", screen.filter, screen.is_typing ? "_" : ""), TopColour::kYellow);
}

void add_bottom(TopLines& out, const TopScreen& screen) {
  out.line();
  if (!screen.message.empty()) {
    out.rest(screen.message, TopColour::kYellow);
  } else {
    out.rest("h help  q quit  arrows choose  s sort  / filter  e ended  k end", TopColour::kDim);
  }
}

}  // namespace

TopKey press(TopScreen& screen, const std::string& key, const LiveListing& listing) {
  screen.message.clear();
  if (screen.is_typing) {
    type(screen, key);
    return TopKey::kNothing;
  }
  if (screen.asked_about != 0) {
    if (key == "y" || key == "Y") return TopKey::kEnd;
    screen.asked_about = 0;
    return TopKey::kNothing;
  }
  const Shown shown = shown_of(screen, listing);
  if (key == "q" || key == "\x04") return TopKey::kQuit;
  if (key == "\x1b[A" || key == "\x1bOA") move(screen, shown, false);
  if (key == "\x1b[B" || key == "\x1bOB") move(screen, shown, true);
  if (key == "s") screen.sort = static_cast<TopSort>((static_cast<int>(screen.sort) + 1) % kTopSorts);
  if (key == "/") screen.is_typing = true;
  if (key == "e") screen.shows_ended = !screen.shows_ended;
  if (key == "h" || key == "?") screen.shows_help = !screen.shows_help;
  if (key == "k") ask(screen, shown);
  return TopKey::kNothing;
}

std::vector<std::string> screen_lines(const TopScreen& screen, const LiveListing& listing, int64_t now_ns,
                                      const TopStyle& style, size_t rows) {
  const Shown shown = shown_of(screen, listing);
  TopLines out(style);
  add_top(out, screen, shown);
  if (screen.shows_help) {
    add_help(out);
  } else {
    out.line();
    out.rest(fmt::format("   {:>8} {:>4} {:<22} {:>10}", "PID", "rank", "program", "reserved"),
             TopColour::kDim);
    // The list takes at most half, so that what is chosen has room.
    const size_t most = std::max<size_t>(1, rows / 2);
    const size_t first = shown.chosen + 1 > most ? shown.chosen + 1 - most : 0;
    for (size_t i = first; i < std::min(shown.pages.size(), first + most); ++i) {
      out.line();
      out.rest(i == shown.chosen ? " > " : "   ", TopColour::kBold);
      add_row(out, *shown.pages[i], now_ns);
    }
    if (!shown.pages.empty()) add_details(out, *shown.pages[shown.chosen], now_ns);
    add_problems(out, listing);
  }
  std::vector<std::string> lines = out.take();
  TopLines bottom(style);
  add_bottom(bottom, screen);
  if (lines.size() + 1 > rows) {
    const size_t more = lines.size() + 1 - rows + 1;
    lines.resize(rows - std::min<size_t>(rows, 2));
    lines.push_back(fmt::format("{} more lines: spillway top --once", more));
  }
  if (rows > 1) lines.push_back(bottom.take().front());
  return lines;
}

}  // namespace spillway
