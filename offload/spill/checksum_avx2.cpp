// Compiled for AVX2, and called only where the processor has it. It includes nothing that holds functions
// which other files have as well: the linker keeps one copy of such a function, and it might be the one from
// here.
#include <cstddef>
#include <cstdint>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace spillway {

uint64_t checksum_avx2(const void* memory, size_t bytes);

uint64_t checksum_avx2(const void* memory, size_t bytes) {
  return XXH3_64bits(memory, bytes);
}

}  // namespace spillway
