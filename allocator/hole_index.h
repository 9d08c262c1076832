// The free memory of a heap's home view by size and by address, for programs that do not repeat themselves:
// what a search costs does not grow with the number of holes.
//
// A *hole* is what is free in a row in the home view across or up to the boundary of a page: free pages, what
// is free of the partly used page before them, and of the one behind. A *piece* is what is free in a row
// inside one partly used page.
//
// The index learns of changes when it is asked: while it is built, the runs of pages that come free or are
// taken are noted, and it is told which pages had parts of them taken or given back. Programs that repeat
// themselves never ask. Guarded by the heap's lock.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/bitmap.h"
#include "allocator/cached_range.h"
#include "allocator/max_tree.h"
#include "allocator/page.h"

namespace spillway {

class HoleIndex {
 public:
  // Pieces of up to so many quanta are found by address where blocks begin and end anywhere: see
  // FreePages::find_close_fit.
  static constexpr uint32_t kLowQuanta = kPageQuanta / 16;

  // Indexes those of the heap `owner`, whose free pages are `free`. Without `joins_ends`, no block begins or
  // ends in a page that others lie in, unless it is smaller than a page: holes are free pages alone.
  HoleIndex(const Page* pages, const Bitmap& free, const Heap& owner, bool joins_ends)
      : pages_(pages),
        free_(free),
        owner_(owner),
        joins_ends_(joins_ends),
        most_piece_(joins_ends ? kLowQuanta : kPageQuanta - 1) {}

  bool is_built() const { return is_built_; }
  // Looks at every page.
  void build() noexcept;
  // Gives its memory back, until it is built again.
  void forget();
  // The bits of these pages changed, all alike. For what is built.
  void note(PageId first, uint32_t count) {
    if (noted_count_ == noted_.size()) {
      is_stale_ = true;
    } else {
      noted_[noted_count_++] = {first, count};
    }
  }
  // Brings what is built up to date. `touched`: the pages of which parts were taken or given back since the
  // last time. As after build(), nothing is built any more where host memory has run out.
  void update(const std::vector<PageId>& touched) noexcept;

  // Says where a hole, or a piece that touches no boundary, begins.
  struct Position {
    PageId page = kNoPage;
    uint32_t quantum = 0;
  };
  // About the smallest of those of at least so many quanta; of some that are as large the one that came last.
  std::optional<Position> find_closest(uint32_t quanta) const;
  // Returns the most that find_piece() may be asked for.
  uint32_t most_piece() const { return most_piece_; }
  // The lowest partly used page with a piece of at least so many quanta, 1 or more; kNoPage without one.
  PageId find_piece(uint32_t quanta) const {
    const uint32_t page = pieces_.find_lowest(static_cast<uint16_t>(quanta));
    return page == MaxTree::kNone ? kNoPage : page;
  }

  uint64_t metadata_bytes() const {
    return links_.capacity() * sizeof(Link) + ends_.capacity() * sizeof(Ends) +
           full_words_.capacity() * sizeof(uint64_t) + noted_.capacity() * sizeof(PageRun) +
           boundaries_.capacity() * sizeof(PageId) + pieces_.metadata_bytes();
  }

 private:
  // Bins of a sixteenth of their size; a search looks at so many entries of each.
  static constexpr uint32_t kBins = 32 * 16;
  static constexpr uint32_t kMostTries = 16;
  // Where more has changed, or a quarter of the pages, every page is looked at.
  static constexpr size_t kFewestNoted = 512;

  // A hole, or the largest piece of a page that touches no boundary, in the list of its bin. The hole goes by
  // its first free page, or else by the page whose beginning its boundary is.
  struct Link {
    uint32_t next = 0;  // an index of links_ + 1, 0 for none
    uint32_t previous = 0;
    uint32_t quanta = 0;  // 0 where there is none
  };
  static constexpr uint32_t hole_at(PageId page) { return 2 * page; }
  static constexpr uint32_t piece_of(PageId page) { return 2 * page + 1; }
  // Holds what is free at both ends of a partly used page, as of last time; of any other nothing.
  struct Ends {
    uint16_t prefix = 0;
    uint16_t suffix = 0;
    bool operator==(const Ends&) const = default;
  };

  static constexpr uint32_t bin_of(uint32_t quanta) {
    if (quanta < 16) return quanta;
    const auto power = static_cast<uint32_t>(std::bit_width(quanta)) - 1;
    return power * 16 + ((quanta >> (power - 4)) & 15);
  }

  // Both need `page` to be free: the first of the free pages in a row that it is one of, and the one behind
  // the last. They pass over whole words of the bitmap, which has long runs where little is in use.
  PageId run_begin(PageId page) const;
  PageId run_end(PageId page) const;
  void note_words(PageId first, uint32_t count);

  bool is_partly_used(PageId page) const;
  // Of the page before this one.
  uint32_t free_end_before(PageId page) const { return page == 0 ? 0 : ends_[page - 1].suffix; }
  void grow();
  // Something changed on one of the sides of the boundary before `page`.
  void note_boundary(PageId page);
  void refresh_page(PageId page);
  // Lists the hole at the boundary before `page` anew.
  void refresh(PageId page);
  void measure(PageId page);  // the hole that goes by this page, if there is one
  void set(uint32_t link, uint32_t quanta);
  uint32_t next_bin(uint32_t from) const;
  // As Link::next, the smallest entry of the bin with at least so many quanta, of so many; 0 without one.
  uint32_t smallest_of(uint32_t bin, uint32_t quanta, uint32_t most_tries) const;

  const Page* pages_;
  const Bitmap& free_;
  const Heap& owner_;
  const bool joins_ends_;
  const uint32_t most_piece_;
  bool is_built_ = false;
  bool is_stale_ = false;  // more was noted than is kept
  uint32_t noted_count_ = 0;
  std::vector<PageRun> noted_;
  std::vector<PageId> boundaries_;  // to be looked at
  std::vector<Link> links_;
  std::vector<Ends> ends_;
  std::vector<uint64_t> full_words_;  // a bit for each word of the bitmap: set where all its pages are free
  MaxTree pieces_;                    // of each page the largest, or most_piece_ where that is less
  std::array<uint32_t, kBins> heads_{};  // as Link::next
  std::array<uint64_t, kBins / 64> used_bins_{};
};

}  // namespace spillway
