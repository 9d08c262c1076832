#include "offload/spill/codec.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <vector>

namespace spillway {
namespace {

constexpr int kZstdLevel = 1;

// Bytes that are left over by the last whole number stay at the end.
template <size_t width>
void shuffle(const std::byte* in, size_t bytes, std::byte* out) {
  const size_t count = bytes / width;
  for (size_t i = 0; i < count; ++i) {
    for (size_t byte = 0; byte < width; ++byte) out[byte * count + i] = in[i * width + byte];
  }
  std::copy(in + count * width, in + bytes, out + count * width);
}

template <size_t width>
void unshuffle(const std::byte* in, size_t bytes, std::byte* out) {
  const size_t count = bytes / width;
  for (size_t i = 0; i < count; ++i) {
    for (size_t byte = 0; byte < width; ++byte) out[i * width + byte] = in[byte * count + i];
  }
  std::copy(in + count * width, in + bytes, out + count * width);
}

size_t compress(Codec codec, std::span<const std::byte> in, std::span<std::byte> out) {
  if (codec == Codec::kLz4) {
    const int bytes =
        LZ4_compress_default(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
                             static_cast<int>(in.size()), static_cast<int>(out.size()));
    return bytes > 0 ? static_cast<size_t>(bytes) : 0;
  }
  const size_t bytes = ZSTD_compress(out.data(), out.size(), in.data(), in.size(), kZstdLevel);
  return ZSTD_isError(bytes) != 0 ? 0 : bytes;
}

bool decompress(Codec codec, std::span<const std::byte> in, std::span<std::byte> out) {
  if (codec == Codec::kLz4) {
    const int bytes =
        LZ4_decompress_safe(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
                            static_cast<int>(in.size()), static_cast<int>(out.size()));
    return bytes >= 0 && static_cast<size_t>(bytes) == out.size();
  }
  return ZSTD_decompress(out.data(), out.size(), in.data(), in.size()) == out.size();
}

}  // namespace

size_t pack(Packing packing, std::span<const std::byte> in, std::span<std::byte> out) {
  if (packing.codec == Codec::kNone || in.empty()) return 0;
  if (packing.width == 1) return compress(packing.codec, in, out);
  std::vector<std::byte> shuffled(in.size());
  if (packing.width == 2) {
    shuffle<2>(in.data(), in.size(), shuffled.data());
  } else {
    shuffle<4>(in.data(), in.size(), shuffled.data());
  }
  return compress(packing.codec, shuffled, out);
}

bool unpack(Packing packing, std::span<const std::byte> in, std::span<std::byte> out) {
  if (packing.codec == Codec::kNone || out.empty()) return false;
  if (packing.width == 1) return decompress(packing.codec, in, out);
  std::vector<std::byte> shuffled(out.size());
  if (!decompress(packing.codec, in, shuffled)) return false;
  if (packing.width == 2) {
    unshuffle<2>(shuffled.data(), out.size(), out.data());
  } else {
    unshuffle<4>(shuffled.data(), out.size(), out.data());
  }
  return true;
}

}  // namespace spillway
