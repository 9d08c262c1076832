// A place: one virtual range that a large block or a slab has occupied, with the physical bytes under it.
// Places outlive their blocks: a freed place is remembered and taken again when its bytes are free, without
// any search or driver call.
//
// The bytes are, in address order: `head`, some lines of one page; `runs`, whole pages; `tail`, the first
// lines of one page. A place inside a single page has a head only. Pages are named by id, so a place is
// checked and taken by a few bitmap words and at most two interval sets, however large it is.
//
// Owned by its heap, guarded by the heap's lock. Memory of places is recycled, never returned, so a stale
// pointer (from the address map, the journal) is safe to read and is told apart by `generation`.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/units.h"

namespace spillway {

class Heap;
struct Slab;
struct View;

struct PageRun {
  PageId first;
  uint32_t count;
};

// A list of page runs that is written once. One run, by far the commonest, is kept in place.
class RunList {
 public:
  RunList() = default;
  explicit RunList(const std::vector<PageRun>& runs) { assign(runs); }
  explicit RunList(const PageRun& run) : one_(run), count_(1) {}

  void assign(const std::vector<PageRun>& runs) {
    count_ = static_cast<uint32_t>(runs.size());
    more_.reset();
    if (count_ == 1) one_ = runs[0];
    if (count_ > 1) {
      more_ = std::make_unique<PageRun[]>(count_);
      for (uint32_t i = 0; i < count_; ++i) more_[i] = runs[i];
    }
  }
  const PageRun* begin() const { return count_ > 1 ? more_.get() : &one_; }
  const PageRun* end() const { return begin() + count_; }
  uint32_t pages() const {
    uint32_t total = 0;
    for (const PageRun& run : *this) total += run.count;
    return total;
  }

 private:
  PageRun one_{};
  uint32_t count_ = 0;
  std::unique_ptr<PageRun[]> more_;
};

enum class BlockState : uint8_t { kFree, kLive, kPendingFree };

struct Place {
  uint64_t va = 0;
  uint32_t lines = 0;
  uint32_t generation = 0;       // counts reuses of this object for another place
  uint32_t view_generation = 0;  // of `view` when the place was made in it

  BlockState state = BlockState::kFree;
  bool has_stream_uses = false;
  bool is_saved = false;    // named by a saved state of its heap's pool: not recycled before the release
  uint16_t head_begin = 0;  // lines [head_begin, head_end) of head_page
  uint16_t head_end = 0;
  uint16_t tail_end = 0;  // lines [0, tail_end) of tail_page
  PageId head_page = kNoPage;
  PageId tail_page = kNoPage;
  RunList runs;

  Heap* heap = nullptr;
  View* view = nullptr;                 // the aliasing view the range lies in; null for the home view
  Slab* slab = nullptr;                 // set while the block is a slab
  uint32_t slab_number = ~uint32_t{0};  // among the places of its heap that have been slabs
  uint64_t requested_bytes = 0;
  uint64_t last_use = 0;  // position in its heap's journal
  uint64_t expected_at =
      0;  // position in the journal at which it was last expected again, see Journal::mark_expected
  Place* newer_same_size = nullptr;
  Place* older_same_size = nullptr;

  uint64_t bytes() const { return uint64_t{lines} * kLineBytes; }
};

// Calls visit(page, begin, end) for the lines of every page that the place covers.
template <typename Visit>
void for_each_piece(const Place& place, Visit visit) {
  if (place.head_page != kNoPage)
    visit(place.head_page, uint32_t{place.head_begin}, uint32_t{place.head_end});
  for (const PageRun& run : place.runs) {
    for (uint32_t i = 0; i < run.count; ++i) visit(run.first + i, 0u, kPageLines);
  }
  if (place.tail_page != kNoPage) visit(place.tail_page, 0u, uint32_t{place.tail_end});
}

// The pages that the place lies on, in the order of its addresses.
inline std::vector<PageId> pages_of(const Place& place) {
  std::vector<PageId> pages;
  for_each_piece(place, [&](PageId page, uint32_t, uint32_t) { pages.push_back(page); });
  return pages;
}

// Whether a byte belongs to both.
inline bool share_a_line(const Place& a, const Place& b) {
  bool shared = false;
  for_each_piece(a, [&](PageId page, uint32_t begin, uint32_t end) {
    shared = shared || (page == b.head_page && begin < b.head_end && b.head_begin < end) ||
             (page == b.tail_page && begin < b.tail_end) ||
             std::any_of(b.runs.begin(), b.runs.end(), [&](const PageRun& run) {
               return page >= run.first && page < run.first + run.count;
             });
  });
  return shared;
}

}  // namespace spillway
