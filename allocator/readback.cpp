#include "allocator/readback.h"

#include <algorithm>

#include "driver/capture.h"

namespace spillway {

Result<std::unique_ptr<Readback>> Readback::create(const Driver& driver) {
  const RelaxedCapture relaxed(driver);
  std::unique_ptr<Readback> made(new Readback(driver));
  Status status =
      driver.check(driver.cuStreamCreate(&made->stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (!status.ok()) return status;
  void* buffer = nullptr;
  status = driver.check(driver.cuMemHostAlloc(&buffer, kBufferBytes, 0), "cuMemHostAlloc");
  if (!status.ok()) return status;
  made->buffer_ = static_cast<uint8_t*>(buffer);
  Result<Event> event = Event::create(driver);
  if (!event.ok()) return event.take_status();
  made->event_ = std::move(event.value());
  return made;
}

Readback::~Readback() {
  const RelaxedCapture relaxed(driver_);
  if (buffer_ != nullptr) driver_.cuMemFreeHost(buffer_);
  if (stream_ != nullptr) driver_.cuStreamDestroy(stream_);
}

Status Readback::order_after(CUstream stream) {
  // A wait holds what the event marked when it was enqueued: one event serves any number of streams.
  if (Status status = event_.record(stream); !status.ok()) return status;
  return event_.make_wait(stream_);
}

Status Readback::order_after(const Event& event) {
  return event.make_wait(stream_);
}

Status Readback::read(const std::vector<DeviceRange>& ranges, const Visit& visit) {
  const RelaxedCapture relaxed(driver_);
  filled_ = 0;
  pieces_.clear();
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (uint64_t offset = 0; offset < ranges[i].bytes;) {
      if (filled_ == kBufferBytes) {
        if (Status status = flush(visit); !status.ok()) return status;
      }
      const size_t bytes = std::min<uint64_t>(ranges[i].bytes - offset, kBufferBytes - filled_);
      Status status = driver_.check(
          driver_.cuMemcpyDtoHAsync(buffer_ + filled_, ranges[i].start + offset, bytes, stream_),
          "cuMemcpyDtoHAsync");
      if (!status.ok()) return status;
      pieces_.push_back({i, offset, filled_, bytes});
      filled_ += bytes;
      offset += bytes;
    }
  }
  return flush(visit);
}

Status Readback::flush(const Visit& visit) {
  if (Status status = driver_.check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
      !status.ok())
    return status;
  for (const Piece& piece : pieces_) visit(piece.range, piece.offset, buffer_ + piece.at, piece.bytes);
  pieces_.clear();
  filled_ = 0;
  return {};
}

}  // namespace spillway
