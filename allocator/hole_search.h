// Finds where in a free range a request best lies. A request of k whole pages and r quanta more (r <
// kPageQuanta) needs at least k whole pages; where its r quanta come from is what separates a tight heap from
// a loose one. Taken from a fragment they cost nothing; broken off another free page they leave that page
// partly used. So every choice is first by free pages consumed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "allocator/units.h"

namespace spillway {

// A maximal free range of the home view: the end of one page, whole pages, the beginning of another.
struct Hole {
  uint32_t head_quanta = 0;  // at the end of page first - 1
  PageId first = 0;
  uint32_t pages = 0;
  uint32_t tail_quanta = 0;  // at the beginning of page first + pages
};

// A block inside a hole.
struct Fit {
  uint32_t consumed = ~0u;  // free pages taken, broken ones included
  uint32_t leftover = ~0u;  // quanta left over inside a fragment, away from both ends of its page
  uint32_t hole_pages = ~0u;
  PageId head_page = kNoPage;  // page of the first quantum when it is not a page boundary
  uint32_t head_quanta = 0;
  PageId first = 0;  // first page that begins inside the block
  auto rank() const { return std::tie(consumed, hole_pages, leftover); }
};

// Compares the ways to lay a request into holes and keeps the best.
class HoleSearch {
 public:
  HoleSearch(uint32_t quanta, bool leave_prefix)
      : quanta_(quanta),
        whole_(quanta / kPageQuanta),
        rest_(quanta % kPageQuanta),
        leave_prefix_(leave_prefix) {}

  const Fit& best() const { return best_; }

  void consider(const Hole& hole) {
    if (hole.head_quanta + uint64_t{hole.pages} * kPageQuanta + hole.tail_quanta < quanta_) return;
    if (rest_ == 0) {
      if (hole.pages >= whole_) offer(hole, hole.first, 0, whole_, 0);
      // A run one page short, with what its two ends have, still holds whole_ pages' worth of quanta.
    } else if (hole.pages >= whole_) {
      if (hole.head_quanta >= rest_) offer(hole, hole.first, rest_, whole_, hole.head_quanta - rest_);
      if (hole.tail_quanta >= rest_) {
        offer(hole, hole.first + hole.pages - whole_, 0, whole_, hole.tail_quanta - rest_);
      }
      if (hole.pages > whole_) {
        // Break a page, at the end that leaves the kind of fragment the heap has less of.
        const uint32_t head = std::min(hole.head_quanta, quanta_);
        const uint32_t tail = std::min(hole.tail_quanta, quanta_);
        const uint32_t left_pages = pages_for(quanta_ - head);
        const uint32_t right_pages = pages_for(quanta_ - tail);
        if (left_pages <= hole.pages) offer(hole, hole.first, head, left_pages, leave_prefix_ ? 1 : 0);
        if (right_pages <= hole.pages) {
          const PageId end = hole.first + hole.pages;
          const uint32_t in_pages = quanta_ - tail;
          const uint32_t head_quanta = in_pages % kPageQuanta;
          offer(hole, end - in_pages / kPageQuanta, head_quanta, right_pages, leave_prefix_ ? 0 : 1);
        }
      }
    }
    // The whole run with something of both ends.
    const uint64_t run_quanta = uint64_t{hole.pages} * kPageQuanta;
    if (run_quanta < quanta_ && hole.head_quanta > 0 && hole.tail_quanta > 0 &&
        quanta_ - run_quanta > hole.head_quanta) {
      const uint32_t tail = static_cast<uint32_t>(quanta_ - run_quanta) - hole.head_quanta;
      offer(hole, hole.first, hole.head_quanta, hole.pages, hole.tail_quanta - tail);
    }
  }

 private:
  static uint32_t pages_for(uint32_t quanta) { return (quanta + kPageQuanta - 1) / kPageQuanta; }

  void offer(const Hole& hole, PageId first, uint32_t head_quanta, uint32_t consumed, uint32_t leftover) {
    Fit fit;
    fit.consumed = consumed;
    fit.leftover = leftover;
    fit.hole_pages = hole.pages;
    fit.head_page = head_quanta > 0 ? first - 1 : kNoPage;
    fit.head_quanta = head_quanta;
    fit.first = first;
    if (fit.rank() < best_.rank()) best_ = fit;
  }

  const uint32_t quanta_;
  const uint32_t whole_;
  const uint32_t rest_;
  const bool leave_prefix_;
  Fit best_;
};

}  // namespace spillway
