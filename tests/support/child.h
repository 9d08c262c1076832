// The C ABI works on one context per process, and reads the environment once: each case runs in a process of
// its own.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "driver/driver.h"
#include "include/spillway/spillway.h"

namespace spillway::test {

// Tells whether the device is a real one, or a simulated one that has no more controls than that.
inline bool lacks_controls() {
  return std::getenv("SPILLWAY_TEST_GPU") != nullptr;
}

// Ends the child, with what was expected and the last error of the library.
#define SPW_CHECK(condition)                                                                                 \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      std::fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, spw_last_error()); \
      std::_Exit(1);                                                                                         \
    }                                                                                                        \
  } while (0)

using Environment = std::map<std::string, std::string>;

// A driver with the primary contexts of the first `contexts` devices active, device 0's current.
inline std::shared_ptr<const Driver> start_device(int contexts = 1) {
  Result<std::shared_ptr<const Driver>> opened = Driver::open();
  if (!opened.ok()) {
    std::fprintf(stderr, "no driver: %s\n", opened.status().text().c_str());
    std::_Exit(1);
  }
  std::shared_ptr<const Driver> driver = opened.value();
  for (int i = contexts - 1; i >= 0; --i) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    SPW_CHECK(driver->cuDeviceGet(&device, i) == CUDA_SUCCESS);
    const Status retained =
        driver->check(driver->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    if (!retained.ok()) {
      std::fprintf(stderr, "no context: %s\n", retained.text().c_str());
      std::_Exit(1);
    }
    SPW_CHECK(driver->cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }
  return driver;
}

// Runs `body` in a child process with these variables set. It must end well, with `errors` in what it prints
// to stderr.
inline void in_child(const Environment& environment, const std::function<void()>& body,
                     const std::string& errors = "") {
  EXPECT_EXIT(
      {
        for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
        body();
        std::exit(0);
      },
      testing::ExitedWithCode(0), testing::HasSubstr(errors));
}

inline bool last_error_has(const char* text) {
  return std::strstr(spw_last_error(), text) != nullptr;
}

inline spw_stats stats_of(int device) {
  spw_stats stats;
  stats.size = sizeof stats;
  SPW_CHECK(spw_stats_get(device, &stats) == SPW_OK);
  return stats;
}

}  // namespace spillway::test
