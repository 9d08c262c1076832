// A slab: one range of 64 KiB divided into equal slots of a size class, a bit for each slot. An address is
// turned into a slot by one multiplication. Owned by a heap, guarded by its lock; recycled, never returned.
#pragma once

#include <bit>
#include <cstdint>

#include "allocator/cached_range.h"
#include "allocator/size_classes.h"

namespace spillway {

struct Slab {
  CachedRange* range = nullptr;
  uint8_t size_class = 0;
  uint8_t slots = 0;
  uint8_t used = 0;
  uint64_t free_slots[2] = {};
  uint64_t pending_slots[2] = {};
  uint64_t stream_uses[2] = {};  // slots that other streams were said to use
  uint16_t requested[kMostSlots] = {};

  void open(CachedRange* at, uint32_t size_class_index) {
    range = at;
    size_class = static_cast<uint8_t>(size_class_index);
    slots = static_cast<uint8_t>(slots_of_class(size_class_index));
    used = 0;
    free_slots[0] = slots >= 64 ? ~uint64_t{0} : (uint64_t{1} << slots) - 1;
    free_slots[1] = slots <= 64 ? 0 : (slots == 128 ? ~uint64_t{0} : (uint64_t{1} << (slots - 64)) - 1);
    pending_slots[0] = pending_slots[1] = 0;
    stream_uses[0] = stream_uses[1] = 0;
  }

  bool full() const { return used == slots; }
  uint64_t slot_bytes() const { return kClassBytes[size_class]; }
  uint64_t va_of(uint32_t slot) const { return range->va + slot * slot_bytes(); }

  // The caller knows that there is a free slot.
  uint32_t take_slot(uint64_t requested_bytes) {
    const uint32_t word = free_slots[0] != 0 ? 0 : 1;
    const uint32_t bit = static_cast<uint32_t>(std::countr_zero(free_slots[word]));
    free_slots[word] &= free_slots[word] - 1;
    const uint32_t slot = word * 64 + bit;
    requested[slot] = static_cast<uint16_t>(requested_bytes);
    ++used;
    return slot;
  }
  // The caller knows that this one is free.
  void take_slot_at(uint32_t slot, uint64_t requested_bytes) {
    clear(free_slots, slot);
    requested[slot] = static_cast<uint16_t>(requested_bytes);
    ++used;
  }
  void give_slot(uint32_t slot) {
    free_slots[slot / 64] |= uint64_t{1} << (slot % 64);
    --used;
  }

  // The slot that begins at `va`; kMostSlots if none does.
  uint32_t slot_at(uint64_t va) const {
    const uint64_t offset = va - range->va;
    const uint64_t slot = offset / slot_bytes();
    return slot < slots && slot * slot_bytes() == offset ? static_cast<uint32_t>(slot) : kMostSlots;
  }
  static bool test(const uint64_t* bits, uint32_t slot) { return (bits[slot / 64] >> (slot % 64)) & 1; }
  static void set(uint64_t* bits, uint32_t slot) { bits[slot / 64] |= uint64_t{1} << (slot % 64); }
  static void clear(uint64_t* bits, uint32_t slot) { bits[slot / 64] &= ~(uint64_t{1} << (slot % 64)); }
  bool is_live(uint32_t slot) const { return !test(free_slots, slot) && !test(pending_slots, slot); }
  bool any_live() const { return used > std::popcount(pending_slots[0]) + std::popcount(pending_slots[1]); }
};
static_assert(kLargestSmallBytes <= UINT16_MAX);
static_assert(kMostSlots <= 128);

}  // namespace spillway
