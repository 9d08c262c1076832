// How much of what can be gone through tests go through.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace spillway::test {

// From one place of a scenario to the next one that a test makes fail: one, where SPILLWAY_TEST_THOROUGH is set, as
// scripts/test --long does; else `usual`, and more under the sanitizers, which take several times as long for each.
inline uint64_t stride(uint64_t usual) {
  const char* const thorough = std::getenv("SPILLWAY_TEST_THOROUGH");
  if (thorough != nullptr && *thorough != 0) return 1;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 4 * usual;
#else
  return usual;
#endif
}

}  // namespace spillway::test
