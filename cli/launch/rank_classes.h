// Ranks of a dry run whose peaks agree are one class: a job has many ranks and few kinds of them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace spillway {

struct DryrunClass {
  std::vector<std::pair<int, int>> members;  // ranks, and the device that each used
  const nlohmann::json* process = nullptr;   // of the member with most
  const nlohmann::json* device = nullptr;    // its row
  bool equal = true;                         // all members have the same peaks, not only nearly so
};

// Peaks agree where they differ by no more than 2 MiB or a thousandth. In order of the first rank. What
// points into `processes` lives as long as that.
std::vector<DryrunClass> classes_of(const std::vector<nlohmann::json>& processes);

// "rank 0 device 0", "ranks 0-7 and 1023 (9 processes)".
std::string title_of(const DryrunClass& one);

nlohmann::json classes_json(const std::vector<DryrunClass>& classes);

}  // namespace spillway
