// Remembers which heap this thread used last: a hit looks up nothing else.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace spillway {

class Heap;

struct LastHeap {
  uint64_t stamp = 0;  // the arena's when this was true
  CUstream stream = nullptr;
  Heap* heap = nullptr;
};
// A few bytes of static TLS: a hit makes no call to find them.
inline thread_local constinit LastHeap last_heap __attribute__((tls_model("initial-exec")));

// A number that no arena has had.
uint64_t next_stamp();

}  // namespace spillway
