#include "offload/spill/regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
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

// Regions that this thread has opened, innermost last; null where it wants none.
thread_local std::vector<const void*> open_regions;
// The one it is moving: making room for it must not ask it.
thread_local const void* moving_region = nullptr;

std::atomic<uint64_t> next_use{1};

}  // namespace

Regions::~Regions() {
  if (rung_ != 0) arena_.last_rungs().remove(rung_);
  for (const auto& [tag, region] : regions_) finish_prefetch(*region);
}

// ---- Which

Status Regions::check_tag(const std::string& tag) {
  const auto allowed = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') ||
           std::string_view("._-/:").find(letter) != std::string_view::npos;
  };
  if (!tag.empty() && tag.size() <= Regions::kMostTagLetters && std::all_of(tag.begin(), tag.end(), allowed))
    return {};
  return Status::invalid_argument(
      fmt::format("'{}' is no tag of a region: use 1 to {} letters, digits and ._-/:", tag.substr(0, 80),
                  Regions::kMostTagLetters));
}

Result<Regions::RegionPointer> Regions::find(const std::string& tag) {
  const Lock lock(mutex_);
  if (const auto found = regions_.find(tag); found != regions_.end()) return found->second;
  std::string names;
  for (const auto& [name, region] : regions_) names += (names.empty() ? "" : ", ") + name;
  return Status::invalid_state(fmt::format("device {} has no region '{}'; it has: {}", arena_.device(),
                                           tag.substr(0, 80), names.empty() ? "none" : names));
}

Result<Regions::RegionPointer> Regions::find_or_make(const std::string& tag) {
  const Lock lock(mutex_);
  if (const auto found = regions_.find(tag); found != regions_.end()) return found->second;
  if (Status status = check_tag(tag); !status.ok()) return status;
  auto region = std::make_shared<Region>(tag, PoolId{next_pool_, 0}, codec_);
  if (Status status = make(*region); !status.ok()) return status;
  ++next_pool_;
  return regions_.emplace(tag, std::move(region)).first->second;
}

Status Regions::make(Region& region) {
  if (Status status = arena_.retain_pool(region.id); !status.ok()) return status;
  Status status =
      arena_.make_pool_movable(region.id, [this](const PageRange& range) { memory_.give_up(range); });
  if (!status.ok()) (void)arena_.release_pool(region.id);
  return status;
}

bool Regions::hold(Region& region, Status* refused) {
  if (!LastRungs::is_inside()) {
    region.mutex.lock();
    return true;
  }
  if (&region != moving_region && region.mutex.try_lock()) return true;
  *refused = in_other_hands(region);
  return false;
}

bool Regions::settle(Region& region, Status* refused) {
  const CopyStreams::Demand demand(memory_.copy_streams(), region.urgency);
  if (!hold(region, refused)) return false;
  if (LastRungs::is_inside() && is_coming(region)) {
    region.mutex.unlock();
    *refused = in_other_hands(region);
    return false;
  }
  finish_prefetch(region);
  return true;
}

Status Regions::in_other_hands(const Region& region) {
  return Status::invalid_state(fmt::format(
      "region '{}' is being moved or used, and nothing waits for that while room is being made", region.tag));
}

template <typename Body>
Status Regions::with_settled(const std::string& tag, Body body) {
  Result<RegionPointer> found = find(tag);
  if (!found.ok()) return found.take_status();
  const RegionPointer region = found.value();
  Status refused;
  if (!settle(*region, &refused)) return refused;
  const Lock lock(region->mutex, kAdoptLock);
  // Called so because clang would take the mutex that body(*region) needs for another one.
  return std::invoke(body, *region);
}

// ---- Open

Status Regions::begin(const std::string& tag) {
  Result<RegionPointer> found = find_or_make(tag);
  if (!found.ok()) return found.take_status();
  Region& region = *found.value();
  Status refused;
  if (!settle(region, &refused)) return refused;
  const Lock lock(region.mutex, kAdoptLock);
  if (is_away(region)) return not_here(region);
  if (region.opened == 0) {
    const auto is_innermost = [which = &region](CUstream) {
      return !open_regions.empty() && open_regions.back() == which;
    };
    if (Status status = arena_.begin_pool(region.id, is_innermost, true); !status.ok()) return status;
  }
  ++region.opened;
  region.last_use = next_use.fetch_add(1, std::memory_order_relaxed);
  open_regions.push_back(&region);
  return {};
}

Status Regions::end(const std::string& tag) {
  Result<RegionPointer> found = find(tag);
  if (!found.ok()) return found.take_status();
  Region& region = *found.value();
  if (open_regions.empty() || open_regions.back() != &region) {
    return Status::invalid_state(
        fmt::format("region '{}' is not the innermost that this thread opened", tag));
  }
  open_regions.pop_back();
  const Lock lock(region.mutex);
  if (--region.opened > 0) return {};
  if (Status status = arena_.end_pool(region.id); !status.ok()) return status;
  return arena_.release_pool(region.id);  // the claim of begin_pool; the region's own stays
}

void Regions::begin_none() {
  open_regions.push_back(nullptr);
}

Status Regions::end_none() {
  if (open_regions.empty() || open_regions.back() != nullptr)
    return Status::invalid_state("the innermost that this thread opened is a region");
  open_regions.pop_back();
  return {};
}

Status Regions::open_as_default(Region& region) {
  Status refused;
  if (!settle(region, &refused)) return refused;
  const Lock lock(region.mutex, kAdoptLock);
  if (is_away(region)) return not_here(region);
  if (region.opened > 0) {
    return Status::invalid_state(
        fmt::format("region '{}' is open: end it before it is made the default", region.tag));
  }
  const auto serves = [which = &region](CUstream) {
    return open_regions.empty() || open_regions.back() == which;
  };
  if (Status status = arena_.begin_pool(region.id, serves, true, true); !status.ok()) return status;
  region.opened = 1;
  region.last_use = next_use.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status Regions::close_as_default(Region& region) {
  const Lock lock(region.mutex);
  if (region.opened > 1) {
    return Status::invalid_state(
        fmt::format("region '{}' is open: end it before another is made the default", region.tag));
  }
  region.opened = 0;
  if (Status status = arena_.end_pool(region.id); !status.ok()) return status;
  return arena_.release_pool(region.id);
}

Status Regions::set_default(const std::string& tag) {
  RegionPointer next;
  if (!tag.empty()) {
    Result<RegionPointer> found = find_or_make(tag);
    if (!found.ok()) return found.take_status();
    next = found.value();
  }
  const Lock choosing(choosing_default_);
  if (next == default_) return {};
  // The next one first: whatever is allocated meanwhile is in one of the two.
  if (next != nullptr) {
    if (Status status = open_as_default(*next); !status.ok()) return status;
  }
  if (default_ != nullptr) {
    if (Status status = close_as_default(*default_); !status.ok()) {
      if (next != nullptr) (void)close_as_default(*next);
      return status;
    }
  }
  default_ = std::move(next);
  return {};
}

Result<PoolId> Regions::pool(const std::string& tag) {
  Result<RegionPointer> found = find_or_make(tag);
  if (!found.ok()) return found.take_status();
  return PoolId{found.value()->id};
}

// ---- Move

void Regions::finish_prefetch(Region& region) {
  if (region.prefetching.valid()) region.prefetched = region.prefetching.get();
}

Status Regions::not_here(Region& region) {
  const std::optional<Status> prefetched = std::exchange(region.prefetched, std::nullopt);
  if (!prefetched.has_value() || prefetched->ok()) {
    return Status::invalid_state(
        fmt::format("region '{}' is not on the device: restore it first", region.tag));
  }
  return Status(prefetched->code(), fmt::format("region '{}' is not on the device: its prefetch failed: {}",
                                                region.tag, prefetched->text()));
}

bool Regions::is_coming(const Region& region) {
  return region.prefetching.valid() &&
         region.prefetching.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

bool Regions::is_away(const Region& region) const {
  return arena_.pool_is_away(region.id);
}

bool Regions::may_go(Region& region) {
  if (is_coming(region)) return false;
  finish_prefetch(region);
  return !is_away(region) && region.pins == 0 && region.opened == 0;
}

bool Regions::write_down_colder(const Region& leaving) {
  std::vector<RegionPointer> colder;
  for (RegionPointer& region : all()) {
    const bool is_mine = region.get() == &leaving || region.get() == moving_region;
    if (!is_mine && region->last_use < leaving.last_use) colder.push_back(std::move(region));
  }
  std::sort(colder.begin(), colder.end(), [](const RegionPointer& a, const RegionPointer& b) {
    return a->last_use.load() < b->last_use.load();
  });
  for (const RegionPointer& region : colder) {
    if (!region->mutex.try_lock()) continue;
    const Lock lock(region->mutex, kAdoptLock);
    if (is_coming(*region)) continue;
    finish_prefetch(*region);
    if (!is_away(*region) || region->is_released) continue;
    const RegionMemory::Ranges ranges = arena_.pool_ranges(region->id);
    const uint64_t before = memory_.usage(ranges).host_bytes;
    if (before == 0) continue;
    (void)memory_.write_down(ranges, region->packer.get());
    if (memory_.usage(ranges).host_bytes < before) return true;
  }
  return false;
}

Status Regions::note_failure(Status failed) {
  const ScopedContext context(memory_.copy_streams().driver(), arena_.context());
  return memory_.copy_streams().note_failure(std::move(failed));
}

Status Regions::move_out(Region& region, SpillTo to) {
  if (Status off = memory_.copy_streams().why_off(); !off.ok()) return off;
  const auto begin = Clock::now();
  // What the program has freed of others is no use to anybody.
  const auto make_room = [&]() SPW_REQUIRES(region.mutex) {
    return arena_.give_up_freed() > 0 || write_down_colder(region);
  };
  Packer* const packer = region.packer.get();
  Status status = arena_.move_pool_out(region.id, [&](const RegionMemory::Ranges& ranges) {
    return memory_.copy_out(ranges, to, packer, make_room);
  });
  if (!status.ok()) return note_failure(std::move(status));
  region.prefetched.reset();
  ++region.report.evictions;
  region.report.evict_ns += ns_since(begin);
  return {};
}

Status Regions::lost(const Region& region, const std::string& why) const {
  std::map<uint64_t, uint64_t> ranges;  // begin to end
  for (const PageRange& range : memory_.lost(arena_.pool_ranges(region.id))) {
    const std::vector<BlockRow> blocks = arena_.pool_blocks_in(region.id, range);
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

Status Regions::bring_back(Region& region) {
  if (Status off = memory_.copy_streams().why_off(); !off.ok()) return off;
  const auto begin = Clock::now();
  const void* const outer = std::exchange(moving_region, &region);
  Status status = caught([&] {
    return arena_.bring_pool_back(region.id, [&](const RegionMemory::Ranges& ranges, bool* is_settled) {
      return memory_.copy_back(ranges, region.urgency, is_settled);
    });
  });
  moving_region = outer;
  if (status.code() == SPW_ERROR_DATA_LOST) status = lost(region, status.text());
  if (!status.ok()) return note_failure(std::move(status));
  region.last_use = next_use.fetch_add(1, std::memory_order_relaxed);
  ++region.report.restores;
  region.report.restore_ns += ns_since(begin);
  return {};
}

Status Regions::evict(const std::string& tag, SpillTo to) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    if (is_away(region)) {
      return Status::invalid_state(fmt::format("region '{}' is not on the device already", tag));
    }
    if (region.pins > 0) {
      return Status::invalid_state(
          fmt::format("region '{}' is pinned {} times: it must stay", tag, region.pins));
    }
    if (region.opened > 0) {
      return Status::invalid_state(fmt::format("region '{}' is open: end it before it is evicted", tag));
    }
    return move_out(region, to);
  });
}

Status Regions::restore(const std::string& tag) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    if (std::optional<Status> prefetched = std::exchange(region.prefetched, std::nullopt))
      return std::move(*prefetched);
    if (!is_away(region))
      return Status::invalid_state(fmt::format("region '{}' is on the device already", tag));
    const CopyStreams::Demand demand(memory_.copy_streams(), region.urgency);
    return bring_back(region);
  });
}

Status Regions::prefetch(const std::string& tag) {
  Result<RegionPointer> found = find(tag);
  if (!found.ok()) return found.take_status();
  RegionPointer pointer = found.value();
  Region& region = *pointer;
  Status refused;
  if (!hold(region, &refused)) return refused;
  const Lock lock(region.mutex, kAdoptLock);
  if (region.prefetching.valid()) return {};
  if (Status off = memory_.copy_streams().why_off(); !off.ok()) return off;
  if (!is_away(region))
    return Status::invalid_state(fmt::format("region '{}' is on the device already", tag));
  region.prefetched.reset();
  // Everyone else waits for the thread before looking at the region, so it needs no lock. Nobody joins it: it
  // ends when it has said how it went.
  auto said = std::make_shared<std::promise<Status>>();
  std::future<Status> prefetching = said->get_future();
  try {
    start_own_thread([this, pointer, said]() mutable {
      Status status = caught([&] {
        pointer->mutex.assert_held();  // as good as, see above
        return bring_back(*pointer);
      });
      pointer.reset();
      said->set_value(std::move(status));
    }).detach();
    region.prefetching = std::move(prefetching);
  } catch (const std::exception& error) {
    return Status::io(fmt::format("no thread to bring region '{}' back: {}", tag, error.what()));
  }
  return {};
}

// ---- Policy

Status Regions::pin(const std::string& tag) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    if (is_away(region)) return not_here(region);
    ++region.pins;
    region.last_use = next_use.fetch_add(1, std::memory_order_relaxed);
    return {};
  });
}

Status Regions::unpin(const std::string& tag) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    if (region.pins == 0) return Status::invalid_state(fmt::format("region '{}' is not pinned", tag));
    --region.pins;
    next_use.fetch_add(1, std::memory_order_relaxed);
    return {};
  });
}

Status Regions::set_priority(const std::string& tag, int priority) {
  if (priority < 0) return Status::invalid_argument(fmt::format("a priority of {}: use 0 or more", priority));
  Result<RegionPointer> found = find(tag);
  if (!found.ok()) return found.take_status();
  found.value()->priority = priority;
  next_use.fetch_add(1, std::memory_order_relaxed);
  const Lock lock(mutex_);
  if (priority > 0 && rung_ == 0) {
    rung_ = arena_.last_rungs().add(Rung::kEvict, [this](uint64_t bytes) {
      return evict_coldest([bytes](uint64_t given) { return given < bytes; }).bytes;
    });
  }
  return {};
}

Status Regions::set_codec(const std::string& tag, Codec codec) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    region.packer = std::make_unique<Packer>(codec);
    return {};
  });
}

EvictionResult Regions::evict_coldest(const std::function<bool(uint64_t)>& wants_more) {
  EvictionResult result;
  std::vector<RegionPointer> candidates;
  {
    const Lock lock(mutex_);
    for (const auto& [tag, region] : regions_) candidates.push_back(region);
  }
  struct Choice {
    int priority;
    uint64_t last_use;
    RegionPointer region;
  };
  std::vector<Choice> choices;
  for (RegionPointer& region : candidates) {
    if (region.get() == moving_region) continue;
    if (!region->mutex.try_lock()) {
      result.is_complete = false;
      continue;
    }
    const Lock lock(region->mutex, kAdoptLock);
    if (region->priority == 0 || !may_go(*region)) continue;
    choices.push_back({region->priority, region->last_use.load(std::memory_order_relaxed), region});
  }
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.last_use < b.last_use;
  });
  for (const Choice& choice : choices) {
    if (!wants_more(result.bytes)) break;
    Region& region = *choice.region;
    if (!region.mutex.try_lock()) {
      result.is_complete = false;
      continue;
    }
    const Lock lock(region.mutex, kAdoptLock);
    if (!may_go(region)) continue;
    const uint64_t held = arena_.pool_held_bytes(region.id);
    if (move_out(region, SpillTo::kHost).ok()) result.bytes += held;
  }
  return result;
}

uint64_t Regions::uses() {
  return next_use.load(std::memory_order_relaxed);
}

Result<EvictionResult> Regions::relieve(uint64_t above_bytes, uint64_t below_bytes,
                                        const std::function<bool()>& goes_on) {
  const auto held = [this] { return static_cast<uint64_t>(arena_.stats().reserved_bytes.all.current); };
  const uint64_t before = held();
  if (before <= above_bytes) return EvictionResult{};
  if (Status status = arena_.trim_for_now(); !status.ok()) return status;
  bool was_stopped = false;
  EvictionResult result = evict_coldest([&](uint64_t) {
    if (held() <= below_bytes) return false;
    was_stopped = !goes_on();
    return !was_stopped;
  });
  const uint64_t after = held();
  result.bytes = before > after ? before - after : 0;
  result.is_complete = after <= below_bytes || (result.is_complete && !was_stopped);
  return result;
}

Status Regions::release(const std::string& tag) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    if (region.opened > 0) {
      return Status::invalid_state(fmt::format("region '{}' is open: end it before its release", tag));
    }
    if (Status status = arena_.release_pool(region.id); !status.ok()) return status;
    region.is_released = true;
    const Lock registry(mutex_);
    regions_.erase(tag);
    return {};
  });
}

// ---- Reports

RegionUsage Regions::usage_of(const Region& region) const {
  RegionUsage usage;
  if (is_away(region)) {
    usage = memory_.usage(arena_.pool_ranges(region.id));
    usage.stuck_bytes = arena_.pool_stuck_bytes(region.id);
  } else {
    usage.device_bytes = arena_.pool_held_bytes(region.id);
  }
  return usage;
}

RegionReport Regions::report_of(const Region& region) const {
  RegionReport report = region.report;
  report.usage = usage_of(region);
  report.pins = region.pins;
  report.priority = region.priority;
  return report;
}

Result<RegionReport> Regions::look_at(Region& region) {
  if (&region == moving_region) {
    region.mutex.assert_held();  // by this thread, which has it in hand and makes room
    return report_of(region);
  }
  Status refused;
  if (!settle(region, &refused)) return refused;
  const Lock lock(region.mutex, kAdoptLock);
  return report_of(region);
}

Status Regions::read(const std::string& tag, uint64_t va, uint64_t bytes, std::byte* out) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    if (!is_away(region)) {
      return Status::invalid_state(
          fmt::format("region '{}' is on the device: its bytes are to be copied from there", tag));
    }
    const uint64_t last = va + std::max<uint64_t>(bytes, 1) - 1;
    const RegionMemory::Ranges ranges = arena_.pool_ranges(region.id);
    const auto has = [&ranges](uint64_t at) {
      return std::any_of(ranges.begin(), ranges.end(),
                         [at](const PageRange& range) { return range.va <= at && at < range.end_va(); });
    };
    if (last < va || !has(va) || !has(last))
      return Status::invalid_argument(fmt::format("the bytes at {:#x} are not of region '{}'", va, tag));
    return memory_.read(va, bytes, out, region.urgency);
  });
}

Result<RegionReport> Regions::report(const std::string& tag) {
  Result<RegionPointer> found = find(tag);
  if (!found.ok()) return found.take_status();
  return look_at(*found.value());
}

std::vector<Regions::RegionPointer> Regions::all() {
  const Lock lock(mutex_);
  std::vector<RegionPointer> out;
  for (const auto& [tag, region] : regions_) out.push_back(region);
  return out;
}

std::vector<std::pair<std::string, RegionReport>> Regions::reports() {
  std::vector<std::pair<std::string, RegionReport>> out;
  for (const RegionPointer& region : all()) {
    Result<RegionReport> report = look_at(*region);
    if (report.ok()) out.emplace_back(region->tag, report.value());
  }
  return out;
}

std::optional<RegionUsage> Regions::try_usage() {
  RegionUsage sum;
  for (const RegionPointer& region : all()) {
    if (region.get() == moving_region) return std::nullopt;
    if (!region->mutex.try_lock()) return std::nullopt;
    const Lock lock(region->mutex, kAdoptLock);
    if (is_coming(*region)) return std::nullopt;
    if (!is_away(*region)) continue;
    sum += usage_of(*region);
  }
  return sum;
}

}  // namespace spillway
