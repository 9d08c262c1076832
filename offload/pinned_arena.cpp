#include "offload/pinned_arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <iterator>

#include "driver/context.h"
#include "offload/gauges.h"

namespace spillway {
namespace {

constexpr uint64_t kPageBytes = 4096;  // of the host
constexpr uint64_t kMostBytes = uint64_t{1} << 60;
constexpr uint64_t kMostStepBytes = 1 << 30;  // of growth beyond what a request needs
constexpr uint64_t kStepDivisor = 64;         // of what is held
constexpr uint64_t kRoundingDivisor = 128;    // of a chunk, at least, is what its size is rounded to

uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}
uint64_t round_down(uint64_t bytes, uint64_t unit) {
  return bytes / unit * unit;
}

uint64_t chunk_bytes(uint64_t needed_bytes, uint64_t held_bytes) {
  const uint64_t step = std::clamp(round_down(held_bytes / kStepDivisor, PinnedArena::kSlotBytes),
                                   PinnedArena::kSlotBytes, kMostStepBytes);
  // Large requests of one size leave nothing over.
  const uint64_t bytes = needed_bytes < PinnedArena::kSlotBytes
                             ? step
                             : std::max(step / needed_bytes, uint64_t{1}) * needed_bytes;
  const uint64_t unit =
      std::clamp(std::bit_floor(bytes / kRoundingDivisor), kPageBytes, PinnedArena::kSlotBytes);
  return round_up(bytes, unit);
}

int64_t microseconds_since(std::chrono::steady_clock::time_point begin) {
  const auto passed = std::chrono::steady_clock::now() - begin;
  return std::chrono::duration_cast<std::chrono::microseconds>(passed).count();
}

}  // namespace

// ---- Blocks

Result<void*> PinnedArena::allocate(uint64_t bytes, uint64_t alignment) {
  for (;;) {
    if (void* block = take(bytes, alignment); block != nullptr) return block;
    // Another thread may take what was pinned for this one.
    if (Status status = grow(bytes); !status.ok()) return status;
  }
}

void* PinnedArena::take(uint64_t bytes, uint64_t alignment) {
  if (bytes > kMostBytes) return nullptr;
  const uint64_t size = round_up(bytes, kQuantumBytes);
  const Lock lock(mutex_);
  for (auto found = free_by_size_.lower_bound({size, 0}); found != free_by_size_.end(); ++found) {
    const auto [free_bytes, begin] = *found;
    const uint64_t end = begin + free_bytes;
    const bool is_small = size < kSlotBytes;
    const uint64_t at = is_small ? round_up(begin, alignment) : round_down(end - size, alignment);
    if (at < begin || at + size > end) continue;
    remove_free(begin, end);
    if (at > begin) insert_free(begin, at);
    if (at + size < end) insert_free(at + size, end);
    return reinterpret_cast<void*>(at);
  }
  return nullptr;
}

void PinnedArena::give_back(void* block, uint64_t bytes) {
  uint64_t begin = reinterpret_cast<uint64_t>(block);
  uint64_t end = begin + round_up(bytes, kQuantumBytes);
  const Lock lock(mutex_);
  // Ranges of two chunks stay apart even where the chunks are neighbours.
  const auto next = free_.find(end);
  if (next != free_.end() && chunks_.count(end) == 0) {
    end = next->second;
    remove_free(next->first, end);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin() && chunks_.count(begin) == 0) {
    const auto previous = std::prev(after);
    if (previous->second == begin) {
      begin = previous->first;
      remove_free(begin, previous->second);
    }
  }
  insert_free(begin, end);
}

void PinnedArena::share_with_children(const void* block) {
  const Lock lock(mutex_);
  Chunk& chunk = std::prev(chunks_.upper_bound(reinterpret_cast<uint64_t>(block)))->second;
  if (!std::exchange(chunk.is_shared, true)) chunk.memory.share_with_children();
}

// Where the host has no memory for it, the range stays pinned and is not used again.
void PinnedArena::insert_free(uint64_t begin, uint64_t end) noexcept {
  try {
    free_by_size_.emplace(end - begin, begin);
    free_.emplace(begin, end);
  } catch (const std::bad_alloc&) {
    free_by_size_.erase({end - begin, begin});
  }
}

void PinnedArena::remove_free(uint64_t begin, uint64_t end) {
  free_.erase(begin);
  free_by_size_.erase({end - begin, begin});
}

// ---- Chunks

uint64_t PinnedArena::most_bytes() const {
  const Lock lock(mutex_);
  return std::min(most_bytes_, refused_from_bytes_);
}

uint64_t PinnedArena::room_bytes() const {
  const uint64_t most = std::min(most_bytes_, refused_from_bytes_);
  const uint64_t held = held_bytes() + growing_bytes_;
  return most > held ? most - held : 0;
}

Status PinnedArena::grow(uint64_t bytes) {
  Status status = grow_ahead(bytes);
  // What is held may lie in the wrong pieces.
  while (!status.ok() && bytes <= kMostBytes && release_free() > 0) status = grow_ahead(bytes);
  return status;
}

Status PinnedArena::grow_ahead(uint64_t bytes) {
  if (bytes > kMostBytes) {
    return Status::out_of_memory(fmt::format("pinned memory: {} bytes are more than any host has", bytes));
  }
  const uint64_t needed = round_up(bytes, kPageBytes);
  const uint64_t available = available_bytes_ == nullptr ? UINT64_MAX : available_bytes_() / 2;
  uint64_t wanted = 0;
  {
    const Lock lock(mutex_);
    const uint64_t held = held_bytes();
    const uint64_t room = std::min(room_bytes(), available);
    wanted = chunk_bytes(needed, held);
    if (wanted > room) wanted = needed;
    if (wanted > room) {
      return Status::out_of_memory(
          fmt::format("pinned memory: {} bytes more than the {} held are not allowed; the limit leaves {}",
                      needed, held, room));
    }
    growing_bytes_ += wanted;
  }
  Status status = pin(wanted);
  if (!status.ok() && wanted > needed) {
    // A smaller step may be had.
    {
      const Lock lock(mutex_);
      growing_bytes_ += needed;
    }
    status = pin(needed);
  }
  return status;
}

Status PinnedArena::pin(uint64_t bytes) {
  const auto begin = std::chrono::steady_clock::now();
  CUcontext context = nullptr;
  (void)driver_.cuCtxGetCurrent(&context);
  Result<PinnedMemory> memory = Status::no_host_memory();
  (void)caught([&]() -> Status {
    memory = PinnedMemory::create(driver_, bytes, touch_threads_);
    return {};
  });
  const int64_t time_us = microseconds_since(begin);
  const Lock lock(mutex_);
  growing_bytes_ -= bytes;
  if (!memory.ok()) {
    ++chunk_stats_.refused_pins;
    refuse_more();
    return Status::out_of_memory(fmt::format("pinned memory: {} bytes were refused, {} are held ({})", bytes,
                                             held_bytes(), memory.status().text()));
  }
  const auto at = reinterpret_cast<uint64_t>(memory->base());
  chunks_.emplace(at, Chunk{std::move(memory.value()), context});
  insert_free(at, at + bytes);
  count(chunk_stats_.pin, time_us);
  count(chunk_stats_.chunks, 1);
  count(chunk_stats_.reserved_bytes, static_cast<int64_t>(bytes));
  refused_from_bytes_ = UINT64_MAX;
  ++chunk_stats_.chunks_by_size[std::bit_width(bytes - 1)];
  return {};
}

uint64_t PinnedArena::release_free() {
  std::vector<Chunk> gone;
  uint64_t bytes = 0;
  {
    const Lock lock(mutex_);
    gone.reserve(chunks_.size());  // nothing below may throw
    for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
      const auto found = free_.find(chunk->first);
      const bool is_free =
          found != free_.end() && found->second == chunk->first + chunk->second.memory.bytes();
      if (!is_free) {
        ++chunk;
        continue;
      }
      bytes += chunk->second.memory.bytes();
      remove_free(found->first, found->second);
      gone.push_back(std::move(chunk->second));
      chunk = chunks_.erase(chunk);
    }
    count(chunk_stats_.reserved_bytes, -static_cast<int64_t>(bytes));
    count(chunk_stats_.chunks, -static_cast<int64_t>(gone.size()));
    if (bytes > 0) refused_from_bytes_ = UINT64_MAX;
  }
  for (Chunk& chunk : gone) {
    const auto begin = std::chrono::steady_clock::now();
    {
      const ScopedContext context(driver_, chunk.context);
      chunk.memory.reset();
    }
    const Lock lock(mutex_);
    count(chunk_stats_.unpin, microseconds_since(begin));
  }
  return bytes;
}

uint64_t PinnedArena::reserved_bytes() const {
  const Lock lock(mutex_);
  return held_bytes();
}

void PinnedArena::set_most_bytes(uint64_t bytes) {
  const Lock lock(mutex_);
  most_bytes_ = bytes;
}

void PinnedArena::forget_refusals() {
  const Lock lock(mutex_);
  refused_from_bytes_ = UINT64_MAX;
}

// ---- Counters

void PinnedArena::add_stats(spw_pinned_stats& stats) const {
  const Lock lock(mutex_);
  stats.chunks = chunk_stats_.chunks;
  stats.reserved_bytes = chunk_stats_.reserved_bytes;
  stats.pin = chunk_stats_.pin;
  stats.unpin = chunk_stats_.unpin;
  stats.refused_pins = chunk_stats_.refused_pins;
  const uint64_t most = std::min(most_bytes_, refused_from_bytes_);
  stats.limit_bytes = static_cast<int64_t>(std::min<uint64_t>(most, INT64_MAX));
  std::copy(std::begin(chunk_stats_.chunks_by_size), std::end(chunk_stats_.chunks_by_size),
            std::begin(stats.chunks_by_size));
}

void PinnedArena::reset_peaks() {
  const Lock lock(mutex_);
  reset_peak(chunk_stats_.chunks);
  reset_peak(chunk_stats_.reserved_bytes);
  reset_peak(chunk_stats_.pin);
  reset_peak(chunk_stats_.unpin);
}

void PinnedArena::reset_accumulated() {
  const Lock lock(mutex_);
  spillway::reset_accumulated(chunk_stats_.chunks);
  spillway::reset_accumulated(chunk_stats_.reserved_bytes);
  spillway::reset_accumulated(chunk_stats_.pin);
  spillway::reset_accumulated(chunk_stats_.unpin);
  chunk_stats_.refused_pins = 0;
  std::fill(std::begin(chunk_stats_.chunks_by_size), std::end(chunk_stats_.chunks_by_size), 0);
}

Status PinnedArena::validate() const {
  const Lock lock(mutex_);
  const auto broken = [](const char* what) {
    return Status::internal(fmt::format("pinned memory: {}", what));
  };
  uint64_t held = 0;
  for (const auto& [begin, chunk] : chunks_) held += chunk.memory.bytes();
  if (held != held_bytes()) return broken("the sizes of chunks do not add up to what is held");
  if (free_.size() != free_by_size_.size()) return broken("the two lists of free ranges differ in length");
  uint64_t previous_end = 0;
  for (const auto& [begin, end] : free_) {
    const auto after = chunks_.upper_bound(begin);
    if (after == chunks_.begin()) return broken("a free range lies in no chunk");
    const auto& [base, chunk] = *std::prev(after);
    if (end > base + chunk.memory.bytes() || begin >= end) return broken("a free range lies in no chunk");
    if (begin < previous_end) return broken("free ranges overlap");
    if (begin == previous_end && begin != base) return broken("neighbouring free ranges were not joined");
    if (free_by_size_.count({end - begin, begin}) == 0)
      return broken("a free range is not listed by its size");
    previous_end = end;
  }
  return {};
}

}  // namespace spillway
