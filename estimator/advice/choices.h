// Choices of one option on each of several axes, by their indices; 0 leaves the axis as it is. Holds what
// searches for plans share, whatever the options are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace spillway::estimator {

// Counts through all choices, the first axis fastest; false after the last, which becomes the first again.
template <typename Choice, typename Axes>
bool next_choice(Choice& choice, const Axes& axes) {
  for (size_t axis = 0; axis < choice.size(); ++axis) {
    if (++choice[axis] < axes[axis].size()) return true;
    choice[axis] = 0;
  }
  return false;
}

// Does it change all that one of `found` changes, alike or otherwise?
template <typename Choice>
bool is_more_of_any(const std::vector<Choice>& found, const Choice& choice) {
  return std::any_of(found.begin(), found.end(), [&](const Choice& each) {
    for (size_t axis = 0; axis < choice.size(); ++axis) {
      if (each[axis] > 0 && choice[axis] == 0) return false;
    }
    return true;
  });
}

}  // namespace spillway::estimator
