// Defines what a spw_ipc_handle holds: where a block's pages are to be had.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "abi/ipc/channel.h"
#include "include/spillway/spillway.h"

namespace spillway {

// Drawn by chance, so that no two processes that ever were have the same.
using ProcessId = std::array<uint64_t, 2>;

struct IpcHandle {
  static constexpr uint64_t kMagic = 0x316370692d777073;

  uint64_t magic = kMagic;
  ProcessId process{};
  uint64_t pointer = 0;   // of the block, in that process
  uint64_t identity = 0;  // PageSpan's
  uint32_t pages = 0;
  int32_t pid = 0;  // for messages
  int32_t device = 0;
  uint32_t unused = 0;

  static IpcHandle read(const spw_ipc_handle& from) {
    IpcHandle handle;
    std::memcpy(&handle, from.bytes, sizeof handle);
    return handle;
  }
  void write(spw_ipc_handle& to) const {
    to = {};
    std::memcpy(to.bytes, this, sizeof *this);
  }
};
static_assert(sizeof(IpcHandle) <= sizeof(spw_ipc_handle));

// These two hold what an importer asks its exporter for, and the answer, which comes with the descriptors: of
// the handle's pages those from number `first` on, in `count` pieces at most.
struct PageRequest {
  IpcHandle handle;
  uint32_t first = 0;
  uint32_t count = 0;
};
struct PageAnswer {
  spw_status status = SPW_OK;
  uint32_t count = 0;
  std::array<uint32_t, kMostDescriptors> pages{};  // that each descriptor shows
  char text[248] = {};                             // of an error
};

// The name of the socket of a process, in the abstract namespace.
std::string socket_name(const ProcessId& process);

}  // namespace spillway
