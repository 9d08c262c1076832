#include "allocator/journal.h"

#include <algorithm>

namespace spillway {

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
