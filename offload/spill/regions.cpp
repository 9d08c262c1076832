#include "offload/spill/regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace spillway {
namespace {

// Regions that this thread has opened, innermost last; null where it wants none.
thread_local std::vector<const Region*> open_regions;

}  // namespace

Regions::~Regions() {
  if (rung_ != 0) arena_.last_rungs().remove(rung_);
  for (const auto& [tag, region] : regions_) finish_prefetch(*region);
}

// A function of its own: the analysis of locks looks at no destructor.
void Regions::finish_prefetch(Region& region) {
  const Lock lock(region.mutex);
  region.finish_prefetch();
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
  auto region = std::make_shared<Region>(tag, PoolId{next_pool_, 0}, arena_, memory_, codec_);
  if (Status status = make(*region); !status.ok()) return status;
  ++next_pool_;
  return regions_.emplace(tag, std::move(region)).first->second;
}

Status Regions::make(Region& region) {
  if (Status status = arena_.retain_pool(region.id()); !status.ok()) return status;
  Status status =
      arena_.make_pool_movable(region.id(), [this](const PageRange& range) { memory_.give_up(range); });
  if (!status.ok()) (void)arena_.release_pool(region.id());
  return status;
}

template <typename Body>
Status Regions::with_settled(const std::string& tag, Body body) {
  Result<RegionPointer> found = find(tag);
  if (!found.ok()) return found.take_status();
  const RegionPointer region = found.value();
  Status refused;
  if (!region->settle(&refused)) return refused;
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
  if (!region.settle(&refused)) return refused;
  const Lock lock(region.mutex, kAdoptLock);
  if (region.is_away()) return region.not_here();
  if (region.opened == 0) {
    const auto is_innermost = [which = &region](CUstream) {
      return !open_regions.empty() && open_regions.back() == which;
    };
    if (Status status = arena_.begin_pool(region.id(), is_innermost, true); !status.ok()) return status;
  }
  ++region.opened;
  region.note_use();
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
  if (Status status = arena_.end_pool(region.id()); !status.ok()) return status;
  return arena_.release_pool(region.id());  // the claim of begin_pool; the region's own stays
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
  if (!region.settle(&refused)) return refused;
  const Lock lock(region.mutex, kAdoptLock);
  if (region.is_away()) return region.not_here();
  if (region.opened > 0) {
    return Status::invalid_state(
        fmt::format("region '{}' is open: end it before it is made the default", region.tag()));
  }
  const auto serves = [which = &region](CUstream) {
    return open_regions.empty() || open_regions.back() == which;
  };
  if (Status status = arena_.begin_pool(region.id(), serves, true, true); !status.ok()) return status;
  region.opened = 1;
  region.note_use();
  return {};
}

Status Regions::close_as_default(Region& region) {
  const Lock lock(region.mutex);
  if (region.opened > 1) {
    return Status::invalid_state(
        fmt::format("region '{}' is open: end it before another is made the default", region.tag()));
  }
  region.opened = 0;
  if (Status status = arena_.end_pool(region.id()); !status.ok()) return status;
  return arena_.release_pool(region.id());
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
  return PoolId{found.value()->id()};
}

// ---- Move

BlockMover::MakeRoom Regions::room_for(const Region& leaving) {
  // What the program has freed of others is no use to anybody.
  return [this, &leaving] { return arena_.give_up_freed() > 0 || write_down_colder(leaving); };
}

bool Regions::write_down_colder(const Region& leaving) {
  std::vector<RegionPointer> colder;
  for (RegionPointer& region : all()) {
    const bool is_mine = region.get() == &leaving || region->is_moved_here();
    if (!is_mine && region->last_use() < leaving.last_use()) colder.push_back(std::move(region));
  }
  std::sort(colder.begin(), colder.end(),
            [](const RegionPointer& a, const RegionPointer& b) { return a->last_use() < b->last_use(); });
  for (const RegionPointer& region : colder) {
    if (!region->mutex.try_lock()) continue;
    const Lock lock(region->mutex, kAdoptLock);
    if (region->is_coming()) continue;
    region->finish_prefetch();
    if (!region->is_away() || region->is_released) continue;
    if (region->write_down() > 0) return true;
  }
  return false;
}

Status Regions::evict(const std::string& tag, SpillTo to) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    return region.evict(to, room_for(region));
  });
}

Status Regions::restore(const std::string& tag) {
  return with_settled(tag,
                      [](Region& region) SPW_REQUIRES(region.mutex) -> Status { return region.restore(); });
}

Status Regions::prefetch(const std::string& tag) {
  Result<RegionPointer> found = find(tag);
  if (!found.ok()) return found.take_status();
  const RegionPointer region = found.value();
  Status refused;
  if (!region->hold(&refused)) return refused;
  const Lock lock(region->mutex, kAdoptLock);
  return region->prefetch();
}

// ---- Policy

Status Regions::pin(const std::string& tag) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    if (region.is_away()) return region.not_here();
    ++region.pins;
    region.note_use();
    return {};
  });
}

Status Regions::unpin(const std::string& tag) {
  return with_settled(tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status {
    if (region.pins == 0) return Status::invalid_state(fmt::format("region '{}' is not pinned", tag));
    --region.pins;
    Region::count_use();
    return {};
  });
}

Status Regions::set_priority(const std::string& tag, int priority) {
  if (priority < 0) return Status::invalid_argument(fmt::format("a priority of {}: use 0 or more", priority));
  Result<RegionPointer> found = find(tag);
  if (!found.ok()) return found.take_status();
  found.value()->set_priority(priority);
  Region::count_use();
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
    region.set_codec(codec);
    return {};
  });
}

EvictionResult Regions::evict_coldest(const std::function<bool(uint64_t)>& wants_more) {
  EvictionResult result;
  struct Choice {
    int priority;
    uint64_t last_use;
    RegionPointer region;
  };
  std::vector<Choice> choices;
  for (const RegionPointer& region : all()) {
    if (region->is_moved_here()) continue;
    if (!region->mutex.try_lock()) {
      result.is_complete = false;
      continue;
    }
    const Lock lock(region->mutex, kAdoptLock);
    if (region->priority() == 0 || !region->may_go()) continue;
    choices.push_back({region->priority(), region->last_use(), region});
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
    if (!region.may_go()) continue;
    const uint64_t held = arena_.pool_held_bytes(region.id());
    if (region.move_out(SpillTo::kHost, room_for(region)).ok()) result.bytes += held;
  }
  return result;
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
    if (Status status = arena_.release_pool(region.id()); !status.ok()) return status;
    region.is_released = true;
    const Lock registry(mutex_);
    regions_.erase(tag);
    return {};
  });
}

// ---- Reports

Result<RegionReport> Regions::look_at(Region& region) {
  if (region.is_moved_here()) {
    region.mutex.assert_held();  // by this thread, which has it in hand and makes room
    return region.report();
  }
  Status refused;
  if (!region.settle(&refused)) return refused;
  const Lock lock(region.mutex, kAdoptLock);
  return region.report();
}

Status Regions::read(const std::string& tag, uint64_t va, uint64_t bytes, std::byte* out) {
  return with_settled(
      tag, [&](Region& region) SPW_REQUIRES(region.mutex) -> Status { return region.read(va, bytes, out); });
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
    if (report.ok()) out.emplace_back(region->tag(), report.value());
  }
  return out;
}

std::optional<RegionUsage> Regions::try_usage() {
  RegionUsage sum;
  for (const RegionPointer& region : all()) {
    if (region->is_moved_here() || !region->mutex.try_lock()) return std::nullopt;
    const Lock lock(region->mutex, kAdoptLock);
    if (region->is_coming()) return std::nullopt;
    if (region->is_away()) sum += region->usage();
  }
  return sum;
}

}  // namespace spillway
