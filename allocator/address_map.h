// Finds the block that lives at a device address, for every device of the process, in a table of two levels
// over 48-bit addresses with one entry for each 16 KiB. No two live blocks begin inside one entry's range:
// large blocks are longer than that, and a slab lies on its boundaries and takes four entries.
//
// find() takes no lock. An entry is written by the holder of the block's heap lock; a reader who then takes
// that lock sees whether the block still lives. Tables are mapped lazily and stay for the life of the
// process.
//
// Beside its entries a table has bits that tell which of them are set, in three levels of 64: what lies
// before an address far inside of a large block is found by a few words for each 4 GiB. A bit of the lowest
// level is set where its entry is, as soon as whoever entered it goes on; those above stay set where there
// has been one.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "allocator/mutex.h"
#include "allocator/units.h"

namespace spillway {

struct CachedRange;

class AddressMap {
 public:
  // The process-wide map: addresses are unique across devices (unified virtual addressing).
  static AddressMap& instance();

  // The range whose block may own `va`: the one entered for its 16 KiB; null when there is none.
  CachedRange* find(uint64_t va) const {
    const uint64_t top = va >> kLeafShift;
    if (top >= kTops) return nullptr;
    const Leaf* leaf = leaves_[top].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : leaf->at(granule_in_leaf(va));
  }

  // Begins to fetch what find() and set() of this address need.
  [[gnu::always_inline]] void prefetch(uint64_t va) const {
    const uint64_t top = va >> kLeafShift;
    const Leaf* leaf = top < kTops ? leaves_[top].load(std::memory_order_acquire) : nullptr;
    if (leaf != nullptr) leaf->prefetch(granule_in_leaf(va));
  }

  // The ranges entered for 16 KiB at or before `va`, nearest first, until `visit` answers true or
  // `most_bytes` of addresses were looked at. `visit` is given a range and the address that it was entered
  // for. No lock is held meanwhile: the range may have become that of other addresses.
  template <typename Visit>
  void find_before(uint64_t va, uint64_t most_bytes, Visit visit) const {
    if ((va >> kLeafShift) >= kTops) return;
    const uint64_t least = va > most_bytes ? (va - most_bytes) >> kGranuleShift : 0;
    for (uint64_t end = (va >> kGranuleShift) + 1; end > least;) {
      // Looks in the table that the last granule is in, whose first granule is `first`.
      const uint64_t top = (end - 1) / kLeafGranules;
      const uint64_t first = top * kLeafGranules;
      const Leaf* leaf = leaves_[top].load(std::memory_order_acquire);
      const uint32_t granule =
          leaf == nullptr ? kNone : leaf->last_before(static_cast<uint32_t>(end - first));
      end = granule == kNone ? first : first + granule;
      if (granule == kNone || end < least) continue;
      CachedRange* range = leaf->at(granule);
      if (range != nullptr && visit(*range, end << kGranuleShift)) return;
    }
  }

  // False when host memory for the table has run out.
  bool set(uint64_t va, uint32_t granules, CachedRange* range) {
    for (uint32_t i = 0; i < granules; ++i, va += kGranuleBytes) {
      const uint64_t top = va >> kLeafShift;
      if (top >= kTops) return false;
      Leaf* leaf = leaves_[top].load(std::memory_order_acquire);
      if (leaf == nullptr) leaf = add_leaf(top);
      if (leaf == nullptr) return false;
      leaf->set(granule_in_leaf(va), range);
    }
    return true;
  }
  // Clears the entry of `va` if it still names `range`: another heap may have entered a block of its own
  // there.
  void clear_if(uint64_t va, const CachedRange* range) {
    Leaf* leaf = leaves_[va >> kLeafShift].load(std::memory_order_acquire);
    if (leaf != nullptr) leaf->clear_if(granule_in_leaf(va), range);
  }

 private:
  static constexpr int kGranuleShift = 14;
  static constexpr int kLeafShift = 32;  // 4 GiB of addresses for each leaf of 2 MiB
  static constexpr uint64_t kLeafGranules = uint64_t{1} << (kLeafShift - kGranuleShift);
  static constexpr uint64_t kTops = uint64_t{1} << (48 - kLeafShift);
  static constexpr uint32_t kNone = ~uint32_t{0};
  static_assert(kGranuleBytes == uint64_t{1} << kGranuleShift);
  static_assert(kLeafGranules == uint64_t{64} * 64 * 64);

  static uint32_t granule_in_leaf(uint64_t va) {
    return static_cast<uint32_t>(va >> kGranuleShift) & static_cast<uint32_t>(kLeafGranules - 1);
  }

  // Zero at first, as it is mapped: no constructor runs.
  class Leaf {
   public:
    CachedRange* at(uint32_t granule) const { return entries_[granule].load(std::memory_order_acquire); }
    [[gnu::always_inline]] void prefetch(uint32_t granule) const {
      __builtin_prefetch(&entries_[granule], 1);
      __builtin_prefetch(&granules_[granule / 64], 1);
    }
    void set(uint32_t granule, CachedRange* range) {
      entries_[granule].store(range, std::memory_order_release);
      granules_[granule / 64].fetch_or(bit(granule));
      set_once(groups_[granule / 4096], bit(granule / 64));
      set_once(all_, bit(granule / 4096));
    }
    void clear_if(uint32_t granule, const CachedRange* range) {
      auto* expected = const_cast<CachedRange*>(range);
      if (!entries_[granule].compare_exchange_strong(expected, nullptr)) return;
      granules_[granule / 64].fetch_and(~bit(granule));
      // Another heap may have entered a block of its own meanwhile, and set the bit before it was cleared.
      if (entries_[granule].load() != nullptr) granules_[granule / 64].fetch_or(bit(granule));
    }
    // The last granule that is set and before `end`, 1 to kLeafGranules; or kNone.
    uint32_t last_before(uint32_t end) const {
      for (uint32_t from = end - 1;;) {
        const uint32_t word = from / 64;
        if (const uint64_t here = granules_[word].load() & up_to(from); here != 0)
          return word * 64 + last_bit(here);
        const uint32_t before = word_before(word);
        if (before == kNone) return kNone;
        from = before * 64 + 63;
      }
    }

   private:
    static uint64_t bit(uint32_t index) { return uint64_t{1} << (index % 64); }
    static uint64_t below(uint32_t index) { return bit(index) - 1; }
    static uint64_t up_to(uint32_t index) { return below(index) | bit(index); }
    static uint32_t last_bit(uint64_t bits) { return 63 - static_cast<uint32_t>(std::countl_zero(bits)); }

    static void set_once(std::atomic<uint64_t>& word, uint64_t bits) {
      if ((word.load() & bits) == 0) word.fetch_or(bits);
    }
    // The last word of granules_ before this one that has had a bit; or kNone.
    uint32_t word_before(uint32_t word) const {
      if (const uint64_t here = groups_[word / 64].load() & below(word); here != 0)
        return word / 64 * 64 + last_bit(here);
      const uint64_t here = all_.load() & below(word / 64);
      if (here == 0) return kNone;
      const uint32_t group = last_bit(here);
      return group * 64 + last_bit(groups_[group].load());
    }

    std::array<std::atomic<CachedRange*>, kLeafGranules> entries_;
    std::array<std::atomic<uint64_t>, kLeafGranules / 64> granules_;  // that are set
    std::array<std::atomic<uint64_t>, 64> groups_;  // of 64 words of granules_: those that have had a bit
    std::atomic<uint64_t> all_;                     // the same of groups_
  };

  Leaf* add_leaf(uint64_t top);

  std::atomic<Leaf*> leaves_[kTops] = {};
};

}  // namespace spillway
