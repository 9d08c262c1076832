// A queue whose operations fail or stop short where the caller wants them to: for tests of everything above
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "offload/io/queue.h"

namespace spillway {

// Says what happens to one operation.
struct IoFault {
  std::optional<int64_t> result;                           // instead of it: -errno, or 0
  size_t most_bytes = std::numeric_limits<size_t>::max();  // it does no more than these
  std::optional<size_t> flipped_byte;                      // after it: this byte of its memory is wrong
};

// `choose` is called for each operation, by its number from 0, on the queue's thread.
using ChooseFault = std::function<IoFault(const IoOperation& operation, uint64_t index)>;

std::unique_ptr<IoQueue> make_faulty_queue(std::unique_ptr<IoQueue> queue, ChooseFault choose);

}  // namespace spillway
