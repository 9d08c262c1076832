// Moves and fills of a device's bytes. Under ThreadSanitizer a move looks at every byte's history, which
// takes ten times as long as the rest of a test: there it looks at the first bytes of each page, and so still
// finds whoever uses a page meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace spillway::sim {

#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kSeenBytes = 64;  // of a page

// The instructions are what ThreadSanitizer does not see.
inline void move_bytes(char* to, const char* from, uint64_t bytes) {
  if (to < from + bytes && from < to + bytes) {
    std::memmove(to, from, bytes);
    return;
  }
  for (uint64_t at = 0; at < bytes; at += kPageBytes) {
    const uint64_t page = std::min(kPageBytes, bytes - at);
    const uint64_t seen = std::min(kSeenBytes, page);
    std::memcpy(to + at, from + at, seen);
    char* target = to + at + seen;
    const char* source = from + at + seen;
    uint64_t left = page - seen;
    asm volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(left) : : "memory");
  }
}

inline void fill_bytes(char* to, char value, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kPageBytes) {
    const uint64_t page = std::min(kPageBytes, bytes - at);
    const uint64_t seen = std::min(kSeenBytes, page);
    std::memset(to + at, value, seen);
    char* target = to + at + seen;
    uint64_t left = page - seen;
    asm volatile("rep stosb" : "+D"(target), "+c"(left) : "a"(value) : "memory");
  }
}

#else

inline void move_bytes(char* to, const char* from, uint64_t bytes) {
  std::memmove(to, from, bytes);
}

inline void fill_bytes(char* to, char value, uint64_t bytes) {
  std::memset(to, value, bytes);
}

#endif

}  // namespace spillway::sim
