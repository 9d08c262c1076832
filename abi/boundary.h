// Where the C ABI ends: no exception leaves a function, and an error's text stays with its thread.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <new>

#include "abi/process.h"

namespace spillway {

// Runs `body`, which answers a Status, and turns whatever it throws into a code.
template <typename Body>
spw_status guarded(Body body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    try {
      return report(Status::out_of_memory("the host has no memory left"));
    } catch (...) {
      return SPW_ERROR_OUT_OF_MEMORY;
    }
  } catch (const std::exception& error) {
    try {
      return report(Status::internal(error.what()));
    } catch (...) {
      return SPW_ERROR_INTERNAL;
    }
  } catch (...) {
    return SPW_ERROR_INTERNAL;
  }
}

inline Status is_null(const char* what) {
  return Status::invalid_argument(fmt::format("{} is NULL", what));
}

}  // namespace spillway
