// The slabs of a heap: which there are of each size class, and their slots. Where a slab lies is for the heap
// to find.
//
// Guarded by the heap's lock.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/cached_range.h"
#include "allocator/free_pages.h"
#include "allocator/index_set.h"
#include "allocator/size_classes.h"
#include "allocator/slab.h"
#include "allocator/timeline.h"
#include "stats/counters.h"

namespace spillway {

class SlabHeap {
 public:
  SlabHeap(FreePages& pages, const Timeline& timeline, HeapCounters& counters)
      : pages_(pages), timeline_(timeline), counters_(counters) {}

  // The slab of the class that the next slot comes from; null where none has room.
  Slab* with_room(uint32_t size_class) const { return classes_[size_class].with_room; }
  // Tells whether that is one without live slots, which is kept because no other has room.
  bool is_empty(uint32_t size_class, const Slab& slab) const { return classes_[size_class].empty == &slab; }
  // Both leave it to the heap to count the block. The address of a slot of the slab with room, which there
  // is.
  uint64_t take_slot(uint32_t size_class, uint64_t requested_bytes);
  void give_slot(Slab& slab, uint32_t slot);

  // A slab at a range that was taken for it; false, with nothing changed, when host memory has run out.
  bool open(CachedRange& range, uint32_t size_class);
  void release(Slab& slab);
  // Slabs without a live slot give their range back; answers how many.
  size_t release_empty();

  // For states that are put back. Room for so many slabs more. Throws bad_alloc.
  void reserve(size_t slabs);
  // Makes the slots that are live in `saved` live in the slab, each as large as it was asked for then.
  void restore(Slab& slab, const Slab& saved);

  // The ranges of the slabs that release_empty() would release; and the largest free slot, 0 where there is
  // none.
  std::vector<const CachedRange*> empty_ranges() const;
  uint64_t largest_slot_bytes() const;
  uint64_t metadata_bytes() const { return slabs_.size() * sizeof(Slab); }

 private:
  // The slabs of one size class.
  struct Class {
    // Slots come from the first of the slabs with room, in an order that never changes: which slots are taken
    // then depends on what is live, not on what was before, and a program that repeats itself opens and
    // closes the same slabs in every pass.
    IndexSet room;  // by slab number
    uint32_t room_count = 0;
    Slab* with_room = nullptr;  // the first of them
    // A slab without live slots that is kept because no other has room, so that a lone slot does not carve
    // and give back.
    Slab* empty = nullptr;
  };

  // Notes that a slot was taken of the slab: it is not empty, and may be full.
  void slot_taken(Class& state, Slab& slab);
  void list(Slab& slab);
  void unlist(Slab& slab);
  void add_spare();
  // Everything that opening a slab there needs of host memory; false when that has run out.
  bool make_room(CachedRange& range, uint32_t size_class) noexcept;

  FreePages& pages_;
  const Timeline& timeline_;
  HeapCounters& counters_;
  std::array<Class, kClassCount> classes_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<Slab*> spare_;
  std::vector<CachedRange*> ranges_;  // by slab number
};

}  // namespace spillway
