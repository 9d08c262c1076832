// A cached range: one virtual range that a large block or a slab has occupied, with the physical bytes under
// it. Ranges outlive their blocks: a freed range is remembered and taken again when its bytes are free,
// without any search or driver call.
//
// The bytes are, in address order: `head`, some quanta of one page; `runs`, whole pages; `tail`, the first
// quanta of one page. A range inside a single page has a head only. Pages are named by id, so a range is
// checked and taken by a few bitmap words and at most two interval sets, however large it is.
//
// Owned by its heap, guarded by the heap's lock. Memory of ranges is recycled, never returned, so a stale
// pointer (from the address map, the sequence) is safe to read and is told apart by `generation`.
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

// What searches through many ranges read lies in the first 64 bytes.
struct alignas(64) CachedRange {
  uint64_t va = 0;
  uint32_t quanta = 0;
  uint32_t generation = 0;       // counts reuses of this object for another range
  uint32_t view_generation = 0;  // of `view` when the range was made in it

  BlockState state = BlockState::kFree;
  bool has_stream_uses = false;
  bool is_indexed = false;   // by its size, in the cache of its heap
  bool is_saved = false;     // named by a saved state of its heap's pool: not recycled before the release
  View* view = nullptr;      // the aliasing view the range lies in; null for the home view
  uint64_t last_use = 0;     // position in its heap's sequence
  uint64_t expected_at = 0;  // position in the sequence at which it was last expected again, see
                             // SequencePredictor::mark_expected
  PageId head_page = kNoPage;
  PageId tail_page = kNoPage;
  uint16_t head_begin = 0;  // quanta [head_begin, head_end) of head_page
  uint16_t head_end = 0;
  uint16_t tail_end = 0;  // quanta [0, tail_end) of tail_page

  RunList runs;
  Heap* heap = nullptr;
  Slab* slab = nullptr;                 // set while the block is a slab
  uint32_t slab_number = ~uint32_t{0};  // among the ranges of its heap that have been slabs
  uint32_t stack = 0;                   // where its block was allocated, see Arena::note_stack
  uint64_t requested_bytes = 0;

  uint64_t bytes() const { return uint64_t{quanta} * kQuantumBytes; }
};

// Calls visit(page, begin, end) for the quanta of every page that the range covers.
template <typename Visit>
void for_each_piece(const CachedRange& range, Visit visit) {
  if (range.head_page != kNoPage)
    visit(range.head_page, uint32_t{range.head_begin}, uint32_t{range.head_end});
  for (const PageRun& run : range.runs) {
    for (uint32_t i = 0; i < run.count; ++i) visit(run.first + i, 0u, kPageQuanta);
  }
  if (range.tail_page != kNoPage) visit(range.tail_page, 0u, uint32_t{range.tail_end});
}

// The pages that the range lies on, in the order of its addresses.
inline std::vector<PageId> pages_of(const CachedRange& range) {
  std::vector<PageId> pages;
  for_each_piece(range, [&](PageId page, uint32_t, uint32_t) { pages.push_back(page); });
  return pages;
}

// Tells whether a byte belongs to both.
inline bool share_a_quantum(const CachedRange& a, const CachedRange& b) {
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
