// The arithmetic of reductions, for every type of NCCL: in order of ranks, in double precision for
// floating-point numbers, in 64 bits that wrap for integers.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/nccl/types.h"

namespace spillway::nccl {

// Says what one rank gives, and how many ranks give the same.
struct Part {
  const char* bytes = nullptr;
  uint64_t times = 1;
  double scalar = 1;  // of kPreMulSum
};

// `parts` of `count` items each; of `ranks` ranks, for averages.
std::vector<char> reduce(int type, int reduction, uint64_t count, const std::vector<Part>& parts,
                         uint64_t ranks);

// One number at the address.
double read_number(int type, const char* at);

}  // namespace spillway::nccl
