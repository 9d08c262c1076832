#include "allocator/fragments.h"

#include <bit>

namespace spillway {

uint32_t FragmentIndex::size_of(Fragment kind, PageId page) const {
  const QuantumSet& free_quanta = pages_[page].free_quanta;
  switch (kind) {
    case kPrefix:
      return free_quanta.prefix();
    case kSuffix:
      return free_quanta.suffix();
    case kMiddle:
      return free_quanta.largest_middle().quanta();
  }
  return 0;
}

void FragmentIndex::update(PageId page) {
  for (const Fragment kind : {kPrefix, kSuffix, kMiddle}) {
    const uint32_t quanta = size_of(kind, page);
    const uint32_t bin = quanta == 0 ? 0 : bin_of(quanta) + 1;
    if (pages_[page].links[kind].bin == bin) continue;
    unlink(kind, page);
    if (quanta != 0) link(kind, page, quanta);
  }
}

void FragmentIndex::remove(PageId page) {
  for (const Fragment kind : {kPrefix, kSuffix, kMiddle}) unlink(kind, page);
}

void FragmentIndex::link(Fragment kind, PageId page, uint32_t quanta) {
  const uint32_t bin = bin_of(quanta);
  FragmentLink& links = pages_[page].links[kind];
  links.bin = static_cast<uint16_t>(bin + 1);
  links.previous = 0;
  links.next = heads_[kind][bin];
  if (links.next != 0) pages_[links.next - 1].links[kind].previous = page + 1;
  heads_[kind][bin] = page + 1;
  used_bins_[kind][bin / 64] |= uint64_t{1} << (bin % 64);
  ++counts_[kind];
}

void FragmentIndex::unlink(Fragment kind, PageId page) {
  FragmentLink& links = pages_[page].links[kind];
  if (links.bin == 0) return;
  const uint32_t bin = links.bin - 1u;
  if (links.next != 0) pages_[links.next - 1].links[kind].previous = links.previous;
  if (links.previous != 0) {
    pages_[links.previous - 1].links[kind].next = links.next;
  } else {
    heads_[kind][bin] = links.next;
    if (links.next == 0) used_bins_[kind][bin / 64] &= ~(uint64_t{1} << (bin % 64));
  }
  links = {};
  --counts_[kind];
}

uint32_t FragmentIndex::next_bin(Fragment kind, uint32_t from) const {
  for (uint32_t word = from / 64; word < kBins / 64; ++word) {
    uint64_t bits = used_bins_[kind][word];
    if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
    if (bits != 0) return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
  }
  return kBins;
}

PageId FragmentIndex::find(Fragment kind, uint32_t quanta) const {
  const uint32_t first_bin = bin_of(quanta);
  PageId best = kNoPage;
  uint32_t best_quanta = ~0u;
  for (uint32_t bin = next_bin(kind, first_bin); bin < kBins; bin = next_bin(kind, bin + 1)) {
    int tries = 0;
    for (PageId link = heads_[kind][bin]; link != 0 && tries < kMostTries;
         link = pages_[link - 1].links[kind].next, ++tries) {
      const uint32_t size = size_of(kind, link - 1);
      if (size >= quanta && size < best_quanta) {
        best = link - 1;
        best_quanta = size;
        if (size == quanta) return best;
      }
    }
    if (best != kNoPage) return best;
  }
  // Pages of the first bin alone may have fewer quanta than is wanted.
  for (PageId link = heads_[kind][first_bin]; link != 0; link = pages_[link - 1].links[kind].next) {
    if (size_of(kind, link - 1) >= quanta) return link - 1;
  }
  return kNoPage;
}

}  // namespace spillway
