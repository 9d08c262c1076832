#include "offload/spill/stashes.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "driver/capture.h"
#include "driver/context.h"
#include "stats/own_thread.h"

namespace spillway {

struct Stashes::Stash {
  explicit Stash(uint64_t bytes) : block(bytes, SpillState::kResident) {}

  SpillBlock block;
  Event copied_out;  // I2: what comes back waits for it
  Event copied_in;
  bool is_copied_out = false;  // known to be
  bool wants_disk = false;
  bool is_queued = false;  // for the thread, or in its hands
  bool is_freed = false;
  std::list<Stash*> in_freed;  // itself, so that freeing it takes no memory
  bool is_streaming = false;   // back from the disk, in parts
  bool is_stuck = false;       // the device may use its host memory at any time
  // A get that is under way.
  bool is_coming = false;
  bool is_enqueued = false;  // its copy is
  CUdeviceptr target = 0;
  Event target_ready;
  Status failed;
  Urgency urgency;  // of the get

  // Copies from its host memory may be under way, or are to come.
  bool is_wanted() const { return is_coming || copied_in || is_stuck; }
};

Stashes::~Stashes() {
  stop();
  const ScopedContext context(copies_.driver(), context_);
  (void)copies_.drain_out();
  (void)copies_.drain_in();
  for (Stash* stash : freed_) destroy(*stash);
}

// ---- Events

Result<Event> Stashes::mark(CUstream stream) {
  Result<Event> event = copies_.events().acquire();
  if (!event.ok()) return event.take_status();
  if (Status status = event->record(stream); !status.ok()) return status;
  return event;
}

void Stashes::destroy(Stash& stash) {
  for (Event* event : {&stash.copied_out, &stash.copied_in, &stash.target_ready}) {
    if (*event) copies_.events().give_back(std::move(*event));
  }
  const uint64_t bytes = stash.block.bytes;
  if (stash.block.spilled.host != nullptr) counters_.host_bytes -= bytes;
  if (!stash.block.spilled.pieces.empty()) counters_.disk_bytes -= bytes;
  --counters_.stashes;
  if (stash.is_stuck) stash.block.spilled.host = nullptr;  // never used again
  mover_.drop(stash.block);
  delete &stash;
}

void Stashes::destroy_finished() {
  const auto is_done = [](const Event& event) {
    if (!event) return true;
    const Result<bool> completed = event.completed();
    return completed.ok() && completed.value();
  };
  const RelaxedCapture relaxed(copies_.driver());
  freed_.remove_if([&](Stash* stash) SPW_REQUIRES(mutex_) {
    if (stash->is_queued || !is_done(stash->copied_out) || !is_done(stash->copied_in)) return false;
    destroy(*stash);
    return true;
  });
}

// ---- Out

Result<void*> Stashes::find_slot(const SpillBlock& block) {
  for (;;) {
    {
      const Lock lock(mutex_);
      destroy_finished();
    }
    // Pinning more may take long.
    Result<void*> slot = pinned_.allocate(BlockMover::slot_bytes(block), DiskTier::kAlignment);
    if (slot.ok() || slot.status().code() != SPW_ERROR_OUT_OF_MEMORY) return slot;
    // What is being written down will make room.
    const Lock lock(mutex_);
    if (writes_.empty()) return slot;
    const size_t before = writes_.size();
    changed_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return writes_.size() < before; });
  }
}

Status Stashes::check_put(uint64_t bytes, CUstream stream, To to) const {
  if (bytes == 0) return Status::invalid_argument("a stash of 0 bytes");
  if (Status off = copies_.why_off(); !off.ok()) return off;
  if (is_capturing(copies_.driver(), stream)) {
    return Status::invalid_state("the stream is being captured: what a graph saves must stay on the device");
  }
  if (to == To::kDisk && !disk_.exists()) {
    return Status::unsupported("no directory for spilled memory is set: see spill_dir");
  }
  return {};
}

Status Stashes::copy_out(Stash& stash, CUdeviceptr va, CUstream stream) {
  Result<Event> made = mark(stream);
  Status status = made.ok() ? made->make_wait(copies_.out()) : made.take_status();
  if (made.ok()) copies_.events().give_back(std::move(made.value()));
  if (status.ok()) status = stash.block.go(SpillState::kEvicting);
  if (status.ok()) status = copies_.copy_out(stash.block.spilled.host, va, stash.block.bytes);
  if (!status.ok()) {
    mover_.drop(stash.block);
    return status;
  }
  Result<Event> copied = mark(copies_.out());
  // Without an event there is the stream's end to wait for.
  if (copied.ok()) {
    stash.copied_out = std::move(copied.value());
  } else if (Status drained = copies_.drain_out(); !drained.ok()) {
    stash.block.spilled.host = nullptr;  // may still be written to: never used again
    return drained;
  }
  stash.is_copied_out = !stash.copied_out;
  (void)stash.block.go(SpillState::kHost);
  return {};
}

void Stashes::queue_write(Stash& stash) {
  if (!start_thread().ok()) return;
  const Status queued = caught([&]() -> Status {
    mutex_.assert_held();  // caught() calls this here and now
    writes_.push_back(&stash);
    return {};
  });
  stash.is_queued = queued.ok();
}

Result<Stashes::Stash*> Stashes::put(CUdeviceptr va, uint64_t bytes, CUstream stream, To to) {
  if (Status status = check_put(bytes, stream, to); !status.ok()) return status;
  auto stash = std::make_unique<Stash>(bytes);
  stash->in_freed.push_back(stash.get());
  stash->wants_disk = to == To::kDisk;
  // Pinning would end another stream's capture.
  const RelaxedCapture relaxed(copies_.driver());
  Result<void*> slot = find_slot(stash->block);
  const Lock lock(mutex_);
  if (!slot.ok()) {
    ++counters_.refused_puts;
    return slot.take_status();
  }
  stash->block.spilled.host = static_cast<std::byte*>(slot.value());
  if (Status status = copy_out(*stash, va, stream); !status.ok())
    return copies_.note_failure(std::move(status));
  ++counters_.stashes;
  ++counters_.puts;
  counters_.host_bytes += bytes;
  counters_.out_bytes += bytes;
  if (stash->wants_disk) queue_write(*stash);
  return stash.release();
}

void Stashes::write_down(Stash& stash) {
  // Asked for meanwhile: it is needed where it is.
  if (stash.is_freed || stash.is_wanted() || !stash.block.go(SpillState::kWriting).ok()) return;
  mutex_.unlock();
  Status status = caught([&]() -> Status {
    if (!stash.copied_out || stash.is_copied_out) return {};
    return copies_.note_failure(stash.copied_out.synchronize());
  });
  const bool is_copied_out = status.ok();
  if (is_copied_out) status = mover_.write_down(stash.block, &packer_);
  mutex_.lock();
  stash.is_copied_out = is_copied_out;
  // Where it was asked for during the write, copies from its host memory go on.
  const bool stays = !status.ok() || stash.is_wanted();
  (void)stash.block.go(stays ? SpillState::kHost : SpillState::kDisk);
  if (stays) {
    disk_.release(stash.block.spilled.pieces);
    return;
  }
  mover_.drop_host(stash.block);
  counters_.host_bytes -= stash.block.bytes;
  counters_.disk_bytes += stash.block.bytes;
}

// ---- Back

Status Stashes::copy_back(Stash& stash) {
  Status status = stash.copied_out ? stash.copied_out.make_wait(copies_.in()) : Status();
  if (status.ok()) status = stash.target_ready.make_wait(copies_.in());
  if (status.ok()) status = copies_.copy_in(stash.target, stash.block.spilled.host, stash.block.bytes);
  if (!status.ok()) return status;
  Result<Event> copied = mark(copies_.in());
  if (!copied.ok()) {
    Status drained = copies_.drain_in();
    stash.is_stuck = !drained.ok();
    return drained.ok() ? copied.take_status() : std::move(drained);
  }
  on_copied_in(stash, std::move(copied.value()));
  return {};
}

void Stashes::on_copied_in(Stash& stash, Event copied) {
  if (stash.copied_in) copies_.events().give_back(std::move(stash.copied_in));
  stash.copied_in = std::move(copied);
  stash.is_enqueued = true;
  counters_.in_bytes += stash.block.bytes;
}

Status Stashes::begin_get(Stash& stash, CUdeviceptr va, CUstream stream) {
  if (Status off = copies_.why_off(); !off.ok()) return off;
  const Lock lock(mutex_);
  if (stash.is_coming) return Status::invalid_state("the stash is being brought back already");
  if (stash.block.state() == SpillState::kPoisoned) {
    return Status::data_lost(
        fmt::format("{} bytes were moved out and cannot be read any more", stash.block.bytes));
  }
  Result<Event> ready = mark(stream);
  if (!ready.ok()) return copies_.note_failure(ready.take_status());
  if (stash.target_ready) copies_.events().give_back(std::move(stash.target_ready));
  stash.target_ready = std::move(ready.value());
  stash.target = va;
  stash.failed = Status();
  stash.is_coming = true;
  stash.is_enqueued = false;
  ++counters_.gets;
  // What is being written is still in host memory, and stays there then.
  if (stash.block.spilled.host != nullptr) {
    Status status = copy_back(stash);
    stash.is_coming = status.ok();
    return copies_.note_failure(std::move(status));
  }
  Status status = start_thread();
  if (status.ok()) {
    status = caught([&]() -> Status {
      mutex_.assert_held();  // caught() calls this here and now
      reads_.push_back(&stash);
      return {};
    });
  }
  stash.is_coming = stash.is_queued = status.ok();
  return status;
}

void Stashes::read_back(Stash& stash) {
  if (stash.is_freed) return;
  destroy_finished();
  stash.failed = stash.block.go(SpillState::kReading);
  if (!stash.failed.ok()) return;
  mutex_.unlock();
  std::byte* host = nullptr;
  const Status pinned = caught([&]() -> Status {
    Result<void*> slot = pinned_.allocate(BlockMover::slot_bytes(stash.block), DiskTier::kAlignment);
    if (slot.ok()) host = static_cast<std::byte*>(slot.value());
    return slot.take_status();
  });
  if (!pinned.ok()) {
    mutex_.lock();
    stash.failed = stream_back(stash);
    return;
  }
  Status status = mover_.read_up(stash.block, host, stash.urgency);
  mutex_.lock();
  if (!status.ok()) {
    const bool is_lost = status.code() == SPW_ERROR_DATA_LOST;
    (void)stash.block.go(is_lost ? SpillState::kPoisoned : SpillState::kDisk);
    pinned_.give_back(host, BlockMover::slot_bytes(stash.block));
    stash.failed = std::move(status);
    return;
  }
  (void)stash.block.go(SpillState::kHost);
  stash.block.spilled.host = host;
  disk_.release(stash.block.spilled.pieces);
  counters_.host_bytes += stash.block.bytes;
  counters_.disk_bytes -= stash.block.bytes;
  if (stash.is_freed) return;  // the target may be somebody else's by now
  stash.failed = copy_back(stash);
}

Status Stashes::stream_back(Stash& stash) {
  if (stash.is_freed) {
    (void)stash.block.go(SpillState::kDisk);
    return {};
  }
  stash.is_streaming = true;
  mutex_.unlock();
  const DeviceBytes target{stash.target, &stash.block};
  Status status = caught([&] {
    Status waits = stash.target_ready.make_wait(copies_.in());
    return waits.ok() ? mover_.copy_back({&target, 1}, stash.urgency) : std::move(waits);
  });
  mutex_.lock();
  stash.is_streaming = false;
  (void)stash.block.go(status.code() == SPW_ERROR_DATA_LOST ? SpillState::kPoisoned : SpillState::kDisk);
  if (!status.ok()) return status;
  Result<Event> copied = mark(copies_.in());
  if (!copied.ok()) return copied.take_status();
  on_copied_in(stash, std::move(copied.value()));
  return {};
}

Status Stashes::finish_get(Stash& stash, CUstream stream, bool* late) {
  const Lock lock(mutex_);
  if (!stash.is_coming) return Status::invalid_state("nothing is being brought back from the stash");
  bool is_late = !stash.is_enqueued;
  {
    const CopyStreams::Demand demand(copies_, stash.urgency);
    // It goes before what nobody waits for yet.
    if (const auto at = std::find(reads_.begin(), reads_.end(), &stash); at != reads_.end())
      std::rotate(reads_.begin(), at, at + 1);
    changed_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return stash.is_enqueued || !stash.failed.ok(); });
  }
  stash.is_coming = false;
  if (!stash.failed.ok()) return copies_.note_failure(std::exchange(stash.failed, Status()));
  if (!is_late) {
    const RelaxedCapture relaxed(copies_.driver());
    const Result<bool> completed = stash.copied_in.completed();
    is_late = !completed.ok() || !completed.value();
  }
  counters_.late_gets += is_late ? 1 : 0;
  if (late != nullptr) *late = is_late;
  return copies_.note_failure(stash.copied_in.make_wait(stream));
}

void Stashes::free(Stash* stash) {
  if (stash == nullptr) return;
  const Lock lock(mutex_);
  stash->is_freed = true;
  changed_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return !stash->is_streaming; });
  freed_.splice(freed_.end(), stash->in_freed);
  destroy_finished();
}

void Stashes::reclaim() {
  const ScopedContext context(copies_.driver(), context_);
  const Lock lock(mutex_);
  if (context.status().ok()) destroy_finished();
}

StashCounters Stashes::counters() {
  reclaim();
  const Lock lock(mutex_);
  return counters_;
}

// ---- The thread

Status Stashes::start_thread() {
  if (is_working_) return {};
  try {
    start_own_thread([this] { work(); }).detach();
    is_working_ = true;
  } catch (const std::exception& error) {
    return caught([&] { return Status::io(fmt::format("no thread for the disk's work: {}", error.what())); });
  }
  return {};
}

void Stashes::stop() {
  const Lock lock(mutex_);
  is_stopping_ = true;
  changed_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return !is_working_; });
}

void Stashes::work() {
  const Lock lock(mutex_);
  while (!is_stopping_ && !(reads_.empty() && writes_.empty())) {
    const ScopedContext context(copies_.driver(), context_);
    // Waiting and pinning would end the program's captures.
    const RelaxedCapture relaxed(copies_.driver());
    // Somebody waits for what is read, and nobody for what is written.
    const bool is_read = !reads_.empty();
    Stash& stash = is_read ? *reads_.front() : *writes_.front();
    if (is_read) {
      reads_.pop_front();  // others may go before those behind it
      read_back(stash);
    } else {
      write_down(stash);
      writes_.pop_front();
    }
    stash.is_queued = false;
    changed_.notify_all();
    destroy_finished();
  }
  is_working_ = false;
  changed_.notify_all();  // with the lock held: nothing of this object is touched afterwards
}

}  // namespace spillway
