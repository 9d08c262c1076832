#include "allocator/shared_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "driver/capture.h"
#include "stats/lock.h"

namespace spillway {
namespace {

struct Entry {
  uint64_t end;
  Arena* arena;
};

struct Registry {
  BlockingMutex mutex;
  std::map<uint64_t, Entry> entries SPW_GUARDED_BY(mutex);  // by the first address
};

// Never destroyed: programs free blocks from their own destructors.
Registry& registry() {
  static Registry& all = *new Registry;
  return all;
}

Status no_block(const char* what, uint64_t va) {
  return Status::invalid_pointer(fmt::format("{} of {:#x}: no live block begins there", what, va));
}

}  // namespace

SharedBlocks::SharedBlocks(const Driver& driver, Arena& arena, DeviceCounters& counters, EventPool& events)
    : driver_(driver), arena_(arena), device_counters_(counters), events_(events) {}

void SharedBlocks::give_back() noexcept {
  // Everything is given back without looking at answers: the driver may be gone at this point.
  Registry& all = registry();
  const Lock lock(all.mutex);
  for (auto& [va, block] : blocks_) {
    if (left_to_driver_) block.range.leave_to_driver();
    all.entries.erase(va);
  }
  blocks_.clear();
}

Arena* SharedBlocks::arena_of(uint64_t va) {
  Registry& all = registry();
  const Lock lock(all.mutex);
  const auto after = all.entries.upper_bound(va);
  if (after == all.entries.begin()) return nullptr;
  const Entry& entry = std::prev(after)->second;
  return va < entry.end ? entry.arena : nullptr;
}

SharedBlocks::Blocks::iterator SharedBlocks::find_live(uint64_t va) {
  const auto found = blocks_.find(va);
  return found != blocks_.end() && found->second.state == State::kLive ? found : blocks_.end();
}

// ---- Blocks that come

void SharedBlocks::make_live(Block& block, uint64_t requested_bytes, const StreamIdentity& stream) {
  const uint64_t bytes = block.range.bytes();
  block.state = State::kLive;
  block.requested_bytes = requested_bytes;
  block.streams = {stream};
  counters_->on_allocate(SizePool::kLarge, requested_bytes, bytes, bytes, 0, block.range.base());
}

Result<uint64_t> SharedBlocks::reuse(uint64_t requested_bytes, const StreamIdentity& stream) {
  complete_finished_frees();
  const uint64_t bytes = extent_bytes(requested_bytes);
  const auto serves = [&](const Block& block, State state) {
    return block.state == state && !block.is_exported && block.range.bytes() == bytes;
  };
  for (auto& [va, block] : blocks_) {
    if (!serves(block, State::kIdle)) continue;
    make_live(block, requested_bytes, stream);
    return va;
  }
  for (auto& [va, block] : blocks_) {
    if (!serves(block, State::kPending) || block.is_unordered) continue;
    for (const Event& event : block.events) {
      count(DriverCall::kStreamWait);
      if (Status status = event.make_wait(stream.stream); !status.ok()) return status;
    }
    complete_free(block);
    make_live(block, requested_bytes, stream);
    return va;
  }
  return uint64_t{0};
}

Status SharedBlocks::enter(Block block, const std::vector<int>& devices) {
  const uint64_t va = block.range.base();
  const uint64_t bytes = block.range.bytes();
  count(DriverCall::kSetAccess);
  if (Status status = set_access(driver_, va, bytes, devices.data(), devices.size()); !status.ok()) {
    count(DriverCall::kUnmap);  // at the end of the range
    return status;
  }
  blocks_.emplace(va, std::move(block));
  Registry& all = registry();
  const Lock lock(all.mutex);
  all.entries[va] = {va + bytes, &arena_};
  return {};
}

Result<uint64_t> SharedBlocks::create(uint64_t requested_bytes, const StreamIdentity& stream,
                                      const std::vector<int>& devices, bool network) {
  const uint64_t bytes = extent_bytes(requested_bytes);
  if (counters_ == nullptr) counters_ = std::make_unique<HeapCounters>(device_counters_);
  Block block;
  count(DriverCall::kCreate);
  Result<PhysicalHandle> handle =
      PhysicalHandle::create(driver_, devices.front(), bytes, sharing_of(true, network));
  if (!handle.ok()) return handle.take_status();
  block.handle = std::move(handle.value());
  count(DriverCall::kReserve);
  Result<MappedRange> range = MappedRange::reserve(driver_, bytes);
  if (!range.ok()) return range.take_status();
  block.range = std::move(range.value());
  count(DriverCall::kMap);
  if (Status status = block.range.append(block.handle); !status.ok()) return status;
  const uint64_t va = block.range.base();
  if (Status status = enter(std::move(block), devices); !status.ok()) return status;
  held_bytes_ += bytes;
  device_counters_.on_reserve(static_cast<int64_t>(bytes), 1);
  counters_->on_pages(static_cast<int64_t>(bytes));
  make_live(blocks_.at(va), requested_bytes, stream);
  return va;
}

// ---- Blocks that go

Status SharedBlocks::record_stream(uint64_t va, const StreamIdentity& stream) {
  const auto found = find_live(va);
  if (found == blocks_.end()) return no_block("record_stream", va);
  std::vector<StreamIdentity>& streams = found->second.streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  return {};
}

Status SharedBlocks::free(uint64_t va) {
  if (is_imported(va)) {
    return Status::invalid_pointer(
        fmt::format("free of {:#x}: it is another process's block; close it (spw_import_close)", va));
  }
  const auto found = find_live(va);
  if (found == blocks_.end()) return no_block("free", va);
  Block& block = found->second;
  block.state = State::kPending;
  block.freed_at = waits_;
  counters_->on_free_requested(SizePool::kLarge, block.range.bytes(), block.requested_bytes,
                               block.range.base());
  record_events(block);
  return {};
}

void SharedBlocks::record_events(Block& block) {
  for (const StreamIdentity& stream : block.streams) {
    const bool is_reachable = is_in_reach(stream) && !is_capturing(driver_, stream.stream);
    Result<Event> event = is_reachable ? events_.acquire() : Status::invalid_state("out of reach");
    if (event.ok()) count(DriverCall::kEventRecord);
    if (event.ok() && event->record(stream.stream).ok()) {
      block.events.push_back(std::move(event.value()));
    } else {
      block.is_unordered = true;
    }
  }
}

void SharedBlocks::complete_free(Block& block) {
  for (Event& event : block.events) events_.give_back(std::move(event));
  block.events.clear();
  block.streams.clear();
  block.is_unordered = false;
  block.state = State::kIdle;
  const uint64_t bytes = block.range.bytes();
  counters_->on_free_completed(SizePool::kLarge, block.requested_bytes, bytes, bytes, 0, block.range.base());
}

void SharedBlocks::complete_finished_frees() {
  if (blocks_.empty() || !events_.may_ask()) return;
  for (auto& [va, block] : blocks_) {
    if (block.state != State::kPending || block.is_unordered) continue;
    const bool done = std::all_of(block.events.begin(), block.events.end(), [&](const Event& event) {
      count(DriverCall::kEventQuery);
      const Result<bool> completed = event.completed();
      return completed.ok() && completed.value();
    });
    if (done) complete_free(block);
  }
  release_exported();
}

void SharedBlocks::end_wait(uint64_t awaited) {
  for (auto& [va, block] : blocks_) {
    if (block.state == State::kPending && block.freed_at < awaited) complete_free(block);
  }
  release_exported();
}

bool SharedBlocks::list_pending_events(std::vector<CUevent>& events) const {
  bool all_have_events = true;
  for (const auto& [va, block] : blocks_) {
    for (const Event& event : block.events) events.push_back(event.get());
    all_have_events = all_have_events && !block.is_unordered;
  }
  return all_have_events;
}

bool SharedBlocks::is_in_use() const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [](const auto& entry) { return entry.second.state != State::kIdle; });
}

bool SharedBlocks::has_idle() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const auto& entry) {
    return entry.second.state == State::kIdle || entry.second.state == State::kPending;
  });
}

void SharedBlocks::release_exported() {
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    const auto next = std::next(at);
    // What the driver refuses to take stays, and is offered again.
    if (at->second.state == State::kIdle && at->second.is_exported) (void)release(at);
    at = next;
  }
}

Status SharedBlocks::release_idle() {
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    const auto next = std::next(at);
    if (at->second.state == State::kIdle) {
      if (Status status = release(at); !status.ok()) return status;
    }
    at = next;
  }
  return {};
}

Status SharedBlocks::unmap_and_erase(Blocks::iterator at) {
  count(DriverCall::kUnmap);
  if (Status status = at->second.range.unmap_all(); !status.ok()) return status;
  {
    Registry& all = registry();
    const Lock lock(all.mutex);
    all.entries.erase(at->first);
  }
  if (at->second.handle) count(DriverCall::kRelease);
  Status released = at->second.handle.release();
  blocks_.erase(at);
  return released;
}

Status SharedBlocks::release(Blocks::iterator at) {
  const uint64_t va = at->first;
  const uint64_t bytes = at->second.range.bytes();
  Status status = unmap_and_erase(at);
  if (blocks_.count(va) != 0) return status;
  held_bytes_ -= bytes;
  counters_->on_pages(-static_cast<int64_t>(bytes));
  device_counters_.on_reserve(-static_cast<int64_t>(bytes), -1);
  return status;
}

// ---- Other processes, other devices

Result<Exported> SharedBlocks::export_block(uint64_t va) {
  auto found = blocks_.upper_bound(va);
  if (found != blocks_.begin()) --found;
  if (found == blocks_.end() || found->second.state != State::kLive || va < found->first ||
      va - found->first >= found->second.range.bytes()) {
    return Status::invalid_pointer(
        fmt::format("export of {:#x}: no live block of this process is there", va));
  }
  Result<int> descriptor = export_file_descriptor(driver_, found->second.handle.get());
  if (!descriptor.ok()) return descriptor.take_status();
  found->second.is_exported = true;
  return Exported{descriptor.value(), va - found->first, found->second.range.bytes()};
}

Result<uint64_t> SharedBlocks::take_in(MappedRange range, const std::vector<int>& devices) {
  const uint64_t va = range.base();
  Block block;
  block.state = State::kImported;
  block.range = std::move(range);
  if (Status status = enter(std::move(block), devices); !status.ok()) return status;
  return va;
}

uint32_t SharedBlocks::mappings() const {
  return std::accumulate(blocks_.begin(), blocks_.end(), uint32_t{0},
                         [](uint32_t sum, const auto& entry) { return sum + entry.second.range.pieces(); });
}

bool SharedBlocks::is_imported(uint64_t va) const {
  const auto found = blocks_.find(va);
  return found != blocks_.end() && found->second.state == State::kImported;
}

Status SharedBlocks::drop_imported(uint64_t va) {
  return is_imported(va) ? unmap_and_erase(blocks_.find(va)) : no_block("close", va);
}

Status SharedBlocks::grant_peer(int peer) {
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    count(DriverCall::kSetAccess);
    Status status = set_access(driver_, at->first, at->second.range.bytes(), peer);
    if (status.ok()) continue;
    deny_peer(peer);
    return status;
  }
  return {};
}

void SharedBlocks::deny_peer(int peer) {
  for (const auto& [va, block] : blocks_) {
    count(DriverCall::kSetAccess);
    (void)deny_access(driver_, va, block.range.bytes(), peer);
  }
}

// ---- Counting again

Status SharedBlocks::validate() const {
  int64_t held = 0;
  int64_t active = 0;
  int64_t requested = 0;
  int64_t pending = 0;
  for (const auto& [va, block] : blocks_) {
    if (block.state == State::kImported) continue;
    const auto bytes = static_cast<int64_t>(block.range.bytes());
    held += bytes;
    if (block.state == State::kIdle) continue;
    active += bytes;
    requested += static_cast<int64_t>(block.requested_bytes);
    if (block.state == State::kPending) pending += bytes;
  }
  const HeapStats counted = stats();
  if (held == static_cast<int64_t>(held_bytes_) && held == counted.owned_bytes &&
      active == counted.active_bytes && requested == counted.requested_bytes &&
      pending == counted.pending_bytes && held - active == counted.cached_free_bytes &&
      counted.inactive_split_bytes == 0) {
    return {};
  }
  return Status::internal(
      fmt::format("validate: shared blocks: {} bytes held, {} active, {} requested, {} pending by walking; "
                  "{}, {}, {}, {} "
                  "counted",
                  held, active, requested, pending, counted.owned_bytes, counted.active_bytes,
                  counted.requested_bytes, counted.pending_bytes));
}

void SharedBlocks::list_segments(std::vector<SegmentRow>& rows) const {
  for (const auto& [va, block] : blocks_) {
    if (block.state == State::kImported) continue;
    SegmentRow row;
    row.address = va;
    row.total_bytes = block.range.bytes();
    const bool is_active = block.state != State::kIdle;
    row.active_bytes = is_active ? row.total_bytes : 0;
    row.allocated_bytes = block.state == State::kLive ? row.total_bytes : 0;
    row.requested_bytes = is_active ? block.requested_bytes : 0;
    if (!block.streams.empty()) row.stream = reinterpret_cast<uint64_t>(block.streams.front().stream);
    const BlockKind kind = block.state == State::kLive      ? BlockKind::kActiveAllocated
                           : block.state == State::kPending ? BlockKind::kActivePendingFree
                                                            : BlockKind::kInactive;
    row.blocks.push_back({va, row.total_bytes, row.requested_bytes, kind});
    rows.push_back(std::move(row));
  }
}

}  // namespace spillway
