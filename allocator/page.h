// One page of physical memory and what is known of its bytes. The truth is split for speed:
//   free (no byte used): its bit is set in its owner's bitmap, `free_quanta` is empty;
//   full:                  bit clear, `free_quanta` empty;
//   partly used:           bit clear, `free_quanta` lists the rest.
// A partly used page serves only its owner. Guarded by the owner heap's lock; `owner` changes only under the
// arena lock with both heaps locked. Lives in zeroed memory: all zero is "no page here".
//
// A page may be *out* of the device with its owner's pool (moved_pool.h): it keeps its number, its addresses
// and its owner, while its bytes are somewhere else. Then it has no handle and is mapped nowhere, unless the
// driver did not let go of it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/quantum_set.h"
#include "allocator/units.h"

namespace spillway {

class Heap;
struct View;

// Says where a page appears in an aliasing view; an extent there, with its first page.
struct Alias {
  View* view;
  uint32_t slot;
  bool is_mapped;
  Alias* next;
};

// The three kinds of free space inside a partly used page, each with its own index of sizes.
enum Fragment : uint8_t { kPrefix, kSuffix, kMiddle };
constexpr int kFragmentKinds = 3;

struct FragmentLink {
  PageId next;  // page id + 1, 0 for none
  PageId previous;
  uint16_t bin;  // bin + 1, 0 when not indexed
};

// What each request reads and writes lies in the first 64 bytes.
struct alignas(64) Page {
  uint64_t va;               // in the home view
  std::atomic<Heap*> owner;  // null: no physical memory; without a lock it only tells "not mine"
  QuantumSet free_quanta;
  bool dirty;            // no index of its heap reflects free_quanta yet
  bool lacks_fragments;  // the index of fragments does not, that of holes may
  bool is_home;          // mapped in the home view
  uint8_t extent_index;  // in its extent, from 1; 0: it is a handle of its own

  CUmemGenericAllocationHandle handle;  // 0 in an extent but for its first page
  uint64_t serial;                      // no two pages that ever were have the same
  Alias* aliases;                       // in an extent those of all of it, at its first page
  FragmentLink links[kFragmentKinds];
};
static_assert(offsetof(Page, handle) <= 64);

}  // namespace spillway
