// A pair of fences of unequal cost: each side of a store-then-load handshake needs a full fence, and here the
// frequent side pays a compiler barrier and the rare side a system call that fences every running thread of
// the process (Linux 4.14, membarrier private expedited). Where the kernel or a sandbox refuses that call,
// both sides use an ordinary full fence.
#pragma once

#include <atomic>

namespace spillway {

// Tells whether the frequent side must fence itself. Decided once per process; ask it once and keep the
// answer.
bool light_barrier_needs_fence() noexcept;

inline void light_barrier(bool needs_fence) noexcept {
  if (needs_fence) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

// The rare side: microseconds.
void heavy_barrier() noexcept;

}  // namespace spillway
