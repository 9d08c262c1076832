// Finds what two reports have in common where a program was changed between them: a call that stands some
// lines further down is the same call.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

struct Match {
  std::optional<size_t> before;  // indices; one of them may be missing
  std::optional<size_t> after;
};

// Names that end in a line's number, as "train (train.py:14)" or "train /home/train.py:14", of siblings of
// each report. Equal names match first; of the rest, those that differ in their lines alone, in the order of
// their lines. Names of one list differ from each other.
std::vector<Match> match_lines(const std::vector<std::string>& before, const std::vector<std::string>& after);

}  // namespace spillway
