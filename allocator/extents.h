// Extents: handles of several pages. The driver asks as much for a handle of 32 MiB as for one of 2 MiB (to
// create, map, unmap and release it), so what is first touched while memory is plentiful is taken in extents.
//
// An extent is a *unit*: its pages are mapped at home in a row, shown by a view in a row and all of them, and
// released, moved, lent and shown to other processes together; all have one owner. In place each is used like
// any other. A page that is a handle of its own is a unit too. Which pages are an extent changes only where
// they are created and released, under the arena's lock, while no heap has them.
//
// What is free of an extent of which another part is used serves nobody but its heap, where it is, or at the
// two ends of a view: what is free at its end where the view begins, and at its beginning where it ends.
// Therefore the bound on when extents are made (PageStore::has_extent_room; docs/decisions/extents.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/bitmap.h"
#include "allocator/cached_range.h"
#include "allocator/fragments.h"
#include "allocator/page.h"

namespace spillway {

constexpr uint32_t kExtentPages = 16;

inline PageRun unit_of(const Page* pages, PageId id) {
  const uint32_t index = pages[id].extent_index;
  return index == 0 ? PageRun{id, 1} : PageRun{id + 1 - index, kExtentPages};
}

// How full a device may become with extents. Every heap makes some of long runs, up to a quarter; where 32
// GiB and more may be held, of shorter ones too, which others share then, up to an eighth. One that has
// hardly freed anything, or spends memory for calls (Purchase), makes them as long as half is left where
// several heaps have pages, an eighth otherwise; but of runs that are shorter than an extent only up to an
// eighth.
enum class ExtentRoom : uint8_t { kNone, kEighth, kQuarter, kHalf, kMost };

// A run may end in an extent, with so many pages more than were asked for.
struct ExtentTerms {
  ExtentRoom room = ExtentRoom::kNone;
  uint32_t most_spare = 0;
};

// Free pages, as views, other heaps and the driver can have them.
struct FreeUnits {
  std::vector<PageRun> singles;  // runs of pages that are handles of their own
  std::vector<PageId> extents;   // the first pages of those wholly free
  // These hold what is free at the ends and the beginnings of the others, from a page up; each by its first
  // page.
  std::vector<PageFragment> suffixes;
  std::vector<PageFragment> prefixes;

  uint32_t single_pages() const {
    uint32_t pages = 0;
    for (const PageRun& run : singles) pages += run.count;
    return pages;
  }
  uint32_t extent_pages() const { return static_cast<uint32_t>(extents.size()) * kExtentPages; }
};

// Lists the units all of whose pages are free, in the order of their numbers. `next_run(from, &end)` returns
// the first free page from `from` on, `last` where there is none, and where its run ends; `in_extents` says
// which pages are in some.
template <typename NextRun>
FreeUnits list_free_units(const Page* pages, const Bitmap& in_extents, PageId last, NextRun next_run) {
  FreeUnits units;
  PageId end = 0;
  for (PageId id = next_run(0, &end); id < last; id = next_run(end, &end)) {
    while (id < end) {
      if (!in_extents.test(id)) {
        const PageId next = in_extents.next_set(id);
        const PageId until = in_extents.test(next) ? std::min(next, end) : end;
        units.singles.push_back({id, until - id});
        id = until;
        continue;
      }
      const PageRun unit = unit_of(pages, id);
      const PageId last_of_unit = unit.first + unit.count;
      const PageId until = std::min(last_of_unit, end);
      const uint32_t quanta = (until - id) * kPageQuanta;
      if (until - id == unit.count) {
        units.extents.push_back(id);
      } else if (id == unit.first) {
        units.prefixes.push_back({unit.first, quanta + pages[until].free_quanta.prefix()});
      } else if (until == last_of_unit) {
        units.suffixes.push_back({unit.first, quanta + pages[id - 1].free_quanta.suffix()});
      }
      id = until;
    }
  }
  return units;
}

// Drops the pages of extents that are not there whole and in a row, and what comes after the first `most`
// pages; the extent that these end in stays whole.
void keep_units(const Page* pages, std::vector<PageId>& ids, size_t most = SIZE_MAX);
// Adds what lacks to whole units, in place of each unit's first page there.
void widen_to_units(const Page* pages, std::vector<PageId>& ids);

}  // namespace spillway
