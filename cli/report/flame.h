// Shows who holds the bytes of a moment, as a tree: by the stacks that allocated them, from the program's
// entry inwards, or by the Python modules on the way. The root has all of it, and a node what its children
// and itself have.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/report/rank_report.h"

namespace spillway {

enum class FlameBy : uint8_t { kStack, kModule };

struct FlameNode {
  std::string name;
  uint64_t bytes = 0;   // as requested, pending blocks included
  uint64_t before = 0;  // of a comparison: what it had in the other file
  uint64_t blocks = 0;
  std::vector<FlameNode> children;  // the most bytes first
};

// Makes that of what the program held when it held the most.
FlameNode flame_of(const RankReport& report, FlameBy by);
// Two trees as one: `bytes` of the second file, `before` of the first.
FlameNode flame_of_change(const FlameNode& before, const FlameNode& after);

// Nodes too narrow to be seen are taken together, so that every sum stays.
nlohmann::ordered_json flame_json(const FlameNode& root);

}  // namespace spillway
