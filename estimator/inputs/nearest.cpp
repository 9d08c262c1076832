#include "estimator/inputs/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace spillway::estimator {
namespace {

// Longer words are nobody's typing mistake.
constexpr size_t kLongest = 64;

// Levenshtein's distance, a row of the table at a time.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& names) {
  if (word.size() > kLongest) return {};
  std::string_view found;
  // Half of a short word, a third of a long one.
  size_t least = std::max<size_t>(1, word.size() / (word.size() < 7 ? 2 : 3)) + 1;
  for (const std::string_view name : names) {
    const size_t edits = distance(word, name);
    if (edits >= least) continue;
    least = edits;
    found = name;
  }
  return found;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& names) {
  const std::string_view found = nearest(word, names);
  return found.empty() ? std::string() : fmt::format("; did you mean '{}'?", found);
}

}  // namespace spillway::estimator
