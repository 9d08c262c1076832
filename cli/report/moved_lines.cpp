#include "cli/report/moved_lines.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

namespace spillway {
namespace {

struct Place {
  std::string without_line;
  uint64_t line = 0;
};

Place place_of(std::string_view name) {
  Place out;
  const size_t colon = name.rfind(':');
  const char* const begin = name.data() + (colon == std::string_view::npos ? name.size() : colon + 1);
  const char* const end = name.data() + name.size();
  const char* const stop = std::from_chars(begin, end, out.line).ptr;
  const bool ends_in_line = stop != begin && (stop == end || (stop + 1 == end && *stop == ')'));
  out.without_line = ends_in_line ? name.substr(0, colon + 1) : name;
  return out;
}

// Indices of names by their lines: those of names that say the same beside the line.
using Lines = std::map<uint64_t, size_t>;

std::map<std::string, Lines> by_place(const std::vector<std::string>& names) {
  std::map<std::string, Lines> out;
  for (size_t i = 0; i < names.size(); ++i) {
    const Place place = place_of(names[i]);
    out[place.without_line].emplace(place.line, i);
  }
  return out;
}

// How far most of the lines have moved, as far as that can be told: none where it is one line that fits by
// chance. Of moves that as many lines tell of, the shortest.
std::optional<int64_t> commonest_move(const Lines& before, const Lines& after) {
  std::map<int64_t, size_t> counts;
  for (const auto& [from, in_before] : before) {
    for (const auto& [to, in_after] : after) ++counts[static_cast<int64_t>(to) - static_cast<int64_t>(from)];
  }
  const auto is_less = [](const auto& a, const auto& b) {
    return std::pair(a.second, -std::abs(a.first)) < std::pair(b.second, -std::abs(b.first));
  };
  const auto best = std::max_element(counts.begin(), counts.end(), is_less);
  if (best == counts.end() || (best->second == 1 && best->first != 0)) return std::nullopt;
  return best->first;
}

}  // namespace

std::vector<Match> match_lines(const std::vector<std::string>& before,
                               const std::vector<std::string>& after) {
  std::vector<Match> out;
  std::vector<bool> is_before_matched(before.size());
  std::vector<bool> is_after_matched(after.size());
  const auto match = [&](size_t in_before, size_t in_after) {
    out.push_back({in_before, in_after});
    is_before_matched[in_before] = is_after_matched[in_after] = true;
  };
  std::map<std::string, Lines> gone = by_place(before);
  for (auto& [name, found] : by_place(after)) {
    const auto same = gone.find(name);
    if (same == gone.end()) continue;
    Lines from = same->second;
    Lines to = found;
    while (const std::optional<int64_t> move = commonest_move(from, to)) {
      for (auto line = from.begin(); line != from.end();) {
        const auto moved = to.find(static_cast<uint64_t>(static_cast<int64_t>(line->first) + *move));
        if (moved == to.end()) {
          ++line;
          continue;
        }
        match(line->second, moved->second);
        to.erase(moved);
        line = from.erase(line);
      }
    }
    auto line = from.begin();
    for (const auto& [to_line, in_after] : to) {
      if (line == from.end()) break;
      match((line++)->second, in_after);
    }
  }
  for (size_t i = 0; i < before.size(); ++i) {
    if (!is_before_matched[i]) out.push_back({i, std::nullopt});
  }
  for (size_t i = 0; i < after.size(); ++i) {
    if (!is_after_matched[i]) out.push_back({std::nullopt, i});
  }
  return out;
}

}  // namespace spillway
