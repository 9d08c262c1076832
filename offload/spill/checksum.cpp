#include "offload/spill/checksum.h"

// Inside the library: a program that Spillway is loaded into may have another version.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace spillway {

#ifdef __x86_64__
uint64_t checksum_avx2(const void* memory, size_t bytes);

uint64_t checksum(std::span<const std::byte> memory) {
  static const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
  return kHasAvx2 ? checksum_avx2(memory.data(), memory.size()) : XXH3_64bits(memory.data(), memory.size());
}
#else
uint64_t checksum(std::span<const std::byte> memory) {
  return XXH3_64bits(memory.data(), memory.size());
}
#endif

}  // namespace spillway
