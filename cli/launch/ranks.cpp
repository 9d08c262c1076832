#include "cli/launch/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>

#include "cli/launch/program.h"

namespace spillway {
namespace {

// So many processes start on one machine.
constexpr int kMostRanks = 256;

// "0,511,8-15" in order; empty where it is malformed or has a rank that is not below `world`, where that is
// known.
std::vector<int> parse_ranks(const std::string& text, int world) {
  std::set<int> ranks;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    int first = 0;
    int last = 0;
    int read = 0;
    if (std::sscanf(word.c_str(), "%6d-%6d%n", &first, &last, &read) != 2) {
      if (std::sscanf(word.c_str(), "%6d%n", &first, &read) != 1) return {};
      last = first;
    }
    const bool is_range = read == static_cast<int>(word.size()) && first >= 0 && first <= last;
    if (!is_range || (world > 0 && last >= world) || last - first >= kMostRanks) return {};
    for (int rank = first; rank <= last; ++rank) ranks.insert(rank);
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace

Result<int> choose_ranks(const std::string& named, int world_size, int devices,
                         std::vector<std::string>& program) {
  ::setenv("SPILLWAY_DRYRUN_DEVICES", std::to_string(devices).c_str(), 1);
  if (named.empty() && world_size == 0) return 0;
  const std::string wanted = named.empty() ? fmt::format("0-{}", world_size - 1) : named;
  const std::vector<int> ranks = parse_ranks(wanted, world_size);
  if (ranks.empty() || static_cast<int>(ranks.size()) > kMostRanks) {
    return Status::invalid_argument(
        named.empty()
            ? fmt::format("--world-size {} starts as many processes; say which with --ranks, at most {}",
                          world_size, kMostRanks)
            : fmt::format("--ranks '{}' names no ranks of the job; such as 0,511 or 0-7, below --world-size, "
                          "at most {}",
                          named, kMostRanks));
  }
  ::setenv("SPILLWAY_DRYRUN_RANKS", fmt::format("{}", fmt::join(ranks, ",")).c_str(), 1);
  ::setenv("SPILLWAY_DRYRUN_WORLD", std::to_string(world_size).c_str(), 1);
  const std::string python = python_of(program);
  program.insert(program.begin(), {python, "-m", "spillway._ranks"});
  return static_cast<int>(ranks.size());
}

}  // namespace spillway
