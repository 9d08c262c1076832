#include "sim/cuda/sparse.h"

#include <unistd.h>

#include <algorithm>

#include "sim/cuda/bytes.h"

namespace spillway::sim {
namespace {

constexpr uint64_t kLeastBytes = uint64_t{64} << 10;

// Visits what was written of the piece, as places in it, in order.
template <typename Visit>
void each_written(const Piece& piece, uint64_t bytes, const Visit& visit) {
  const auto end = static_cast<off_t>(piece.offset + bytes);
  for (auto at = static_cast<off_t>(piece.offset); at < end;) {
    const off_t data = lseek(piece.file, at, SEEK_DATA);
    if (data < 0 || data >= end) return;  // ENXIO: none up to the file's end
    at = std::min(lseek(piece.file, data, SEEK_HOLE), end);
    visit(static_cast<uint64_t>(data) - piece.offset, static_cast<uint64_t>(at) - piece.offset);
  }
}

bool overlap(const Piece& a, const Piece& b, uint64_t bytes) {
  return a.bytes < b.bytes + bytes && b.bytes < a.bytes + bytes;
}

Piece from_place(const Piece& piece, uint64_t place) {
  return {piece.bytes + place, piece.file, piece.offset + place};
}

}  // namespace

void clear_sparse(const Piece& to, uint64_t bytes) {
  if (to.file < 0 || bytes < kLeastBytes) return fill_bytes(to.bytes, 0, bytes);
  each_written(to, bytes,
               [&](uint64_t begin, uint64_t end) { fill_bytes(to.bytes + begin, 0, end - begin); });
}

void move_sparse(const Piece& to, const Piece& from, uint64_t bytes) {
  if (from.file < 0 || bytes < kLeastBytes || overlap(to, from, bytes)) {
    return move_bytes(to.bytes, from.bytes, bytes);
  }
  uint64_t done = 0;
  each_written(from, bytes, [&](uint64_t begin, uint64_t end) {
    clear_sparse(from_place(to, done), begin - done);
    move_bytes(to.bytes + begin, from.bytes + begin, end - begin);
    done = end;
  });
  clear_sparse(from_place(to, done), bytes - done);
}

}  // namespace spillway::sim
