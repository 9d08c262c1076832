#include "allocator/guard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "driver/capture.h"
#include "driver/context.h"

namespace spillway {
namespace {

constexpr uint64_t kMostQuarantineBytes = uint64_t{1} << 30;
constexpr uint64_t kDeviceShare = 20;
constexpr size_t kMostGone = 16384;  // some 300 B each
constexpr uint64_t kMostReports = 100;

uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

void* pointer_to(uint64_t va) {
  return reinterpret_cast<void*>(va);
}

// Tells whether the calling thread cannot put work behind what `thread` put on the stream.
bool is_out_of_reach(CUstream stream, int thread) {
  return stream == CU_STREAM_PER_THREAD && thread != gettid();
}

Status nothing_known(const char* call, uint64_t va) {
  return Status::invalid_pointer(fmt::format("{} of {:#x}: no live block begins there", call, va));
}

}  // namespace

uint64_t Guard::default_quarantine_bytes(uint64_t device_bytes) {
  return std::min(device_bytes / kDeviceShare, kMostQuarantineBytes);
}

Guard::Guard(std::shared_ptr<const Driver> driver, Arena& arena, uint64_t quarantine_bytes, Report report)
    : driver_(std::move(driver)),
      arena_(arena),
      quarantine_bytes_(quarantine_bytes),
      report_(std::move(report)),
      events_(*driver_) {
  (void)CallTrace::capture(nullptr);  // the first one loads a library
  rung_ = arena_.last_rungs().add(Rung::kCallback, [this](uint64_t) -> uint64_t {
    const uint64_t before = quarantined_bytes();
    return before > 0 && drain(0, 0).ok() ? before : 0;
  });
}

Guard::~Guard() {
  arena_.last_rungs().remove(rung_);
  const ScopedContext context(*driver_, arena_.context());
  readback_.reset();
  poison_events_.clear();
  events_.clear();
}

GuardStep Guard::step(const void* caller) {
  return {steps_.fetch_add(1, std::memory_order_relaxed) + 1, gettid(), CallTrace::capture(caller)};
}

// ---- Allocation

Status Guard::allocate(size_t bytes, CUstream stream, const void* caller, void** out) {
  *out = nullptr;
  if (bytes == 0 || bytes > kLargestRequestBytes) return arena_.allocate(bytes, stream, out);
  GuardedBlock block;
  block.bytes = bytes;
  block.total_bytes = kZoneBytes + bytes_to_quanta(bytes) * kQuantumBytes + kZoneBytes;
  block.stream = stream;
  block.allocated = step(caller);
  void* base = nullptr;
  Status status = arena_.allocate_padded(bytes, block.total_bytes - bytes, stream, &base);
  if (!status.ok()) return status;
  block.base = address_of(base);
  block.has_zones = fill_new(block);
  const uint64_t user = block.user();
  try {
    const Lock lock(mutex_);
    blocks_.emplace(block.base, std::move(block));
  } catch (const std::bad_alloc&) {
    (void)Arena::free(base);
    return Status::out_of_memory("host memory for what the guard keeps of blocks has run out");
  }
  *out = pointer_to(user);
  return {};
}

bool Guard::fill_new(const GuardedBlock& block) {
  const ScopedContext context(*driver_, arena_.context());
  if (!context.status().ok() || is_capturing(*driver_, block.stream)) return false;
  const auto fill = [&](uint64_t begin, uint64_t end, uint8_t pattern) {
    return driver_->cuMemsetD8Async(begin, pattern, end - begin, block.stream) == CUDA_SUCCESS;
  };
  return fill(block.base, block.user(), kZonePattern) &&
         fill(block.user(), block.user_end(), kFreshPattern) &&
         fill(block.user_end(), block.end(), kZonePattern);
}

Status Guard::record_stream(void* pointer, CUstream stream) {
  if (pointer == nullptr) return {};
  const Lock lock(mutex_);
  GuardedBlock* block = find(address_of(pointer));
  if (block == nullptr || block->state != State::kLive || block->user() != address_of(pointer)) {
    return nothing_known("record_stream", address_of(pointer));
  }
  if (Status status = Arena::record_stream(pointer_to(block->base), stream); !status.ok()) return status;
  const std::pair<CUstream, int> use(stream, gettid());
  if (stream == block->stream && stream != CU_STREAM_PER_THREAD) return {};
  if (std::find(block->streams.begin(), block->streams.end(), use) == block->streams.end()) {
    block->streams.push_back(use);
  }
  return {};
}

// ---- Free and quarantine

Status Guard::free(void* pointer, const void* caller) {
  if (pointer == nullptr) return {};
  GuardedBlock* block = nullptr;
  {
    PausableLock lock(mutex_);
    block = find(address_of(pointer));
    if (block == nullptr || block->state != State::kLive || block->user() != address_of(pointer)) {
      lock.unlock();
      return refuse(address_of(pointer), caller);
    }
    // From here on the block is this thread's until it is in the quarantine.
    block->freed = step(caller);
    block->state = State::kFreeing;
  }
  if (!take_over(*block)) return leave(*block, false);
  if (fits_quarantine(*block)) return quarantine(*block);
  {
    const Lock checking(check_mutex_);
    std::vector<Inspection> inspections = ordered({block});
    (void)inspect(inspections);
  }
  return leave(*block, false);
}

// Fills the block behind everything that used it, if it is to go into the quarantine; false where that cannot
// be done, or there is nothing that could be checked later.
bool Guard::take_over(const GuardedBlock& block) {
  const ScopedContext context(*driver_, arena_.context());
  if (!context.status().ok() || !block.has_zones || block.out_of_reach || !order_after_uses(block))
    return false;
  if (!fits_quarantine(block)) return true;
  if (driver_->cuMemsetD8Async(block.user(), kFreedPattern, block.bytes, block.stream) != CUDA_SUCCESS)
    return false;
  if (block.stream == CU_STREAM_PER_THREAD) {
    Result<Event> event = events_.acquire();
    if (!event.ok() || !event->record(block.stream).ok()) return false;
    const Lock lock(mutex_);
    poison_events_.insert_or_assign(&block, std::move(event.value()));
  }
  return true;
}

bool Guard::order_after_uses(const GuardedBlock& block) {
  if (is_out_of_reach(block.stream, block.allocated.thread) || is_capturing(*driver_, block.stream))
    return false;
  for (const auto& [stream, thread] : block.streams) {
    if (is_out_of_reach(stream, thread) || is_capturing(*driver_, stream)) return false;
    Result<Event> event = events_.acquire();
    if (!event.ok() || !event->record(stream).ok() || !event->make_wait(block.stream).ok()) return false;
    events_.give_back(std::move(event.value()));
  }
  return true;
}

Status Guard::quarantine(GuardedBlock& block) {
  if (Status status = Arena::quarantine(pointer_to(block.base)); !status.ok()) return status;
  const uint64_t room = quarantine_bytes_ - block.total_bytes;
  Status drained;
  for (;;) {
    {
      const Lock lock(mutex_);
      if (quarantined_bytes_ <= room) {
        block.state = State::kQuarantined;
        block.poisoned = true;
        quarantine_.push_back(&block);
        quarantined_bytes_ += block.total_bytes;
        return drained;
      }
    }
    drained = drain(room, std::min(room, quarantine_bytes_ / 2));
  }
}

Status Guard::leave(GuardedBlock& block, bool quarantined) {
  void* base = pointer_to(block.base);
  {
    const Lock lock(mutex_);
    if (quarantined) quarantined_bytes_ -= block.total_bytes;
    if (const auto event = poison_events_.find(&block); event != poison_events_.end()) {
      events_.give_back(std::move(event->second));
      poison_events_.erase(event);
    }
    block.state = State::kGone;
    if (gone_.size() == kMostGone) gone_.pop_front();
    gone_.push_back(std::move(block));
    blocks_.erase(address_of(base));
  }
  return quarantined ? Arena::release_quarantined(base) : Arena::free(base);
}

Status Guard::drain(uint64_t above, uint64_t down_to) {
  if (quarantined_bytes() <= above) return {};
  const Lock checking(check_mutex_);
  std::vector<GuardedBlock*> leaving;
  {
    const Lock lock(mutex_);
    if (quarantined_bytes_ <= above) return {};
    for (uint64_t left = quarantined_bytes_; left > down_to && !quarantine_.empty();) {
      leaving.push_back(quarantine_.front());
      quarantine_.pop_front();
      left -= leaving.back()->total_bytes;
    }
  }
  std::vector<Inspection> inspections = ordered(leaving);
  // What could not be read is given back unchecked: the program's free has no part in that.
  (void)inspect(inspections);
  Status first;
  for (GuardedBlock* block : leaving) {
    Status status = leave(*block, true);
    if (!status.ok() && first.ok()) first = std::move(status);
  }
  return first;
}

void Guard::stream_destroyed(CUstream stream) {
  if (is_default_stream(stream)) return;
  const Lock checking(check_mutex_);
  std::vector<GuardedBlock*> filled;
  {
    const Lock lock(mutex_);
    for (auto& [base, block] : blocks_) {
      if (block.state == State::kFreeing) continue;  // another thread's
      const bool is_on_it = block.stream == stream;
      const bool was_used_there = std::any_of(block.streams.begin(), block.streams.end(),
                                              [&](const auto& use) { return use.first == stream; });
      const bool quarantined = block.state == State::kQuarantined;
      if (quarantined && is_on_it && !block.out_of_reach) filled.push_back(&block);
      if (quarantined ? is_on_it : is_on_it || was_used_there) block.out_of_reach = true;
    }
  }
  if (filled.empty()) return;
  const ScopedContext context(*driver_, arena_.context());
  const bool behind = context.status().ok() && open_readback().ok() && !is_capturing(*driver_, stream) &&
                      readback_->order_after(stream).ok();
  if (behind) return;
  const Lock lock(mutex_);
  forget_zones(filled);
}

void Guard::forget_zones(const std::vector<GuardedBlock*>& blocks) {
  for (GuardedBlock* block : blocks) block->has_zones = false;
}

Status Guard::trim() {
  if (Status status = drain(0, 0); !status.ok()) return status;
  return arena_.trim();
}

uint64_t Guard::quarantined_bytes() const {
  const Lock lock(mutex_);
  return quarantined_bytes_;
}

// ---- Frees that are wrong

GuardedBlock* Guard::find(uint64_t va) {
  auto after = blocks_.upper_bound(va);
  if (after == blocks_.begin()) return nullptr;
  GuardedBlock& block = std::prev(after)->second;
  return block.contains(va) ? &block : nullptr;
}

GuardedBlock* Guard::find_gone(uint64_t va) {
  const auto found = std::find_if(gone_.rbegin(), gone_.rend(),
                                  [&](const GuardedBlock& block) { return block.contains(va); });
  return found == gone_.rend() ? nullptr : &*found;
}

bool Guard::holds(const void* pointer) const {
  const Lock lock(mutex_);
  return const_cast<Guard*>(this)->find(address_of(pointer)) != nullptr;
}

bool Guard::remembers(const void* pointer) const {
  const Lock lock(mutex_);
  return const_cast<Guard*>(this)->find_gone(address_of(pointer)) != nullptr;
}

Status Guard::refuse(uint64_t va, const void* caller) {
  const GuardStep now = step(caller);
  std::string report;
  Status status;
  {
    const Lock lock(mutex_);
    GuardedBlock* block = find(va);
    if (block == nullptr) block = find_gone(va);
    if (block == nullptr) return nothing_known("free", va);
    const bool second = block->state != State::kLive && va == block->user();
    const GuardedBlock::Finding finding = second ? GuardedBlock::kDoubleFree : GuardedBlock::kInside;
    status = Status::invalid_pointer(
        second
            ? fmt::format("free of {:#x}: its block of {} bytes was freed before, at step {}, and {}", va,
                          block->bytes, block->freed.number, whereabouts(block->state))
            : fmt::format("free of {:#x}: it lies inside the block of {} bytes that begins at {:#x} and {}",
                          va, block->bytes, block->user(), whereabouts(block->state)));
    if ((block->reported & finding) == 0) {
      block->reported = static_cast<uint8_t>(block->reported | finding);
      report = free_report(*block, arena_.device(), finding, va, now);
    }
  }
  if (!report.empty()) publish(report);
  return status;
}

void Guard::publish(const std::string& text) {
  const uint64_t count = findings_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (count <= kMostReports) report_(text);
  if (count == kMostReports) report_("spillway: guard: further findings are counted and not printed\n");
}

}  // namespace spillway
