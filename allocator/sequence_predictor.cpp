#include "allocator/sequence_predictor.h"

#include <algorithm>
#include <utility>

namespace spillway {
namespace {

// A ring of more entries is given room for all that there may be: it takes memory as they come.
constexpr size_t kMostCopied = 1u << 13;

}  // namespace

CachedRange* SequencePredictor::search(uint32_t key, const SequencePredictor* leader) {
  if (leader == this) leader = nullptr;
  const Searched wanted{now(), key, leader, leader == nullptr ? 0 : leader->now()};
  if (wanted != searched_) {
    searched_ = wanted;
    ++searches_;
    look_for(key, leader);
  }
  if (found_ == kNever) return nullptr;
  const Entry& found = at(found_);
  return found.range->generation == found.generation ? found.range : nullptr;
}

void SequencePredictor::look_for(uint32_t key, const SequencePredictor* leader) {
  found_ = kNever;
  if (seen_.empty()) return;
  if (leader != nullptr) found_ = search_by_time(key, *leader);
  if (found_ != kNever) {
    found_agreed_ = kTrusted;
    return;
  }
  if (holds(then()) && at(then()).key == key) {
    if (followed_ >= kTrusted && leader == nullptr) return;
    found_ = then();
  }
  Agreement best = found_ == kNever ? Agreement() : agreement(found_);
  uint32_t comparisons = best.keys;
  const uint32_t seen = seen_[slot(key, previous_, before_previous_)];
  uint64_t position = seen == kUnseen ? kNever : now() - (mark_of(now()) - seen);
  for (int tries = 0; tries < kMostCandidates && comparisons < kMostComparisons && holds(position); ++tries) {
    const Entry& entry = at(position);
    if (entry.key == key) {
      const Agreement agreed = agreement(position);
      comparisons += agreed.keys;
      if (found_ == kNever || agreed.rank() > best.rank()) {
        best = agreed;
        found_ = position;
      }
      if (agreed.keys == kMostAgreed) break;
    }
    if (entry.back == 0 || entry.back > position) break;
    position -= entry.back;
  }
  found_agreed_ = best.keys;
}

uint64_t SequencePredictor::mark_expected() {
  const uint64_t next = then();
  if (!holds(next)) return kNever;
  // The one that names the request at hand is not to come. The nearest mark of a range stays.
  for (uint64_t position = std::min(next + kHorizon, now() - 1); position > next; --position) {
    at(position).range->expected_at = position;
  }
  return next + 1;
}

uint64_t SequencePredictor::search_by_time(uint32_t key, const SequencePredictor& leader) const {
  if (leader.then() == kNever) return kNever;
  // Times are compared by their difference, which survives the wrap of 32 bits.
  const auto wanted = static_cast<uint32_t>(leader.then());
  const auto distance = [&](uint64_t position) { return static_cast<int32_t>(at(position).when - wanted); };
  uint64_t low = first_;
  for (uint64_t high = now(); low < high;) {
    const uint64_t middle = low + (high - low) / 2;
    if (distance(middle) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  // Of several at one time, the wanted one comes after as many as were noted since the leader moved.
  const auto moved = static_cast<uint32_t>(leader.now());
  uint64_t since = 0;
  while (since < kMostNear && now() - since > first_ && at(now() - since - 1).when == moved) ++since;
  uint64_t best = kNever;
  for (uint64_t position = low + since; position < now() && position < low + since + kMostNear; ++position) {
    if (at(position).key != key) continue;
    best = position;
    break;
  }
  for (uint64_t position = low + since; position > first_ && position + kMostNear > low + since; --position) {
    const uint64_t before = position - 1;
    if (before >= now() || at(before).key != key) continue;
    if (best == kNever || -distance(before) < distance(best)) best = before;
    break;
  }
  return best;
}

bool SequencePredictor::grow() noexcept {
  const size_t bigger = std::max<size_t>(kFewestEntries, 2 * size_);
  ZeroedArray<uint32_t> seen(bigger);
  if (seen.empty()) return false;
  // While the ring has not gone around, every entry stays where it is in a bigger one.
  if (entries_.size() < bigger || first_ > 0) {
    ZeroedArray<Entry> entries(bigger <= kMostCopied ? bigger : kMostEntries);
    if (entries.empty()) return false;
    for (uint64_t position = first_; position < now(); ++position)
      entries[position & (bigger - 1)] = at(position);
    entries_ = std::move(entries);
  }
  seen_ = std::move(seen);
  size_ = bigger;
  uint32_t a = 0;
  uint32_t b = 0;
  for (uint64_t position = first_; position < now(); ++position) {
    Entry& entry = entries_[position & (bigger - 1)];
    uint32_t& last = seen_[slot(entry.key, b, a)];
    const uint32_t mark = mark_of(position);
    entry.back = last == kUnseen ? 0 : mark - last;
    last = mark;
    a = b;
    b = entry.key;
  }
  return true;
}

}  // namespace spillway
