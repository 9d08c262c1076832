// Ranks that do not run are taken to do what the nearest rank does that runs; of two as near, the lower one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway::nccl {

// `real`: the ranks that run, in order, at least one. Answers an index into it.
size_t nearest(const std::vector<int>& real, int rank);
// For each of them, how many of the ranks below `size` do as it does, itself included.
std::vector<uint64_t> followers(const std::vector<int>& real, int size);

}  // namespace spillway::nccl
