#include "allocator/journal.h"

#include <algorithm>

namespace spillway {

Place* Journal::search(uint32_t key) {
  found_ = kNever;
  if (seen_.empty()) return nullptr;
  uint32_t best = 0;
  if (holds(next_) && at(next_).key == key) {
    if (followed_ >= kTrusted) return nullptr;
    found_ = next_;
    best = agreement(next_);
  }
  uint32_t comparisons = best;
  uint64_t position = seen_[slot(key, previous_, before_previous_)];
  for (int tries = 0; tries < kMostCandidates && comparisons < kMostComparisons && holds(position); ++tries) {
    const Entry& entry = at(position);
    if (entry.key == key) {
      const uint32_t agreed = agreement(position);
      comparisons += agreed;
      if (found_ == kNever || agreed > best) {
        best = agreed;
        found_ = position;
      }
      if (agreed == kMostAgreed) break;
    }
    if (entry.back == 0 || entry.back > position) break;
    position -= entry.back;
  }
  found_agreed_ = best;
  if (found_ == kNever) return nullptr;
  const Entry& found = at(found_);
  return found.place->generation == found.generation ? found.place : nullptr;
}

void Journal::grow() {
  const size_t bigger = std::max<size_t>(kFewestEntries, 2 * size_);
  std::vector<Entry> entries(bigger);
  std::vector<uint64_t> seen(bigger, kNever);
  for (uint64_t position = first_; position < end_; ++position) {
    entries[position & (bigger - 1)] = at(position);
  }
  entries_.swap(entries);
  seen_.swap(seen);
  size_ = bigger;
  uint32_t a = 0;
  uint32_t b = 0;
  for (uint64_t position = first_; position < end_; ++position) {
    Entry& entry = entries_[position & (bigger - 1)];
    uint64_t& last = seen_[slot(entry.key, b, a)];
    entry.back = last == kNever ? 0 : static_cast<uint32_t>(position - last);
    last = position;
    a = b;
    b = entry.key;
  }
}

}  // namespace spillway
