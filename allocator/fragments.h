// Index of the free space inside the partly used pages of one heap, by kind (a page's prefix, its suffix, the
// largest piece in its middle) and size: bins of one line up to 64 KiB, of a sixteenth of the size above, and
// a bitmap of the bins in use. Insert and remove are O(1); a search looks at no more than kMostTries pages of
// each bin, and at all of the first one where it finds nothing else. Guarded by the heap's lock.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "allocator/page.h"

namespace spillway {

// A piece of free space at the end, the beginning or in the middle of a page; no page, no quanta.
struct PageFragment {
  PageId page = kNoPage;
  uint32_t quanta = 0;
};

// The two largest of some fragments, each of another page.
struct LargestTwo {
  PageFragment first;
  PageFragment second;

  void add(const PageFragment& fragment) {
    if (fragment.quanta > first.quanta) {
      second = first;
      first = fragment;
    } else if (fragment.quanta > second.quanta) {
      second = fragment;
    }
  }
};

// The end of one page and the beginning of another, either of which may be none.
struct PageEnds {
  PageFragment head;
  PageFragment tail;
  uint32_t quanta() const { return head.quanta + tail.quanta; }
};

// Returns the end and the beginning with the most quanta together.
inline PageEnds largest_ends(const LargestTwo& suffixes, const LargestTwo& prefixes) {
  if (suffixes.first.page != prefixes.first.page) return {suffixes.first, prefixes.first};
  const PageEnds other_tail{suffixes.first, prefixes.second};
  const PageEnds other_head{suffixes.second, prefixes.first};
  return other_tail.quanta() >= other_head.quanta() ? other_tail : other_head;
}

class FragmentIndex {
 public:
  explicit FragmentIndex(Page* pages) : pages_(pages) {}

  // Makes the index agree with page.free_quanta; a free or full page leaves the index.
  void update(PageId page);
  void remove(PageId page);

  // The page with about the smallest fragment of this kind with at least `quanta` (1 to kPageQuanta); kNoPage
  // if none.
  PageId find(Fragment kind, uint32_t quanta) const;
  // Calls visit(page) for pages with a fragment of at least `quanta`, smallest bins first, while it answers
  // true.
  template <typename Visit>
  void for_each(Fragment kind, uint32_t quanta, Visit visit) const {
    for (uint32_t bin = next_bin(kind, bin_of(quanta)); bin < kBins; bin = next_bin(kind, bin + 1)) {
      for (PageId link = heads_[kind][bin]; link != 0; link = pages_[link - 1].links[kind].next) {
        if (size_of(kind, link - 1) >= quanta && !visit(link - 1)) return;
      }
    }
  }

  // Calls visit(page) for pages with a fragment of this kind, largest bins first, while it answers true.
  template <typename Visit>
  void for_each_from_largest(Fragment kind, Visit visit) const {
    for (uint32_t word = kBins / 64; word-- > 0;) {
      for (uint64_t bits = used_bins_[kind][word]; bits != 0;) {
        const auto bit = 63 - static_cast<uint32_t>(std::countl_zero(bits));
        bits &= ~(uint64_t{1} << bit);
        for (PageId link = heads_[kind][word * 64 + bit]; link != 0;
             link = pages_[link - 1].links[kind].next) {
          if (!visit(link - 1)) return;
        }
      }
    }
  }

  // The two largest fragments of this kind among those of pages for which `counts(page)` answers true. Looks
  // at all that the fullest bins hold.
  template <typename Counts>
  LargestTwo largest_two(Fragment kind, Counts counts) const {
    LargestTwo found;
    uint32_t bin = 0;  // of what was visited last
    for_each_from_largest(kind, [&](PageId page) {
      const uint32_t of_page = pages_[page].links[kind].bin;
      if (of_page != bin && found.second.page != kNoPage) return false;
      bin = of_page;
      if (counts(page)) found.add({page, size_of(kind, page)});
      return true;
    });
    return found;
  }

  uint32_t size_of(Fragment kind, PageId page) const;
  // Returns how many pages have a fragment of this kind.
  uint32_t count(Fragment kind) const { return counts_[kind]; }

 private:
  static constexpr uint32_t kExactQuanta = 128;
  static constexpr uint32_t kBins = 256;
  static constexpr int kMostTries = 16;

  static constexpr uint32_t bin_of(uint32_t quanta) {
    if (quanta < kExactQuanta) return quanta;
    const auto power = static_cast<uint32_t>(std::bit_width(quanta)) - 1;
    return kExactQuanta + (power - 7) * 16 + ((quanta >> (power - 4)) & 15);
  }

  uint32_t next_bin(Fragment kind, uint32_t from) const;
  void link(Fragment kind, PageId page, uint32_t quanta);
  void unlink(Fragment kind, PageId page);

  Page* pages_;
  std::array<std::array<PageId, kBins>, kFragmentKinds> heads_{};
  std::array<std::array<uint64_t, kBins / 64>, kFragmentKinds> used_bins_{};
  std::array<uint32_t, kFragmentKinds> counts_{};
};

}  // namespace spillway
