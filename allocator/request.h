// Describes what is looked for, and where it could lie.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/cached_range.h"
#include "allocator/size_classes.h"
#include "allocator/units.h"

namespace spillway {

// Says what a block of a page and more consists of: quanta, of which others may have those of its first and
// last page; pages; or, alone of the three for a block of any size, one whole segment of the heap's source.
enum class BlockGrain : uint8_t { kQuantum, kPage, kSegment };

// So many quanta in a row, beginning at a multiple of `align_quanta`; for a slab, its size class.
struct Request {
  static constexpr uint32_t kNoSlab = ~uint32_t{0};

  uint32_t quanta = 0;
  uint32_t align_quanta = 1;
  uint32_t size_class = kNoSlab;

  bool is_for_slab() const { return size_class != kNoSlab; }
  static Request for_slab(uint32_t size_class) {
    return {kSlabQuanta, static_cast<uint32_t>(kGranuleBytes / kQuantumBytes), size_class};
  }
};

// The address and the physical bytes of a range that does not exist yet.
struct Layout {
  uint64_t va = 0;
  View* view = nullptr;  // that the range lies in; null for the home view
  PageId head_page = kNoPage;
  uint16_t head_begin = 0;
  uint16_t head_end = 0;
  RunList runs{};
  PageId tail_page = kNoPage;
  uint16_t tail_end = 0;
};

// Says how a request may be served by pages that no range covers yet.
struct Plan {
  enum class Kind : uint8_t { kNone, kExtend, kView, kSegment };
  Kind kind = Kind::kNone;
  uint32_t new_pages = 0;      // to be created
  PageId head_page = kNoPage;  // or the first of an extent
  uint32_t head_quanta = 0;    // taken from its end
  PageId tail_page = kNoPage;  // or the first of an extent
  uint32_t tail_quanta = 0;    // taken from its beginning
  uint32_t full_pages = 0;  // whole pages between the two; of a broken last page only the beginning is used
  PageId first_page = kNoPage;  // kExtend: the first whole page
  PageId first_new = kNoPage;   // kExtend: the first page to be created
  uint32_t spare_pages = 0;     // of the new ones, those that a view of own pages would have done without

  uint32_t whole_pages() const { return full_pages + head_quanta / kPageQuanta + tail_quanta / kPageQuanta; }
  // Its whole pages lie in a row where they were created: all of a view's are new, and the home view serves.
  bool is_at_home() const {
    const bool has_ends = head_page != kNoPage || tail_page != kNoPage;
    return kind != Kind::kView || (full_pages == new_pages && !has_ends);
  }
};

}  // namespace spillway
