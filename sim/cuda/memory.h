// Physical memory, the address space, and what is mapped where. One map holds everything that has a device
// address: mappings of handles, cuMemAlloc blocks and pinned host memory. A device address is never readable
// by the host program, except where host-located memory has been given to it; the simulated device reads and
// writes through Backing's window. Cost: logarithmic in the number of mappings. Guarded by State's lock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "sim/cuda/backing.h"
#include "sim/cuda/config.h"
#include "sim/cuda/cuda_api.h"
#include "sim/cuda/shadow.h"
#include "sim/cuda/shared_account.h"
#include "sim/cuda/sparse.h"

namespace spillway::sim {

constexpr int kHostDevice = -1;

// One piece of memory: a handle of cuMemCreate, the memory of a cuMemAlloc block, or pinned host memory. It
// exists while it is referenced (by its handle) or mapped anywhere.
struct Physical {
  enum class Kind : uint8_t { kHandle, kAllocation, kPinned };
  Kind kind = Kind::kHandle;
  int device = 0;  // kHostDevice: host memory
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint32_t references = 0;
  uint32_t mappings = 0;
  uint64_t file_offset = UINT64_MAX;
  char* data = nullptr;    // null where nothing is backed
  bool foreign = false;    // another process's; `data` is a window on it
  bool committed = false;  // there is memory: a graph's block has none until a launch
  CUmemAllocationProp properties{};
  Shadow shadow;
};

struct Mapping {
  uint64_t start = 0;
  uint64_t bytes = 0;
  Physical* physical = nullptr;
  std::array<uint8_t, kMaxDevices> access{};  // CUmemAccess_flags by device
  uint8_t host_access = 0;
  uint8_t sync_memops = 0;
  uint32_t host_flags = 0;  // of cuMemHostAlloc and cuMemHostRegister
  uint64_t buffer_id = 0;
  uint16_t tables = 0;  // devices that have page tables for it, a bit each
  CUcontext context = nullptr;

  uint64_t end() const { return start + bytes; }
  uint64_t view() const { return start; }
};

// Page tables of one device: a table serves one window of addresses, and a granule of device memory has many.
struct PageTables {
  std::map<uint64_t, uint64_t> windows;  // by number; how many mappings are in it
  std::vector<Physical*> granules;
};

class Memory {
 public:
  Memory() = default;
  ~Memory() { clear(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // False when the kernel refuses memory for the device.
  bool reset(const Config& config, SharedAccount account);

  // A handle with one reference; null when the device (or the host's address space) is out of memory.
  Physical* create(Physical::Kind kind, int device, uint64_t bytes);
  // One without memory, which it has between commit and decommit. False: the device is out of memory.
  Physical* create_empty(Physical::Kind kind, int device, uint64_t bytes);
  bool commit(Physical& physical);
  void decommit(Physical& physical);
  Physical* find_handle(uint64_t handle);
  void release(Physical* physical);
  // Memory of another process, seen through a window of its file.
  Physical* adopt(Physical::Kind kind, int device, uint64_t bytes, char* window);

  // Address space. 0 when there is none.
  uint64_t reserve(uint64_t bytes, uint64_t alignment, uint64_t hint);
  bool unreserve(uint64_t start, uint64_t bytes);
  bool inside_reservation(uint64_t start, uint64_t bytes) const;
  // Start and size of the reservation around the address; {0, 0} if none.
  std::pair<uint64_t, uint64_t> reservation_of(uint64_t address) const;

  // The caller has checked that the range is free (and reserved, for a handle).
  Mapping* map(uint64_t start, uint64_t bytes, Physical* physical);
  void unmap(Mapping* mapping);
  Mapping* find(uint64_t address);
  bool any_mapped(uint64_t start, uint64_t bytes);
  // The mappings that together are exactly this range, without a gap; empty if it is not made of whole
  // mappings.
  std::vector<Mapping*> exactly(uint64_t start, uint64_t bytes);
  // Page tables of a device for a mapping, kept until it is unmapped. False: there is no memory for them.
  // Nothing to do where overheads are not modelled.
  bool make_tables(Mapping& mapping, int device);
  // Blocks of cuMemAlloc made in this context.
  std::vector<Mapping*> allocations_of(CUcontext context);
  // Gives the host program access to host-located memory at its device address, or takes it away.
  bool open_to_host(Mapping* mapping, bool readable, bool writable);

  // Host address of the byte at this device address and how many follow it contiguously; null where there is
  // none.
  char* bytes_at(uint64_t address, uint64_t* contiguous);
  // The same, and where it lies in the file of its device.
  Piece piece_at(uint64_t address, uint64_t* contiguous);

  uint64_t free_bytes(int device) const {
    const uint64_t held = used_bytes(device) + account_.held_by_others(device);
    return held < capacity_bytes_ ? capacity_bytes_ - held : 0;
  }
  uint64_t used_bytes(int device) const { return used_[static_cast<size_t>(device)]; }
  uint64_t peak_bytes(int device) const { return peak_[static_cast<size_t>(device)]; }
  uint64_t live_mappings() const { return live_mappings_; }
  uint64_t peak_mappings() const { return peak_mappings_; }
  uint64_t live_handles() const { return live_handles_; }
  void reset_peaks();

  // File and offset of a piece of memory, for export; file -1 where nothing is backed.
  int file_of(const Physical& physical) const;
  // The most recent cuMemFree or cuMemUnmap that covered this address, for the text of reports.
  const char* fate_of(uint64_t address) const;

 private:
  void clear();
  void destroy_if_unused(Physical* physical);
  // The host's comes first.
  static size_t backing_index(int device) {
    const int index = device - kHostDevice;
    return static_cast<size_t>(index);
  }
  Backing& backing_of(int device) { return backings_[backing_index(device)]; }
  void note_fate(const Mapping& mapping);
  void drop_tables(const Mapping& mapping, int device);

  uint64_t capacity_bytes_ = 0;
  bool backed_ = false;
  std::array<Backing, kMaxDevices + 1> backings_;
  std::vector<int> visible_;  // as Config's
  SharedAccount account_;
  std::array<uint64_t, kMaxDevices> used_{};
  std::array<uint64_t, kMaxDevices> peak_{};
  std::unordered_map<uint64_t, std::unique_ptr<Physical>> physicals_;
  std::map<uint64_t, uint64_t> reservations_;  // start to size
  std::map<uint64_t, Mapping> mappings_;
  std::map<uint64_t, std::pair<uint64_t, bool>> fates_;  // start to end, and whether it was freed
  bool overheads_ = false;
  uint64_t granularity_bytes_ = 0;
  std::array<PageTables, kMaxDevices> tables_;
  uint64_t live_mappings_ = 0;
  uint64_t peak_mappings_ = 0;
  uint64_t live_handles_ = 0;
  uint64_t next_id_ = 0x1000;  // never repeated, so that stale handles are seen
};

}  // namespace spillway::sim
