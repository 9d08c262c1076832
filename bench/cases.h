// The work that contenders are measured on. Every case is made of pairs, one allocation and one free, and is
// named after what it does; in all of them the memory comes back before more is asked for, so after the first
// iterations no driver call is left and the allocator itself is what is measured.
//
//   pair/SIZE      one block allocated and freed, over and over
//   hit/SIZE       the same, in a pool of 1,024 blocks of which every other one is free
//   mixed          512 live blocks of 512 B to 64 MiB, sizes uniform in the logarithm; a pair replaces one
//   threads/...    pair/64KiB and mixed by 1, 2 and 4 threads, on a stream of their own each or on one
#pragma once

#include <benchmark/benchmark.h>

#include <array>
#include <string>
#include <vector>

#include "bench/contender.h"
#include "driver/driver.h"

namespace spillway::bench {

constexpr int kMaxThreads = 4;

// Holds what every run needs besides a contender. Outlives all runs.
struct Device {
  const Driver* driver = nullptr;
  CUcontext context = nullptr;
  std::array<CUstream, kMaxThreads> streams{};
};

// One row of the result: the contenders of one case in one number of threads, interleaved.
struct CaseName {
  std::string name;
  int threads = 1;
};

// Registers every case whose name contains `filter`, for every contender, as "NAME/CONTENDER" with its number
// of threads. `contenders` and `device` must outlive the runs.
std::vector<CaseName> register_cases(const std::string& filter, const std::vector<Contender>& contenders,
                                     const Device& device);

}  // namespace spillway::bench
