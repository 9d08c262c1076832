#include "sim/cuda/scheduler.h"

#include <algorithm>
#include <chrono>

#include "sim/cuda/work.h"

namespace spillway::sim {

void WorkDeleter::operator()(Work* work) const {
  delete work;
}

void Scheduler::reset(Completion completion, uint64_t seed, IsReady is_ready, Run run) {
  completion_ = completion;
  is_ready_ = is_ready;
  run_ = run;
  random_.seed(seed);
  timelines_.clear();
  closed_.clear();
  host_.clear();
  host_version_ = 1;
}

TimelineId Scheduler::open() {
  // A timeline is used again only when the host knows that all of it is over: else the new stream would
  // inherit an order after work of the old one that no program asked for, and hide a race.
  for (auto& id : closed_) {
    const Timeline& timeline = timelines_[id];
    if (timeline.completed < timeline.enqueued || !host_.reached(id, timeline.enqueued)) continue;
    const TimelineId found = id;
    id = closed_.back();
    closed_.pop_back();
    return found;
  }
  timelines_.emplace_back();
  return static_cast<TimelineId>(timelines_.size() - 1);
}

void Scheduler::close(TimelineId id) {
  closed_.push_back(id);
}

uint64_t Scheduler::enqueue(TimelineId id, WorkPtr work, Lock& lock) {
  Timeline& timeline = timelines_[id];
  if (timeline.host_version != host_version_) {
    timeline.clock.join(host_);
    timeline.host_version = host_version_;
  }
  const uint64_t position = ++timeline.enqueued;
  timeline.clock.raise(id, position);
  if (work != nullptr) timeline.pending.push_back({position, kNoTimeline, 0, std::move(work), false});
  if (completion_ == Completion::kInstant) advance(id, position, lock);
  return position;
}

void Scheduler::order_after(TimelineId id, TimelineId other, uint64_t position, const VectorClock& clock) {
  Timeline& timeline = timelines_[id];
  if (id == other || timeline.clock.reached(other, position)) return;
  timeline.clock.join(clock);
  if (timelines_[other].completed >= position) return;
  timeline.pending.push_back({timeline.enqueued + 1, other, position, nullptr, false});
}

// For each timeline, the position that must be complete for the given one to be.
std::vector<uint64_t> Scheduler::closure(TimelineId id, uint64_t position) const {
  std::vector<uint64_t> until(timelines_.size(), 0);
  std::vector<size_t> scanned(timelines_.size(), 0);
  until[id] = position;
  std::vector<TimelineId> changed{id};
  while (!changed.empty()) {
    const TimelineId at = changed.back();
    changed.pop_back();
    const auto& pending = timelines_[at].pending;
    for (size_t& next = scanned[at]; next < pending.size() && pending[next].position <= until[at]; ++next) {
      const Item& item = pending[next];
      if (item.after == kNoTimeline || until[item.after] >= item.after_position) continue;
      until[item.after] = item.after_position;
      changed.push_back(item.after);
    }
  }
  return until;
}

bool Scheduler::is_held_up(const Item& item) {
  if (item.running) {
    met_running_ = true;
    return true;
  }
  if (item.work == nullptr || is_ready_(*item.work)) return false;
  if (item.work->kind == Work::Kind::kExternal) met_external_ = true;
  return true;
}

// Moves the timeline one item on towards `until`; false if it must wait for another timeline, a running
// function or a word of memory.
bool Scheduler::step(TimelineId id, uint64_t until, Lock& lock) {
  Timeline& timeline = timelines_[id];
  if (timeline.pending.empty() || timeline.pending.front().position > until) {
    timeline.completed = std::max(timeline.completed, until);
    return true;
  }
  Item& item = timeline.pending.front();
  // Positions before the item have nothing left to do, whatever holds the item up.
  const bool moved = timeline.completed < item.position - 1;
  timeline.completed = std::max(timeline.completed, item.position - 1);
  if (is_held_up(item)) return moved;
  if (item.after != kNoTimeline) {
    if (timelines_[item.after].completed < item.after_position) return moved;
    timeline.pending.pop_front();
    return true;
  }
  item.running = true;
  run_(*item.work, lock);
  timeline.completed = std::max(timeline.completed, item.position);
  timeline.pending.pop_front();
  ran_.notify_all();
  return true;
}

bool Scheduler::advance(TimelineId id, uint64_t position, Lock& lock) {
  Timeline& timeline = timelines_[id];
  if (timeline.completed >= position) return true;
  if (timeline.pending.empty() || timeline.pending.front().position > position) {
    timeline.completed = position;
    return true;
  }
  const std::vector<uint64_t> until = closure(id, position);
  std::vector<TimelineId> active;
  for (TimelineId at = 0; at < until.size(); ++at) {
    if (until[at] > timelines_[at].completed) active.push_back(at);
  }
  while (!active.empty()) {
    const size_t first = draw(active.size());
    bool moved = false;
    met_external_ = met_running_ = false;
    for (size_t i = 0; i < active.size() && !moved; ++i) {
      const size_t chosen = (first + i) % active.size();
      const TimelineId at = active[chosen];
      if (timelines_[at].completed < until[at] && !step(at, until[at], lock)) continue;
      moved = true;
      if (timelines_[at].completed >= until[at]) {
        active[chosen] = active.back();
        active.pop_back();
      }
    }
    if (!moved) return false;
  }
  return true;
}

void Scheduler::advance_all(Lock& lock) {
  for (TimelineId id = 0; id < timelines_.size(); ++id) {
    if (waits(id)) advance(id, enqueued(id), lock);
  }
}

void Scheduler::force(TimelineId id, uint64_t position, Lock& lock) {
  // Dependencies have no cycles: what holds everything up is a host function that another thread runs, work
  // of another library, or a word of memory, which nobody announces.
  constexpr std::chrono::milliseconds kLook{1};
  for (;;) {
    const uint64_t looked = hold_.look == nullptr ? 0 : hold_.look();
    if (advance(id, position, lock)) return;
    if (hold_.wait == nullptr || !met_external_ || met_running_) {
      ran_.wait_for(lock, kLook);
      continue;
    }
    lock.unlock();
    hold_.wait(looked);
    lock.lock();
  }
}

}  // namespace spillway::sim
