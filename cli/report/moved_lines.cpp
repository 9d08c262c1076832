#include "cli/report/moved_lines.h"

#include <algorithm>
#include <charconv>
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
  out.without_line = ends_in_line ? name.substr(0, colon) : name;
  return out;
}

// Indices by what the names say beside the line, in the order of their lines.
std::map<std::string, std::vector<size_t>> by_place(const std::vector<std::string>& names,
                                                    const std::vector<bool>& is_matched) {
  std::map<std::string, std::vector<std::pair<uint64_t, size_t>>> lines;
  for (size_t i = 0; i < names.size(); ++i) {
    if (is_matched[i]) continue;
    const Place place = place_of(names[i]);
    lines[place.without_line].emplace_back(place.line, i);
  }
  std::map<std::string, std::vector<size_t>> out;
  for (auto& [name, found] : lines) {
    std::sort(found.begin(), found.end());
    for (const auto& [line, index] : found) out[name].push_back(index);
  }
  return out;
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
  std::map<std::string_view, size_t> names;
  for (size_t i = 0; i < before.size(); ++i) names.emplace(before[i], i);
  for (size_t i = 0; i < after.size(); ++i) {
    const auto found = names.find(after[i]);
    if (found != names.end() && !is_before_matched[found->second]) match(found->second, i);
  }
  const std::map<std::string, std::vector<size_t>> gone = by_place(before, is_before_matched);
  for (const auto& [name, found] : by_place(after, is_after_matched)) {
    const auto same = gone.find(name);
    if (same == gone.end()) continue;
    for (size_t i = 0; i < std::min(found.size(), same->second.size()); ++i) match(same->second[i], found[i]);
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
