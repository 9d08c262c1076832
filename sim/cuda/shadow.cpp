#include "sim/cuda/shadow.h"

#include <algorithm>
#include <iterator>

namespace spillway::sim {

void Shadow::split_at(uint64_t offset) {
  auto after = spans_.upper_bound(offset);
  if (after == spans_.begin()) return;
  auto& [start, span] = *std::prev(after);
  if (start == offset || span.end <= offset) return;
  Span tail = span;
  span.end = offset;
  spans_.emplace_hint(after, offset, std::move(tail));
}

void Shadow::supersede(Span& span, const Access& earlier, const Access& by, const VectorClock& host) {
  if (earlier.timeline == kNoTimeline || earlier.view == by.view) return;
  std::erase_if(span.behind, [&](const Access& old) {
    return host.reached(old.timeline, old.position) ||
           (old.timeline == earlier.timeline && old.view == earlier.view && old.position <= earlier.position);
  });
  if (!host.reached(earlier.timeline, earlier.position)) span.behind.push_back(earlier);
}

Conflict Shadow::access(uint64_t offset, uint64_t bytes, bool write, const Access& by,
                        const VectorClock& clock, const VectorClock& host) {
  const uint64_t end = offset + bytes;
  split_at(offset);
  split_at(end);
  Conflict conflict;
  const auto check = [&](const Access& earlier, bool earlier_wrote) {
    if (conflict.kind != Conflict::Kind::kNone || earlier.timeline == kNoTimeline) return;
    if (earlier.same_grid(by)) {
      if (earlier.view != by.view) conflict = {Conflict::Kind::kAlias, earlier_wrote, earlier};
    } else if (!clock.reached(earlier.timeline, earlier.position)) {
      conflict = {Conflict::Kind::kRace, earlier_wrote, earlier};
    }
  };

  uint64_t at = offset;
  auto it = spans_.lower_bound(offset);
  while (at < end) {
    if (it == spans_.end() || it->first > at) {
      const uint64_t gap_end = it == spans_.end() ? end : std::min(end, it->first);
      it = spans_.emplace_hint(it, at, Span{gap_end, {}, {}, {}});
    }
    Span& span = it->second;
    check(span.write, true);
    if (write) {
      for (const Access& read : span.reads) check(read, false);
      for (const Access& read : span.reads) supersede(span, read, by, host);
      supersede(span, span.write, by, host);
      span.write = by;
      span.reads.clear();
    } else {
      // Reads that came before this one are implied by it.
      std::erase_if(span.reads, [&](const Access& read) {
        if (read.same(by)) return true;
        if (read.same_grid(by) || !clock.reached(read.timeline, read.position)) return false;
        supersede(span, read, by, host);
        return true;
      });
      span.reads.push_back(by);
    }
    at = span.end;
    ++it;
  }
  merge(spans_.lower_bound(offset), end);
  return conflict;
}

// Joins neighbouring spans of equal history from `first` to past `end`, so that histories do not fragment for
// ever.
void Shadow::merge(Spans::iterator first, uint64_t end) {
  if (first != spans_.begin()) --first;
  while (first != spans_.end() && first->first <= end) {
    const auto next = std::next(first);
    if (next == spans_.end()) return;
    const auto same = [](const std::vector<Access>& a, const std::vector<Access>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                        [](const Access& x, const Access& y) { return x.same(y); });
    };
    if (first->second.end == next->first && first->second.write.same(next->second.write) &&
        same(first->second.reads, next->second.reads) && same(first->second.behind, next->second.behind)) {
      first->second.end = next->second.end;
      spans_.erase(next);
    } else {
      first = next;
    }
  }
}

Access Shadow::unfinished(uint64_t view, uint64_t offset, uint64_t bytes, const VectorClock& clock,
                          bool any_view) const {
  auto it = spans_.upper_bound(offset);
  if (it != spans_.begin()) --it;
  const auto pending = [&](const Access& access) {
    return access.timeline != kNoTimeline && (any_view || access.view == view) &&
           !clock.reached(access.timeline, access.position);
  };
  for (; it != spans_.end() && it->first < offset + bytes; ++it) {
    if (it->second.end <= offset) continue;
    if (pending(it->second.write)) return it->second.write;
    for (const Access& read : it->second.reads) {
      if (pending(read)) return read;
    }
    for (const Access& earlier : it->second.behind) {
      if (pending(earlier)) return earlier;
    }
  }
  return {};
}

Access Shadow::unfinished_write(uint64_t offset, uint64_t bytes, const VectorClock& clock) const {
  auto it = spans_.upper_bound(offset);
  if (it != spans_.begin()) --it;
  for (; it != spans_.end() && it->first < offset + bytes; ++it) {
    const Access& write = it->second.write;
    if (it->second.end <= offset || write.timeline == kNoTimeline) continue;
    if (!clock.reached(write.timeline, write.position)) return write;
  }
  return {};
}

}  // namespace spillway::sim
