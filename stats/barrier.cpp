#include "stats/barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace spillway {
namespace {

bool membarrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

}  // namespace

bool light_barrier_needs_fence() noexcept {
  static const bool kNeeds =
      !membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) || !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  return kNeeds;
}

void heavy_barrier() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (light_barrier_needs_fence()) return;
  if (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    // A registration does not outlive every kernel's fork; it may be repeated.
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace spillway
