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
// each report. Of names that differ in their lines alone, those match that are as far apart as most are: by
// no line, where nothing was changed above them, else by what was added there. What is left matches in the
// order of its lines. Names of one list differ from each other.
std::vector<Match> match_lines(const std::vector<std::string>& before, const std::vector<std::string>& after);

}  // namespace spillway
