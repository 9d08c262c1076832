#include "offload/spill/staging.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace spillway {

void DiskWork::begin(size_t operations) {
  const Lock lock(mutex_);
  left_ += operations;
}

void DiskWork::end(Status status) {
  const Lock lock(mutex_);
  if (status_.ok()) status_ = std::move(status);
  if (--left_ == 0) ended_.notify_all();
}

Status DiskWork::wait() {
  const Lock lock(mutex_);
  ended_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return left_ == 0; });
  return std::exchange(status_, Status());
}

Result<std::unique_ptr<Staging>> Staging::create(CopyStreams& copy_streams, PinnedArena& arena,
                                                 uint64_t bytes, size_t most, bool wants_pinned) {
  std::unique_ptr<Staging> staging(new Staging(copy_streams, arena));
  staging->is_pinned_ = wants_pinned;
  const size_t wanted =
      std::clamp<size_t>(static_cast<size_t>((bytes + kBufferBytes - 1) / kBufferBytes), 1, most);
  while (staging->size() < wanted) {
    auto buffer = std::make_unique<Buffer>();
    if (staging->is_pinned_) {
      Result<void*> memory = arena.allocate(kBufferBytes, PinnedArena::kSlotBytes);
      if (!memory.ok() && staging->size() > 0) break;
      staging->is_pinned_ = memory.ok();
      if (memory.ok()) buffer->memory = static_cast<std::byte*>(memory.value());
    }
    if (!staging->is_pinned_) {
      buffer->memory = static_cast<std::byte*>(std::aligned_alloc(PinnedArena::kSlotBytes, kBufferBytes));
      if (buffer->memory == nullptr && staging->size() > 0) break;
      if (buffer->memory == nullptr)
        return Status::out_of_memory("the host has no memory for a buffer between the device and the disk");
    }
    staging->buffers_.push_back(std::move(buffer));
    // The host has little left: one will do.
    if (wants_pinned && !staging->is_pinned_) break;
  }
  for (const std::unique_ptr<Buffer>& buffer : staging->buffers_) {
    Result<Event> event = copy_streams.events().acquire();
    if (!event.ok()) return event.take_status();
    buffer->copied = std::move(event.value());
  }
  return staging;
}

bool Staging::settle() {
  bool is_settled = true;
  for (const std::unique_ptr<Buffer>& buffer : buffers_) {
    (void)buffer->disk.wait();
    is_settled = wait_for_copy(*buffer).ok() && is_settled;
  }
  return is_settled;
}

Staging::~Staging() {
  for (const std::unique_ptr<Buffer>& buffer : buffers_) {
    (void)buffer->disk.wait();
    const bool is_done = wait_for_copy(*buffer).ok();
    if (buffer->copied) copies_.events().give_back(std::move(buffer->copied));
    if (!is_done) continue;
    if (is_pinned_) {
      arena_.give_back(buffer->memory, kBufferBytes);
    } else {
      std::free(buffer->memory);
    }
  }
}

Status Staging::wait_for_copy(Buffer& buffer) {
  if (buffer.copying == nullptr) return {};
  Status status = buffer.copied.synchronize();
  if (!status.ok() && copies_.driver().cuStreamSynchronize(buffer.copying) != CUDA_SUCCESS) return status;
  buffer.copying = nullptr;
  return {};
}

Status Staging::mark_copy(Buffer& buffer, CUstream stream) {
  buffer.copying = stream;
  Status status = buffer.copied.record(stream);
  if (status.ok()) return {};
  // Without a mark, the stream's end is one.
  if (copies_.driver().cuStreamSynchronize(stream) == CUDA_SUCCESS) buffer.copying = nullptr;
  return status;
}

}  // namespace spillway
