#include "allocator/hole_index.h"

#include <algorithm>
#include <new>

namespace spillway {

bool HoleIndex::is_partly_used(PageId page) const {
  return pages_[page].owner.load(std::memory_order_relaxed) == &owner_ && !free_.test(page);
}

// ---- Runs of free pages

void HoleIndex::note_words(PageId first, uint32_t count) {
  for (uint32_t word = first / 64; word <= (first + count - 1) / 64; ++word) {
    const uint64_t bit = uint64_t{1} << (word % 64);
    const bool is_full = free_.word(word) == ~uint64_t{0};
    full_words_[word / 64] = is_full ? full_words_[word / 64] | bit : full_words_[word / 64] & ~bit;
  }
}

PageId HoleIndex::run_end(PageId page) const {
  const uint32_t here = page / 64;
  if (const uint64_t used = ~free_.word(here) & (~uint64_t{0} << (page % 64)); used != 0)
    return here * 64 + static_cast<uint32_t>(std::countr_zero(used));
  // Behind the last page there is a word that is not full.
  uint32_t group = (here + 1) / 64;
  uint64_t not_full = ~full_words_[group] & (~uint64_t{0} << ((here + 1) % 64));
  while (not_full == 0) not_full = ~full_words_[++group];
  const uint32_t word = group * 64 + static_cast<uint32_t>(std::countr_zero(not_full));
  return word * 64 + static_cast<uint32_t>(std::countr_one(free_.word(word)));
}

PageId HoleIndex::run_begin(PageId page) const {
  const uint32_t here = page / 64;
  if (const uint64_t used = ~free_.word(here) & (~uint64_t{0} >> (63 - page % 64)); used != 0)
    return here * 64 + 64 - static_cast<uint32_t>(std::countl_zero(used));
  if (here == 0) return 0;
  uint32_t group = (here - 1) / 64;
  uint64_t not_full = ~full_words_[group] & (~uint64_t{0} >> (63 - (here - 1) % 64));
  while (not_full == 0 && group > 0) not_full = ~full_words_[--group];
  if (not_full == 0) return 0;
  const uint32_t word = group * 64 + 63 - static_cast<uint32_t>(std::countl_zero(not_full));
  return word * 64 + 64 - static_cast<uint32_t>(std::countl_one(free_.word(word)));
}

// ---- Kept up to date

void HoleIndex::grow() {
  // One more: a hole may go by the page after the last.
  const size_t count = size_t{free_.end()} + 1;
  if (ends_.size() >= count) return;
  // As many again at least, so that pages that come one after another are cheap.
  const size_t bigger = std::max(count, 2 * ends_.size());
  pieces_.grow(static_cast<uint32_t>(bigger));
  links_.resize(2 * bigger);
  noted_.resize(std::max(kFewestNoted, bigger / 4));
  boundaries_.reserve(4 * noted_.size());
  full_words_.resize(bigger / 64 / 64 + 2);
  ends_.resize(bigger);
}

void HoleIndex::forget() {
  is_built_ = false;
  std::vector<Link>().swap(links_);
  std::vector<Ends>().swap(ends_);
  std::vector<uint64_t>().swap(full_words_);
  std::vector<PageRun>().swap(noted_);
  std::vector<PageId>().swap(boundaries_);
  pieces_ = MaxTree();
  heads_ = {};
  used_bins_ = {};
}

void HoleIndex::build() noexcept {
  forget();
  try {
    grow();
  } catch (const std::bad_alloc&) {
    return forget();
  }
  noted_count_ = 0;
  is_stale_ = false;
  is_built_ = true;
  for (PageId page = 0; page < free_.end(); ++page) {
    refresh_page(page);
    boundaries_.clear();
  }
  note_words(0, free_.end() + 1);
  for (PageId page = 0; page <= free_.end(); page = free_.next_clear_within(page) + 1) measure(page);
}

void HoleIndex::update(const std::vector<PageId>& touched) noexcept {
  if (is_stale_ || touched.size() > noted_.size()) return build();
  try {
    grow();
  } catch (const std::bad_alloc&) {
    return forget();
  }
  boundaries_.clear();
  for (const PageId page : touched) refresh_page(page);
  for (uint32_t i = 0; i < noted_count_; ++i) {
    note_words(noted_[i].first, noted_[i].count);
    note_boundary(noted_[i].first);
    note_boundary(noted_[i].first + noted_[i].count);
  }
  noted_count_ = 0;
  for (const PageId page : boundaries_) refresh(page);
}

void HoleIndex::note_boundary(PageId page) {
  // A block that came or went has the same boundaries as what is left of its pages.
  constexpr size_t kLately = 4;
  const size_t end = boundaries_.size();
  for (size_t i = end - std::min(end, kLately); i < end; ++i) {
    if (boundaries_[i] == page) return;
  }
  boundaries_.push_back(page);
}

void HoleIndex::refresh_page(PageId page) {
  Ends now;
  uint32_t largest = 0;
  uint32_t inside = 0;
  if (is_partly_used(page)) {
    const QuantumSet& free_quanta = pages_[page].free_quanta;
    const uint32_t prefix = free_quanta.prefix();
    const uint32_t suffix = free_quanta.suffix();
    inside = free_quanta.largest_middle().quanta();
    largest = std::min(most_piece_, std::max({inside, prefix, suffix}));
    if (joins_ends_) now = {static_cast<uint16_t>(prefix), static_cast<uint16_t>(suffix)};
  }
  pieces_.set(page, static_cast<uint16_t>(largest));
  set(piece_of(page), inside);
  const Ends before = ends_[page];
  ends_[page] = now;
  if (now.prefix != before.prefix) note_boundary(page);
  if (now.suffix != before.suffix) note_boundary(page + 1);
}

void HoleIndex::refresh(PageId page) {
  const bool free_before = page > 0 && free_.test(page - 1);
  if (free_before) set(hole_at(page), 0);  // inside a hole, or behind it
  measure(free_before ? run_begin(page - 1) : page);
}

void HoleIndex::measure(PageId page) {
  const PageId last = free_.test(page) ? run_end(page) : page;
  set(hole_at(page), free_end_before(page) + (last - page) * kPageQuanta + ends_[last].prefix);
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
