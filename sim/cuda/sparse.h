// Moves and fills of bytes that leave alone what was never written: pages of a sparse file without memory.
// Those read as zeros, so a copy of them and a fill with zeros give memory to no page. That costs a few calls
// of the kernel, which pays from some size on.
#pragma once

#include <cstdint>

namespace spillway::sim {

// Says what the device's work is to do so: all of it but under ThreadSanitizer, which is to see who uses the
// bytes.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kSparseWork = false;
#else
inline constexpr bool kSparseWork = true;
#endif

// Bytes as the host sees them, and where they lie in a sparse file.
struct Piece {
  char* bytes = nullptr;
  int file = -1;  // -1: in none
  uint64_t offset = 0;
};

void move_sparse(const Piece& to, const Piece& from, uint64_t bytes);
// With zeros.
void clear_sparse(const Piece& to, uint64_t bytes);

}  // namespace spillway::sim
