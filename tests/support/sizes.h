// Sizes in bytes, as tests write them.
#pragma once

#include <cstddef>

namespace spillway::test {

constexpr size_t kKiB = size_t{1} << 10;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

}  // namespace spillway::test
