// Here the C ABI ends: no exception leaves a function, and an error's text stays with its thread.
#pragma once

#include <fmt/format.h>

#include "abi/process.h"

namespace spillway {

// Runs `body`, which answers a Status, and turns whatever it throws into a code.
template <typename Body>
spw_status guarded(Body body) noexcept {
  try {
    return report(body());
  } catch (...) {
    return report(thrown());
  }
}

inline Status is_null(const char* what) {
  return Status::invalid_argument(fmt::format("{} is NULL", what));
}

}  // namespace spillway
