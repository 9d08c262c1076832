#include "allocator/hole_index.h"

#include <algorithm>
#include <new>

namespace spillway {

bool HoleIndex::is_partly_used(PageId page) const {
  return pages_[page].owner.load(std::memory_order_relaxed) == &owner_ && !free_.test(page);
}

uint32_t HoleIndex::free_end_before(PageId page) const {
  return joins_ends_ && page > 0 && is_partly_used(page - 1) ? pages_[page - 1].free_quanta.suffix() : 0;
}

uint32_t HoleIndex::free_beginning_of(PageId page) const {
  return joins_ends_ && page < free_.end() && is_partly_used(page) ? pages_[page].free_quanta.prefix() : 0;
}

// ---- Kept up to date

void HoleIndex::grow() {
  // One more: a hole may go by the page after the last.
  const size_t count = size_t{free_.end()} + 1;
  if (links_.size() >= 2 * count) return;
  const size_t bigger = std::max(count, links_.size());
  seen_.resize(bigger / 64 + 1, 0);
  pieces_.grow(static_cast<uint32_t>(bigger));
  changed_.reserve(64);
  links_.resize(2 * bigger);
}

void HoleIndex::forget() {
  std::vector<Link>().swap(links_);
  std::vector<uint64_t>().swap(seen_);
  std::vector<ChangedRun>().swap(changed_);
  pieces_ = MaxTree();
  heads_ = {};
  used_bins_ = {};
}

void HoleIndex::compare_bitmaps() {
  constexpr uint32_t kAtOnce = 8;  // most words are as they were
  changed_.clear();
  const uint32_t words = (free_.end() + 63) / 64;
  for (uint32_t begin = 0; begin < words; begin += kAtOnce) {
    const uint32_t end = std::min(begin + kAtOnce, words);
    uint64_t differences = 0;
    for (uint32_t word = begin; word < end; ++word) differences |= free_.word(word) ^ seen_[word];
    if (differences == 0) continue;
    for (uint32_t word = begin; word < end; ++word) {
      if (free_.word(word) != seen_[word]) note_changed_bits(word);
    }
  }
}

void HoleIndex::build() noexcept {
  forget();
  try {
    grow();
    compare_bitmaps();
  } catch (const std::bad_alloc&) {
    return forget();
  }
  for (PageId page = 0; page <= free_.end(); ++page) refresh(page);
  for (PageId page = 0; page < free_.end(); ++page) refresh_piece(page);
}

void HoleIndex::update(const std::vector<PageId>& touched) noexcept {
  try {
    grow();
    compare_bitmaps();
  } catch (const std::bad_alloc&) {
    return forget();
  }
  // Each touched page is `dirty`, and has both its boundaries listed anew.
  const auto is_touched = [this](PageId page) {
    const bool is_own = page < free_.end() && pages_[page].owner.load(std::memory_order_relaxed) == &owner_;
    return is_own && pages_[page].dirty;
  };
  for (const ChangedRun& run : changed_) {
    if (!is_touched(run.begin) && (run.begin == 0 || !is_touched(run.begin - 1))) refresh(run.begin);
    if (!is_touched(run.end) && !is_touched(run.end - 1)) refresh(run.end);
  }
  for (const PageId page : touched) {
    refresh(page);
    if (!is_touched(page + 1)) refresh(page + 1);
    refresh_piece(page);
  }
}

void HoleIndex::note_changed_bits(uint32_t word) {
  const uint64_t now = free_.word(word);
  const uint64_t came = now & ~seen_[word];
  const uint64_t went = seen_[word] & ~now;
  for (uint64_t left = came | went; left != 0;) {
    const auto bit = static_cast<uint32_t>(std::countr_zero(left));
    const bool came_free = (came >> bit & 1) != 0;
    const auto count = static_cast<uint32_t>(std::countr_one((came_free ? came : went) >> bit));
    const PageId begin = word * 64 + bit;
    if (!changed_.empty() && changed_.back().end == begin && changed_.back().came_free == came_free) {
      changed_.back().end = begin + count;
    } else {
      changed_.push_back({begin, begin + count, came_free});
    }
    if (bit + count == 64) break;
    left &= ~uint64_t{0} << (bit + count);
  }
  seen_[word] = now;
}

void HoleIndex::refresh(PageId page) {
  const bool free_before = page > 0 && free_.test(page - 1);
  if (free_before) set(hole_at(page), 0);  // inside a hole, or behind it
  measure(free_before ? free_.run_begin(page - 1) : page);
}

void HoleIndex::refresh_piece(PageId page) {
  uint32_t largest = 0;
  uint32_t inside = 0;
  if (is_partly_used(page)) {
    const QuantumSet& free_quanta = pages_[page].free_quanta;
    inside = free_quanta.largest_middle().quanta();
    largest = std::max({inside, free_quanta.prefix(), free_quanta.suffix()});
  }
  pieces_.set(page, static_cast<uint16_t>(largest));
  set(piece_of(page), inside);
}

void HoleIndex::measure(PageId page) {
  const PageId last = free_.next_clear_within(page);
  set(hole_at(page), free_end_before(page) + (last - page) * kPageQuanta + free_beginning_of(last));
}

void HoleIndex::set(uint32_t at, uint32_t quanta) {
  Link& link = links_[at];
  if (link.quanta == quanta) return;
  const uint32_t old_bin = bin_of(link.quanta);
  const uint32_t bin = bin_of(quanta);
  const bool was_listed = link.quanta != 0;
  link.quanta = quanta;
  if (was_listed) {
    if (bin == old_bin) return;
    if (link.next != 0) links_[link.next - 1].previous = link.previous;
    if (link.previous != 0) {
      links_[link.previous - 1].next = link.next;
    } else {
      heads_[old_bin] = link.next;
      if (link.next == 0) used_bins_[old_bin / 64] &= ~(uint64_t{1} << (old_bin % 64));
    }
  }
  if (quanta == 0) return;
  link.previous = 0;
  link.next = heads_[bin];
  if (link.next != 0) links_[link.next - 1].previous = at + 1;
  heads_[bin] = at + 1;
  used_bins_[bin / 64] |= uint64_t{1} << (bin % 64);
}

// ---- Searches

uint32_t HoleIndex::next_bin(uint32_t from) const {
  for (uint32_t word = from / 64; word < used_bins_.size(); ++word) {
    uint64_t bits = used_bins_[word];
    if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
    if (bits != 0) return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
  }
  return kBins;
}

uint32_t HoleIndex::smallest_of(uint32_t bin, uint32_t quanta, uint32_t most_tries) const {
  uint32_t best = 0;
  uint32_t smallest = ~uint32_t{0};
  uint32_t tries = 0;
  for (uint32_t at = heads_[bin]; at != 0 && tries < most_tries; at = links_[at - 1].next, ++tries) {
    const uint32_t here = links_[at - 1].quanta;
    if (here < quanta || here >= smallest) continue;
    best = at;
    smallest = here;
  }
  return best;
}

std::optional<HoleIndex::Position> HoleIndex::find_closest(uint32_t quanta) const {
  const uint32_t first = bin_of(quanta);
  uint32_t best = 0;
  for (uint32_t bin = next_bin(first); bin < kBins && best == 0; bin = next_bin(bin + 1))
    best = smallest_of(bin, quanta, kMostTries);
  // Entries of the first bin alone may be too small.
  if (best == 0) best = smallest_of(first, quanta, ~uint32_t{0});
  if (best == 0) return std::nullopt;
  const PageId page = (best - 1) / 2;
  if (best - 1 == piece_of(page)) return Position{page, pages_[page].free_quanta.largest_middle().begin};
  const uint32_t before = free_end_before(page);
  return before == 0 ? Position{page, 0} : Position{page - 1, kPageQuanta - before};
}

}  // namespace spillway
