#include "estimator/inputs/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace spillway::estimator {
namespace {

// Longer words are nobody's typing mistake.
constexpr size_t kLongest = 64;

// Letters put in, left out, taken for others, or swapped with their neighbours: the optimal string alignment
// distance, a row of its table at a time.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), last[j] + 1, row[j - 1] + 1});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& names,
                         size_t most_edits) {
  if (word.size() > kLongest) return {};
  std::string_view found;
  // Half of a short word, a third of a long one.
  size_t least = std::min(most_edits, std::max<size_t>(1, word.size() / (word.size() < 7 ? 2 : 3))) + 1;
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
