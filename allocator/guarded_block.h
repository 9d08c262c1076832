// A block that a guard handed out: where its bytes are, what is known of its life, and the text of a report
// about it. Plain data; guarded by whoever owns it.
//
// In address order a block is its red zone before (512 B), the program's bytes, and its red zone after, which
// begins at the very next byte and ends 512 B past the next multiple of 512.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "allocator/call_trace.h"
#include "allocator/units.h"
#include "driver/event.h"

namespace spillway {

constexpr uint64_t kZoneBytes = kQuantumBytes;
constexpr uint8_t kZonePattern = 0xfb;   // red zones
constexpr uint8_t kFreshPattern = 0xcb;  // the program's bytes until it writes them
constexpr uint8_t kFreedPattern = 0xdd;  // and after it freed them

// Says where in a guard's sequence of allocations and frees something happened, and who did it.
struct GuardStep {
  uint64_t number = 0;  // 0: it did not happen yet
  int thread = 0;       // as the system numbers threads
  CallTrace trace;
};

struct GuardedBlock {
  enum class State : uint8_t {
    kLive,
    kFreeing,      // a thread is between the check of its free and the quarantine
    kQuarantined,  // freed by the program, not given back
    kGone,         // given back: its memory may belong to others
  };
  // Names what was already reported about it, as bits.
  enum Finding : uint8_t { kBefore = 1, kAfter = 2, kAfterFree = 4, kDoubleFree = 8, kInside = 16 };

  uint64_t base = 0;  // where the red zone before begins
  uint64_t bytes = 0;
  uint64_t total_bytes = 0;  // red zones included
  CUstream stream = nullptr;
  State state = State::kLive;
  bool has_zones = false;     // false where it was allocated under capture, or the driver refused: no checks
  bool poisoned = false;      // the program's bytes were filled at the free
  bool out_of_reach = false;  // a stream that it was used on is gone
  uint8_t reported = 0;
  GuardStep allocated;
  GuardStep freed;
  // The streams that were recorded, each with the thread that did: it tells per-thread default streams apart.
  std::vector<std::pair<CUstream, int>> streams;

  uint64_t user() const { return base + kZoneBytes; }
  uint64_t user_end() const { return user() + bytes; }
  uint64_t end() const { return base + total_bytes; }
  bool contains(uint64_t va) const { return va >= base && va < end(); }
};

// Bytes of one part of a block that are not what the guard wrote there.
struct Damage {
  uint64_t count = 0;
  uint64_t first = 0;  // device addresses
  uint64_t last = 0;
  std::array<uint8_t, 16> sample{};  // what was found from `first` on
  uint32_t sampled = 0;

  // Takes in bytes that the host read from `start`; pieces come in ascending order.
  void compare(uint64_t start, const uint8_t* found, uint64_t bytes, uint8_t expected);
};

// Reports: one line that says what is wrong, then what is known of the block.
std::string damage_report(const GuardedBlock& block, int device, GuardedBlock::Finding finding,
                          const Damage& damage);
std::string free_report(const GuardedBlock& block, int device, GuardedBlock::Finding finding,
                        uint64_t freed_va, const GuardStep& now);
// "lies in quarantine" and the like.
const char* whereabouts(GuardedBlock::State state);

}  // namespace spillway
