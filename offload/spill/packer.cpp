#include "offload/spill/packer.h"

#include <algorithm>
#include <chrono>

namespace spillway {
namespace {

constexpr size_t kSampleBytes = 64 << 10;

double ratio(size_t before, size_t after) {
  return after == 0 ? 0 : static_cast<double>(before) / static_cast<double>(after);
}

}  // namespace

bool Packer::may_try() {
  const Lock lock(mutex_);
  if (skips_ > 0) {
    --skips_;
    return false;
  }
  ++trials_;
  return true;
}

void Packer::note(bool pays) {
  const Lock lock(mutex_);
  failures_ = pays ? 0 : failures_ + 1;
  skips_ = pays ? 0 : std::min(kMostSkips, 1u << std::min(failures_, 16u));
}

uint64_t Packer::trials() const {
  const Lock lock(mutex_);
  return trials_;
}

std::optional<uint8_t> Packer::find_width(std::span<const std::byte> piece, std::span<std::byte> out) const {
  const size_t bytes = std::min(kSampleBytes, piece.size());
  const auto sample = piece.subspan((piece.size() - bytes) / 2 / 4 * 4, bytes);
  double best = kLeastRatio;
  std::optional<uint8_t> width;
  for (const uint8_t tried : {uint8_t{2}, uint8_t{4}, uint8_t{1}}) {
    const double found = ratio(bytes, spillway::pack({codec_, tried}, sample, out));
    if (found < best) continue;
    best = found;
    width = tried;
  }
  return width;
}

std::optional<Packer::Packed> Packer::pack(std::span<const std::byte> piece, std::span<std::byte> out,
                                           double disk_bytes_per_ns) {
  if (codec_ == Codec::kNone || !may_try()) return std::nullopt;
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<uint8_t> width = find_width(piece, out);
  Packed packed;
  if (width.has_value()) {
    packed.packing = {codec_, *width};
    packed.bytes = spillway::pack(packed.packing, piece, out);
  }
  const double ns =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  const bool is_smaller = ratio(piece.size(), packed.bytes) >= kLeastRatio;
  const double saved = is_smaller ? static_cast<double>(piece.size() - packed.bytes) : 0;
  const bool pays = is_smaller && (disk_bytes_per_ns == 0 || saved / disk_bytes_per_ns > ns);
  note(pays);
  if (!pays) return std::nullopt;
  return packed;
}

}  // namespace spillway
