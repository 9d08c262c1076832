// Device memory that is filled with one value, as a process of tests/support/child.h fills it and looks at
// it.
#pragma once

#include <vector>

#include "tests/support/child.h"

namespace spillway::test {

inline void fill(const Driver& driver, void* block, unsigned char value, size_t bytes) {
  const std::vector<unsigned char> pattern(bytes, value);
  SPW_CHECK(driver.cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(block), pattern.data(), bytes) == CUDA_SUCCESS);
}

inline bool is_filled(const Driver& driver, const void* block, unsigned char value, size_t bytes) {
  std::vector<unsigned char> found(bytes);
  SPW_CHECK(driver.cuMemcpyDtoH(found.data(), reinterpret_cast<CUdeviceptr>(block), bytes) == CUDA_SUCCESS);
  return found == std::vector<unsigned char>(bytes, value);
}

}  // namespace spillway::test
