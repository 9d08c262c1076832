// Where in a free range a request best lies. A request of k whole pages and r lines more (r < kPageLines)
// needs at least k whole pages; where its r lines come from is what separates a tight heap from a loose one.
// Taken from a fragment they cost nothing; broken off another vacant page they leave that page partly used.
// So every choice is first by vacant pages consumed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "allocator/units.h"

namespace spillway {

// A maximal free range of the home view: the end of one page, whole pages, the beginning of another.
struct Hole {
  uint32_t head_lines = 0;  // at the end of page first - 1
  PageId first = 0;
  uint32_t pages = 0;
  uint32_t tail_lines = 0;  // at the beginning of page first + pages
};

// A block inside a hole.
struct Fit {
  uint32_t consumed = ~0u;  // vacant pages taken, broken ones included
  uint32_t leftover = ~0u;  // lines left over inside a fragment, away from both ends of its page
  uint32_t hole_pages = ~0u;
  PageId head_page = kNoPage;  // page of the first line when it is not a page boundary
  uint32_t head_lines = 0;
  PageId first = 0;  // first page that begins inside the block
  auto rank() const { return std::tie(consumed, hole_pages, leftover); }
};

// Compares the ways to lay a request into holes and keeps the best.
class HoleSearch {
 public:
  HoleSearch(uint32_t lines, bool leave_prefix)
      : lines_(lines), whole_(lines / kPageLines), rest_(lines % kPageLines), leave_prefix_(leave_prefix) {}

  const Fit& best() const { return best_; }

  void consider(const Hole& hole) {
    if (hole.head_lines + uint64_t{hole.pages} * kPageLines + hole.tail_lines < lines_) return;
    if (rest_ == 0) {
      if (hole.pages >= whole_) offer(hole, hole.first, 0, whole_, 0);
      // A run one page short, with what its two ends have, still holds whole_ pages' worth of lines.
    } else if (hole.pages >= whole_) {
      if (hole.head_lines >= rest_) offer(hole, hole.first, rest_, whole_, hole.head_lines - rest_);
      if (hole.tail_lines >= rest_) {
        offer(hole, hole.first + hole.pages - whole_, 0, whole_, hole.tail_lines - rest_);
      }
      if (hole.pages > whole_) {
        // Break a page, at the end that leaves the kind of fragment the heap has less of.
        const uint32_t head = std::min(hole.head_lines, lines_);
        const uint32_t tail = std::min(hole.tail_lines, lines_);
        const uint32_t left_pages = pages_for(lines_ - head);
        const uint32_t right_pages = pages_for(lines_ - tail);
        if (left_pages <= hole.pages) offer(hole, hole.first, head, left_pages, leave_prefix_ ? 1 : 0);
        if (right_pages <= hole.pages) {
          const PageId end = hole.first + hole.pages;
          const uint32_t in_pages = lines_ - tail;
          const uint32_t head_lines = in_pages % kPageLines;
          offer(hole, end - in_pages / kPageLines, head_lines, right_pages, leave_prefix_ ? 0 : 1);
        }
      }
    }
    // The whole run with something of both ends.
    const uint64_t run_lines = uint64_t{hole.pages} * kPageLines;
    if (run_lines < lines_ && hole.head_lines > 0 && hole.tail_lines > 0 &&
        lines_ - run_lines > hole.head_lines) {
      const uint32_t tail = static_cast<uint32_t>(lines_ - run_lines) - hole.head_lines;
      offer(hole, hole.first, hole.head_lines, hole.pages, hole.tail_lines - tail);
    }
  }

 private:
  static uint32_t pages_for(uint32_t lines) { return (lines + kPageLines - 1) / kPageLines; }

  void offer(const Hole& hole, PageId first, uint32_t head_lines, uint32_t consumed, uint32_t leftover) {
    Fit fit;
    fit.consumed = consumed;
    fit.leftover = leftover;
    fit.hole_pages = hole.pages;
    fit.head_page = head_lines > 0 ? first - 1 : kNoPage;
    fit.head_lines = head_lines;
    fit.first = first;
    if (fit.rank() < best_.rank()) best_ = fit;
  }

  const uint32_t lines_;
  const uint32_t whole_;
  const uint32_t rest_;
  const bool leave_prefix_;
  Fit best_;
};

}  // namespace spillway
