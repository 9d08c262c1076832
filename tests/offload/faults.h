// What an operation of a disk may do instead of what was asked.
#pragma once

#include "offload/io/faulty_queue.h"

namespace spillway::test {

inline IoFault fails(int64_t result) {
  IoFault fault;
  fault.result = result;
  return fault;
}
inline IoFault stops_short(size_t most_bytes) {
  IoFault fault;
  fault.most_bytes = most_bytes;
  return fault;
}
inline IoFault flips(size_t byte) {
  IoFault fault;
  fault.flipped_byte = byte;
  return fault;
}

}  // namespace spillway::test
