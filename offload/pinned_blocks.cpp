#include "offload/pinned_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "driver/capture.h"
#include "offload/gauges.h"

namespace spillway {
namespace {

constexpr uint64_t kLargeBytes = 64 << 10;
constexpr uint64_t kLargeAlignment = 4096;

uint64_t alignment_of(uint64_t bytes) {
  return bytes < kLargeBytes ? PinnedArena::kQuantumBytes : kLargeAlignment;
}

int64_t block_bytes(uint64_t requested_bytes) {
  constexpr uint64_t kQuantum = PinnedArena::kQuantumBytes;
  return static_cast<int64_t>((requested_bytes + kQuantum - 1) / kQuantum * kQuantum);
}

}  // namespace

Result<PinnedBlocks::Device*> PinnedBlocks::device(int ordinal) {
  {
    const Lock lock(mutex_);
    if (const auto found = devices_.find(ordinal); found != devices_.end()) return found->second.get();
  }
  Result<RetainedContext> context = RetainedContext::retain(driver_, ordinal);
  if (!context.ok()) return context.take_status();
  auto made = std::make_unique<Device>(*driver_, std::move(context.value()));
  const Lock lock(mutex_);
  return devices_.try_emplace(ordinal, std::move(made)).first->second.get();
}

// ---- Blocks

Status PinnedBlocks::allocate(uint64_t bytes, int ordinal, void** out) {
  *out = nullptr;
  if (bytes == 0) return {};
  if (getpid() != owner_)
    return Status::unsupported(
        "pinned memory is not allocated in a child of fork: use spawn, or plain memory");
  Result<Device*> found = device(ordinal);
  if (!found.ok()) return found.take_status();
  const uint64_t alignment = alignment_of(bytes);
  void* block = nullptr;
  // Questions about events, and pinning, would end another stream's capture.
  const RelaxedCapture relaxed(*driver_);
  {
    const Lock lock(mutex_);
    complete_finished(false);
    block = arena_.take(bytes, alignment);
    if (block == nullptr && complete_finished(true)) block = arena_.take(bytes, alignment);
  }
  if (block == nullptr) {
    const ScopedContext context(*driver_, found.value()->context.get());
    if (!context.status().ok()) return context.status();
    Result<void*> made = arena_.allocate(bytes, alignment);
    while (!made.ok() && wait_for_oldest()) made = arena_.allocate(bytes, alignment);
    if (!made.ok()) return made.take_status();
    block = made.value();
  }
  arena_.share_with_children(block);
  const Lock lock(mutex_);
  blocks_[reinterpret_cast<uint64_t>(block)].requested_bytes = bytes;
  count(block_stats_.blocks, 1);
  count(block_stats_.active_bytes, block_bytes(bytes));
  count(block_stats_.requested_bytes, static_cast<int64_t>(bytes));
  *out = block;
  return {};
}

Status PinnedBlocks::record_stream(const void* pointer, int ordinal, CUstream stream) {
  Result<Device*> found = device(ordinal);
  if (!found.ok()) return found.take_status();
  const auto at = reinterpret_cast<uint64_t>(pointer);
  const Lock lock(mutex_);
  const auto after = blocks_.upper_bound(at);
  const auto around = after == blocks_.begin() ? blocks_.end() : std::prev(after);
  if (around == blocks_.end() || at - around->first >= around->second.requested_bytes) {
    return Status::invalid_pointer(fmt::format("no pinned block is around {:#x}", at));
  }
  std::vector<Use>& uses = around->second.uses;
  const bool is_known = std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return use.device == ordinal && use.stream == stream;
  });
  if (!is_known) uses.push_back({ordinal, stream});
  return {};
}

Status PinnedBlocks::free(void* pointer) {
  if (pointer == nullptr) return {};
  Freed freed;
  std::vector<Use> uses;
  {
    const Lock lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uint64_t>(pointer));
    if (found == blocks_.end()) {
      return Status::invalid_pointer(fmt::format("no pinned block begins at {}", pointer));
    }
    freed.at = found->first;
    freed.requested_bytes = found->second.requested_bytes;
    uses = std::move(found->second.uses);
    blocks_.erase(found);
    if (uses.empty()) {
      give_back(freed.at, freed.requested_bytes);
      return {};
    }
  }
  const Marking marking = mark(uses, freed.marks);
  if (marking == Marking::kCaptured) return {};
  const Lock lock(mutex_);
  if (marking == Marking::kMarked) {
    pending_.push_back(std::move(freed));
  } else {
    unmarked_.push_back(std::move(freed));
  }
  return {};
}

void PinnedBlocks::give_back(uint64_t at, uint64_t requested_bytes) {
  arena_.give_back(reinterpret_cast<void*>(at), requested_bytes);
  count(block_stats_.blocks, -1);
  count(block_stats_.active_bytes, -block_bytes(requested_bytes));
  count(block_stats_.requested_bytes, -static_cast<int64_t>(requested_bytes));
}

// ---- Streams

PinnedBlocks::Marking PinnedBlocks::mark(const std::vector<Use>& uses, std::vector<Mark>& marks) {
  const RelaxedCapture relaxed(*driver_);
  for (const Use& use : uses) {
    Result<Device*> used = device(use.device);
    if (!used.ok()) return Marking::kFailed;
    const ScopedContext context(*driver_, used.value()->context.get());
    if (!context.status().ok()) return Marking::kFailed;
    if (is_capturing(*driver_, use.stream)) return Marking::kCaptured;
    Result<Event> event = used.value()->events.acquire();
    if (!event.ok() || !event->record(use.stream).ok()) return Marking::kFailed;
    marks.push_back({use.device, std::move(event.value())});
  }
  return Marking::kMarked;
}

bool PinnedBlocks::complete_finished(bool all) {
  bool any = false;
  for (auto freed = pending_.begin(); freed != pending_.end();) {
    if (is_over(*freed)) {
      give_back(freed->at, freed->requested_bytes);
      freed = pending_.erase(freed);
      any = true;
    } else if (all) {
      ++freed;
    } else {
      break;
    }
  }
  return any;
}

bool PinnedBlocks::wait_for_oldest() {
  std::vector<CUevent> events;
  {
    const Lock lock(mutex_);
    if (pending_.empty()) return false;
    for (const Mark& mark : pending_.front().marks) events.push_back(mark.event.get());
  }
  // Kept for reuse by whoever sees them reached first: waiting for one is always legal.
  for (const CUevent event : events) {
    if (driver_->cuEventSynchronize(event) != CUDA_SUCCESS) return false;
  }
  const Lock lock(mutex_);
  complete_finished(true);
  return true;
}

bool PinnedBlocks::is_over(Freed& freed) {
  while (!freed.marks.empty()) {
    Mark& last = freed.marks.back();
    const Result<bool> completed = last.event.completed();
    if (!completed.ok() || !completed.value()) return false;
    devices_.at(last.device)->events.give_back(std::move(last.event));
    freed.marks.pop_back();
  }
  return true;
}

void PinnedBlocks::trim() {
  std::vector<Device*> all;
  std::vector<Freed> unmarked;
  {
    const Lock lock(mutex_);
    for (const auto& [ordinal, used] : devices_) all.push_back(used.get());
    unmarked.swap(unmarked_);
  }
  bool is_over = true;
  if (!unmarked.empty()) {
    for (Device* used : all) {
      const ScopedContext context(*driver_, used->context.get());
      is_over = is_over && context.status().ok() && driver_->cuCtxSynchronize() == CUDA_SUCCESS;
    }
  }
  const RelaxedCapture relaxed(*driver_);
  {
    const Lock lock(mutex_);
    for (Freed& freed : unmarked) {
      if (is_over) {
        give_back(freed.at, freed.requested_bytes);
      } else {
        unmarked_.push_back(std::move(freed));
      }
    }
    complete_finished(true);
  }
  arena_.release_free();
  arena_.forget_refusals();
}

// ---- Counters

spw_pinned_stats PinnedBlocks::stats() const {
  spw_pinned_stats stats{};
  {
    const Lock lock(mutex_);
    stats = block_stats_;
  }
  arena_.add_stats(stats);
  return stats;
}

void PinnedBlocks::reset_peaks() {
  {
    const Lock lock(mutex_);
    reset_peak(block_stats_.blocks);
    reset_peak(block_stats_.active_bytes);
    reset_peak(block_stats_.requested_bytes);
  }
  arena_.reset_peaks();
}

void PinnedBlocks::reset_accumulated() {
  {
    const Lock lock(mutex_);
    spillway::reset_accumulated(block_stats_.blocks);
    spillway::reset_accumulated(block_stats_.active_bytes);
    spillway::reset_accumulated(block_stats_.requested_bytes);
  }
  arena_.reset_accumulated();
}

}  // namespace spillway
