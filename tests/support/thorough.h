// Says how much of what can be gone through tests go through: all of it, or so many seeds and steps.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace spillway::test {

// Tells whether scripts/test --long asks for everything, by SPILLWAY_TEST_THOROUGH.
inline bool is_thorough() {
  const char* const asked = std::getenv("SPILLWAY_TEST_THOROUGH");
  return asked != nullptr && *asked != 0;
}

// A number that whoever runs the tests may set, such as SPILLWAY_TEST_SEEDS.
inline uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? fallback : std::strtoull(text, nullptr, 10);
}

// From one place of a scenario to the next one that a test makes fail: one, where it is thorough; else
// `usual`; `sanitized` under the sanitizers, which take several times as long for each; and `threaded` under
// ThreadSanitizer, where a failure meets the same threads wherever it is.
inline uint64_t stride(uint64_t usual, uint64_t sanitized, uint64_t threaded) {
  if (is_thorough()) return 1;
#if defined(__SANITIZE_THREAD__)
  (void)usual, (void)sanitized;
  return threaded;
#elif defined(__SANITIZE_ADDRESS__)
  (void)usual, (void)threaded;
  return sanitized;
#else
  (void)sanitized, (void)threaded;
  return usual;
#endif
}
inline uint64_t stride(uint64_t usual, uint64_t sanitized) {
  return stride(usual, sanitized, sanitized);
}

}  // namespace spillway::test
