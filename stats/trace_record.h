// Defines what a trace is made of: rows of one size, in memory as in the file.
//
// A trace file is a row of zstd frames, each of which holds whole records; what precedes the first incomplete
// frame can be read, so a killed process leaves a readable trace. The first record is kHeader. A record whose
// kind carries a payload is followed by requested_bytes bytes of it, padded with zeros to a multiple of 8.
// Little-endian. docs/trace.md has the meaning of each field for each kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif
#include <ctime>

namespace spillway {

enum class TraceKind : uint8_t {
  // These concern blocks. An allocate's stack says where; a free has none.
  kAllocate = 1,
  kFree = 2,           // requested and completed at once
  kFreeRequested = 3,  // other streams still use the block
  kFreeCompleted = 4,
  // These concern the device: physical memory came (requested_bytes) or went (block_bytes); a range was
  // mapped, unmapped.
  kReserve = 5,
  kMap = 6,
  kUnmap = 7,
  // Between tiers: a range of a pool left the device with its blocks, or came back; a block was placed in
  // host memory.
  kEvict = 8,
  kRestore = 9,
  kPlace = 10,
  kUnplace = 11,
  // These concern the ladder: a rung was tried (address: which one, requested_bytes: ns, block_bytes: 1 if it
  // served); a request was served after a wait of the host; none served a request of requested_bytes.
  kRung = 12,
  kRetry = 13,
  kOutOfMemory = 14,
  kMark = 15,   // payload: its text
  kLimit = 16,  // the most that may be held on the device is requested_bytes from now on
  // These concern the file only.
  kHeader = 32,   // payload: JSON
  kText = 33,     // payload: the text that has number `stack`
  kFrame = 34,    // number `stack`; address: the function's text, stream: the file's, block_bytes: the line
  kStack = 35,    // payload: numbers of frames as uint32, innermost first
  kTag = 36,      // payload: the name of tag `tag`
  kClock = 37,    // `ticks` was address ns since 1970
  kDropped = 38,  // so many records (block_bytes) were lost since the last of these: the writer fell behind
  kLive = 39,     // as kAllocate, of a block that lives since before the file's first event
  kEnd = 40,      // the program ended the trace
};

constexpr bool has_payload(TraceKind kind) {
  return kind == TraceKind::kMark || kind == TraceKind::kHeader || kind == TraceKind::kText ||
         kind == TraceKind::kStack || kind == TraceKind::kTag;
}

struct TraceRecord {
  uint64_t ticks = 0;  // see kClock
  uint64_t address = 0;
  uint64_t requested_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t stream = 0;  // as the driver's handle
  uint32_t stack = 0;   // 0: none
  uint16_t tag = 0;     // 0: none
  TraceKind kind = TraceKind::kAllocate;
  int8_t device = 0;
};
static_assert(sizeof(TraceRecord) == 48 && std::is_trivially_copyable_v<TraceRecord>);

inline constexpr int kTraceVersion = 1;

constexpr size_t padded_payload(uint64_t bytes) {
  return static_cast<size_t>((bytes + 7) / 8 * 8);
}

// The clock of records: the processor's own where it runs at one rate in all states (Intel SDM volume
// 3, 17.17.1, CPUID 80000007H EDX bit 8), which costs a fifth of the system's.
inline bool has_steady_ticks() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
#else
  return false;
#endif
}
inline uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}
inline uint64_t trace_ticks(bool steady) {
#if defined(__x86_64__)
  if (steady) return __rdtsc();
#endif
  (void)steady;
  return clock_ns(CLOCK_MONOTONIC);
}

// Holds what the records of a thread's next allocations carry. Static TLS: a few bytes, found without a call.
struct TraceThread {
  uint32_t stack = 0;  // of the next allocation only
  uint16_t tag = 0;
};
inline thread_local constinit TraceThread trace_thread __attribute__((tls_model("initial-exec")));

}  // namespace spillway
