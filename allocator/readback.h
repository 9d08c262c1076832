// Device memory read by the host in bulk: ranges are copied to a pinned buffer by a stream of its own, as
// many as fit at once, and shown piece by piece. Cost: one asynchronous copy for each piece and one wait of
// the host for each buffer full.
//
// The caller makes the context current, serialises all calls, and says behind what the copies wait. It may be
// used while other streams are captured.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "driver/driver.h"
#include "driver/event.h"

namespace spillway {

struct DeviceRange {
  uint64_t start = 0;
  uint64_t bytes = 0;
};

class Readback {
 public:
  // Errors: out_of_memory (the host has no pinned memory left), driver.
  static Result<std::unique_ptr<Readback>> create(const Driver& driver);
  ~Readback();
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;

  // Later copies see what is enqueued on the stream now, or was when the event was recorded. The stream must
  // not be captured.
  Status order_after(CUstream stream);
  Status order_after(const Event& event);

  // (range, offset in it, bytes, how many)
  using Visit = std::function<void(size_t range, uint64_t offset, const uint8_t* bytes, size_t count)>;
  // Shows every range from its beginning to its end, in order. After an error some were not shown.
  Status read(const std::vector<DeviceRange>& ranges, const Visit& visit);

 private:
  static constexpr size_t kBufferBytes = size_t{4} << 20;

  struct Piece {
    size_t range;
    uint64_t offset;
    size_t at;  // in the buffer
    size_t bytes;
  };

  explicit Readback(const Driver& driver) : driver_(driver) {}
  Status flush(const Visit& visit);

  const Driver& driver_;
  CUstream stream_ = nullptr;
  uint8_t* buffer_ = nullptr;
  size_t filled_ = 0;
  std::vector<Piece> pieces_;
  Event event_;
};

}  // namespace spillway
