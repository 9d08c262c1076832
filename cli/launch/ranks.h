// Says which ranks of a job a dryrun runs: --world-size and --ranks.
#pragma once

#include <string>
#include <vector>

#include "driver/status.h"

namespace spillway {

// Makes the program one that starts these ranks (python/spillway/_ranks.py); `named` as "0,511,8-15", all
// where it is empty; `world_size` 0: a launcher in the program says it. Answers how many run, or 0 where
// neither was given: the program is as it was. Errors: invalid_argument.
Result<int> choose_ranks(const std::string& named, int world_size, int devices,
                         std::vector<std::string>& program);

}  // namespace spillway
