// The content of trace files, into a frame and out of frames.
#pragma once

#include <gtest/gtest.h>
#include <zstd.h>

#include <string>

namespace spillway::test {

inline std::string packed(const std::string& content) {
  std::string out(ZSTD_compressBound(content.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), content.data(), content.size(), 1));
  return out;
}

// Unpacks all frames, a MiB at most.
inline std::string unpacked(const std::string& data) {
  std::string out(1 << 20, '\0');
  const size_t bytes = ZSTD_decompress(out.data(), out.size(), data.data(), data.size());
  EXPECT_FALSE(ZSTD_isError(bytes)) << ZSTD_getErrorName(bytes);
  out.resize(ZSTD_isError(bytes) != 0 ? 0 : bytes);
  return out;
}

}  // namespace spillway::test
