// The recorded past of one device, played again: what its memory was made of after every event.
//
// A snapshot holds the segments at the end and the events that led there, with the requested size of each
// block. Going backwards from the end gives the segments and blocks at the start; going forwards gives every
// moment. Sizes of blocks that are gone follow from the native allocator's rules, which the addresses then
// confirm: sizes are multiples of 512 B; in segments of the pool for large requests a remainder of up to 1
// MiB stays with its block (should_split, c10/cuda/CUDACachingAllocator.cpp). Blocks that live at the end
// have the sizes that the file gives them.
//
// Of a block that was there at the start and is gone at the end, what it kept above its request may show as
// inactive split instead of rounding, up to 1 MiB: its neighbours of then are not known.
//
// Where a trace records no segments at all, what is reserved is what is active.
//
// Cost: a logarithm of the number of blocks for each event. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/report/view.h"
#include "driver/status.h"

namespace spillway {

class History {
 public:
  // `view` must outlive it. Errors: events that do not fit each other or the segments.
  static Result<History> build(const MemoryView& view);

  // Goes from the start to the end; called before the first event with index -1, then after each event.
  using Visit = std::function<void(int64_t index, const Parts& parts)>;
  Status play(const Visit& visit);

  // During a visit: what there is, in order of address.
  std::vector<SegmentView> segments() const;
  struct Block {
    uint64_t bytes = 0;
    uint64_t requested_bytes = 0;
    uint64_t stream = 0;
    uint32_t site = 0;
    bool pending = false;
    uint32_t stack = 0;
  };
  const std::map<uint64_t, Block>& blocks() const { return blocks_; }

  bool records_segments() const { return records_segments_; }

 private:
  struct Segment {
    uint64_t bytes = 0;
    uint64_t used_bytes = 0;
    uint64_t stream = 0;
    uint64_t pool_first = 0;
    uint64_t pool_second = 0;
    bool small = false;
    bool expandable = false;
  };
  using Segments = std::map<uint64_t, Segment>;
  using Blocks = std::map<uint64_t, Block>;

  explicit History(const MemoryView& view) : view_(&view) {}
  void find_start();
  void undo(size_t index);
  void size_first_blocks();
  void begin();

  bool step(size_t index);
  bool allocate(size_t index);
  bool request_free(uint64_t address);
  bool complete_free(uint64_t address);
  bool add_segment(const MemoryEvent& event);
  bool remove_segment(const MemoryEvent& event);

  // The range as a segment, joined with its neighbours where it is a part of one that grows.
  void insert_segment(const MemoryEvent& event);
  // Takes the range out of what is there.
  void carve(uint64_t address, uint64_t bytes);
  Segment described(const MemoryEvent& event) const;
  // Returns what a block at the address can have at most; UINT64_MAX outside of segments.
  uint64_t room(uint64_t address) const;
  uint64_t block_bytes(uint64_t address, uint64_t requested) const;
  const Segment* segment_of(uint64_t address, uint64_t* begin) const;
  void use(uint64_t address, const Block& block, bool add);
  void count(const Segment& segment, bool add);
  uint64_t used_in(uint64_t address, uint64_t bytes) const;

  const MemoryView* view_;
  bool records_segments_ = true;
  bool fits_ = true;  // going backwards, no segment overlapped and no block stuck out
  Segments first_segments_;
  Blocks first_blocks_;
  std::unordered_map<size_t, uint64_t> known_bytes_;  // of the allocations whose blocks live at the end

  Segments segments_;
  Blocks blocks_;
  Parts parts_;
};

}  // namespace spillway
