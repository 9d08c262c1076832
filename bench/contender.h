// The allocators that a benchmark compares, in one process on one device: each a table of plain functions, so
// that both pay the same one indirect call.
#pragma once

#include <cstdint>
#include <string>

#include "driver/status.h"

struct CUstream_st;

namespace spillway {
struct TorchPeer;
}

namespace spillway::bench {

struct Contender {
  const char* name = nullptr;
  spw_status (*allocate)(uint64_t bytes, CUstream_st* stream, void** out) = nullptr;
  spw_status (*free)(void* block) = nullptr;
  spw_status (*empty_cache)() = nullptr;
  const char* (*last_error)() = nullptr;
};

// Spillway through its C ABI, as a program uses it.
Contender spillway_contender();

// PyTorch's own allocator, without expandable segments. SPW_ERROR_UNSUPPORTED where it is not built.
Result<Contender> native_contender();
// The same of a peer that is loaded already; `expandable` says how.
Contender native_contender(const TorchPeer& peer, bool expandable);

}  // namespace spillway::bench
