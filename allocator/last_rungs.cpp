#include "allocator/last_rungs.h"

#include <algorithm>

namespace spillway {
namespace {

thread_local int depth = 0;

}  // namespace

bool LastRungs::is_inside() {
  return depth > 0;
}

uint64_t LastRungs::Entry::call(uint64_t bytes) {
  {
    const Lock lock(mutex_);
    if (removed_) return 0;
    ++calls_;
  }
  ++depth;
  uint64_t given = 0;
  try {
    given = give_back_(bytes);
  } catch (...) {
    given = 0;
  }
  --depth;
  const Lock lock(mutex_);
  if (--calls_ == 0) idle_.notify_all();
  return given;
}

LastRungs::Id LastRungs::add(Rung rung, GiveBack give_back) {
  const Lock lock(mutex_);
  auto entry = std::make_shared<Entry>(next_id_++, rung, std::move(give_back));
  const auto after = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const std::shared_ptr<Entry>& other) { return other->rung > rung; });
  return (*entries_.insert(after, std::move(entry)))->id;
}

void LastRungs::remove(Id id) {
  std::shared_ptr<Entry> entry;
  {
    const Lock lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const std::shared_ptr<Entry>& other) { return other->id == id; });
    if (found == entries_.end()) return;
    entry = std::move(*found);
    entries_.erase(found);
  }
  const Lock lock(entry->mutex_);
  entry->removed_ = true;
  // Inside a call, waiting for its end would be waiting for oneself.
  if (!is_inside())
    entry->idle_.wait(entry->mutex_, [&]() SPW_REQUIRES(entry->mutex_) { return entry->calls_ == 0; });
}

void LastRungs::set_placement(std::shared_ptr<const HostPlacement> placement) {
  const Lock lock(mutex_);
  placement_ = std::move(placement);
}

std::vector<std::shared_ptr<LastRungs::Entry>> LastRungs::list() const {
  const Lock lock(mutex_);
  return entries_;
}

std::shared_ptr<const HostPlacement> LastRungs::placement() const {
  const Lock lock(mutex_);
  return placement_;
}

}  // namespace spillway
