#include "offload/spill/region.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <utility>

#include "driver/context.h"
#include "stats/own_thread.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t ns_since(Clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

// The region that this thread is bringing back.
thread_local const Region* moved_here = nullptr;

std::atomic<uint64_t> next_use{1};

}  // namespace

uint64_t Region::count_use() {
  return next_use.fetch_add(1, std::memory_order_relaxed);
}

uint64_t Region::uses() {
  return next_use.load(std::memory_order_relaxed);
}

// ---- In hand

bool Region::hold(Status* refused) {
  if (!LastRungs::is_inside()) {
    mutex.lock();
    return true;
  }
  if (!is_moved_here() && mutex.try_lock()) return true;
  *refused = in_other_hands();
  return false;
}

bool Region::settle(Status* refused) {
  const CopyStreams::Demand demand(memory_.copy_streams(), urgency_);
  if (!hold(refused)) return false;
  if (LastRungs::is_inside() && is_coming()) {
    mutex.unlock();
    *refused = in_other_hands();
    return false;
  }
  finish_prefetch();
  return true;
}

Status Region::in_other_hands() const {
  return Status::invalid_state(fmt::format(
      "region '{}' is being moved or used, and nothing waits for that while room is being made", tag_));
}

void Region::finish_prefetch() {
  if (prefetching_.valid()) prefetched_ = prefetching_.get();
}

bool Region::is_coming() const {
  return prefetching_.valid() && prefetching_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

bool Region::is_moved_here() const {
  return moved_here == this;
}

// ---- Move

bool Region::may_go() {
  if (is_coming()) return false;
  finish_prefetch();
  return !is_away() && pins == 0 && opened == 0;
}

Status Region::not_here() {
  const std::optional<Status> prefetched = std::exchange(prefetched_, std::nullopt);
  if (!prefetched.has_value() || prefetched->ok()) {
    return Status::invalid_state(fmt::format("region '{}' is not on the device: restore it first", tag_));
  }
  return Status(prefetched->code(), fmt::format("region '{}' is not on the device: its prefetch failed: {}",
                                                tag_, prefetched->text()));
}

Status Region::note_failure(Status failed) const {
  const ScopedContext context(memory_.copy_streams().driver(), arena_.context());
  return memory_.copy_streams().note_failure(std::move(failed));
}

Status Region::evict(SpillTo to, const BlockMover::MakeRoom& make_room) {
  if (is_away()) return Status::invalid_state(fmt::format("region '{}' is not on the device already", tag_));
  if (pins > 0)
    return Status::invalid_state(fmt::format("region '{}' is pinned {} times: it must stay", tag_, pins));
  if (opened > 0)
    return Status::invalid_state(fmt::format("region '{}' is open: end it before it is evicted", tag_));
  return move_out(to, make_room);
}

Status Region::move_out(SpillTo to, const BlockMover::MakeRoom& make_room) {
  if (Status off = memory_.copy_streams().why_off(); !off.ok()) return off;
  const auto begin = Clock::now();
  Packer* const packer = packer_.get();
  Status status = arena_.move_pool_out(id_, [&](const RegionMemory::Ranges& ranges) {
    return memory_.copy_out(ranges, to, packer, make_room);
  });
  if (!status.ok()) return note_failure(std::move(status));
  prefetched_.reset();
  ++counts_.evictions;
  counts_.evict_ns += ns_since(begin);
  return {};
}

Status Region::lost(const std::string& why) const {
  std::map<uint64_t, uint64_t> ranges;  // begin to end
  for (const PageRange& range : memory_.lost(arena_.pool_ranges(id_))) {
    const std::vector<BlockRow> blocks = arena_.pool_blocks_in(id_, range);
    for (const BlockRow& block : blocks) ranges[block.address] = block.address + block.bytes;
    // What lies there is a graph's, which has no name.
    if (blocks.empty()) ranges[range.va] = range.end_va();
  }
  std::string blocks;
  for (const auto& [begin, end] : ranges) {
    blocks +=
        fmt::format("{}{} bytes from {:#x} to {:#x}", blocks.empty() ? "" : ", ", end - begin, begin, end);
  }
  return Status::data_lost(
      fmt::format("{} were moved out and cannot be read any more: free what lies there and bring the rest "
                  "back, or release the region where it is; {}",
                  blocks, why));
}

Status Region::bring_back() {
  if (Status off = memory_.copy_streams().why_off(); !off.ok()) return off;
  const auto begin = Clock::now();
  const Region* const outer = std::exchange(moved_here, this);
  Status status = caught([&] {
    return arena_.bring_pool_back(id_, [&](const RegionMemory::Ranges& ranges, bool* is_settled) {
      return memory_.copy_back(ranges, urgency_, is_settled);
    });
  });
  moved_here = outer;
  if (status.code() == SPW_ERROR_DATA_LOST) status = lost(status.text());
  if (!status.ok()) return note_failure(std::move(status));
  note_use();
  ++counts_.restores;
  counts_.restore_ns += ns_since(begin);
  return {};
}

Status Region::restore() {
  if (std::optional<Status> prefetched = std::exchange(prefetched_, std::nullopt))
    return std::move(*prefetched);
  if (!is_away()) return Status::invalid_state(fmt::format("region '{}' is on the device already", tag_));
  const CopyStreams::Demand demand(memory_.copy_streams(), urgency_);
  return bring_back();
}

Status Region::prefetch() {
  if (prefetching_.valid()) return {};
  if (Status off = memory_.copy_streams().why_off(); !off.ok()) return off;
  if (!is_away()) return Status::invalid_state(fmt::format("region '{}' is on the device already", tag_));
  prefetched_.reset();
  // Everyone else waits for the thread before looking at the region, so it needs no lock. Nobody joins it: it
  // ends when it has said how it went.
  auto said = std::make_shared<std::promise<Status>>();
  std::future<Status> prefetching = said->get_future();
  try {
    start_own_thread([region = shared_from_this(), said]() mutable {
      Status status = caught([&] {
        region->mutex.assert_held();  // as good as, see above
        return region->bring_back();
      });
      region.reset();
      said->set_value(std::move(status));
    }).detach();
    prefetching_ = std::move(prefetching);
  } catch (const std::exception& error) {
    return Status::io(fmt::format("no thread to bring region '{}' back: {}", tag_, error.what()));
  }
  return {};
}

uint64_t Region::write_down() {
  const RegionMemory::Ranges ranges = arena_.pool_ranges(id_);
  const uint64_t before = memory_.usage(ranges).host_bytes;
  if (before == 0) return 0;
  (void)memory_.write_down(ranges, packer_.get());
  return before - std::min(before, memory_.usage(ranges).host_bytes);
}

// ---- Reports

Status Region::read(uint64_t va, uint64_t bytes, std::byte* out) {
  if (!is_away()) {
    return Status::invalid_state(
        fmt::format("region '{}' is on the device: its bytes are to be copied from there", tag_));
  }
  const uint64_t last = va + std::max<uint64_t>(bytes, 1) - 1;
  const RegionMemory::Ranges ranges = arena_.pool_ranges(id_);
  const auto has = [&ranges](uint64_t at) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [at](const PageRange& range) { return range.va <= at && at < range.end_va(); });
  };
  if (last < va || !has(va) || !has(last))
    return Status::invalid_argument(fmt::format("the bytes at {:#x} are not of region '{}'", va, tag_));
  return memory_.read(va, bytes, out, urgency_);
}

RegionUsage Region::usage() const {
  RegionUsage usage;
  if (is_away()) {
    usage = memory_.usage(arena_.pool_ranges(id_));
    usage.stuck_bytes = arena_.pool_stuck_bytes(id_);
  } else {
    usage.device_bytes = arena_.pool_held_bytes(id_);
  }
  return usage;
}

RegionReport Region::report() const {
  RegionReport report = counts_;
  report.usage = usage();
  report.pins = pins;
  report.priority = priority();
  return report;
}

}  // namespace spillway
