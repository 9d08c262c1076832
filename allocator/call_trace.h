// Records where the program was: the return addresses of a call, kept as numbers and turned into names only
// when somebody reads them. Plain data. Capturing costs some microseconds, which is for debugging only;
// naming costs more and allocates.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace spillway {

struct CallTrace {
  static constexpr uint32_t kDepth = 8;

  // The calling thread's, from the frame that returns to `caller` on; from here where none does.
  static CallTrace capture(const void* caller);
  // One line for each frame, each begun with `indent`: "#0 train_step+0x12 (program+0x4711)".
  std::string text(const char* indent) const;

  std::array<void*, kDepth> frames{};
  uint32_t count = 0;
};

}  // namespace spillway
