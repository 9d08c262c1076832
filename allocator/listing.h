// Lists what a heap holds, block by block: for dumps, and to check its counters.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/heap.h"
#include "driver/status.h"
#include "stats/segment_row.h"

namespace spillway {

// The block in use, or pending, that begins there. Errors: invalid_pointer.
Result<BlockRow> find_block(const Heap& heap, const CachedRange& range, uint64_t va) SPW_REQUIRES(heap.mutex);
// Blocks of all kinds, the free ones included, in no order.
void list_blocks(const Heap& heap, std::vector<BlockRow>& rows) SPW_REQUIRES(heap.mutex);
// Tells the trace that every block is gone, as they are with the arena.
void trace_end(Heap& heap) SPW_REQUIRES(heap.mutex);
// Re-derives what the heap knows of its pages and compares. Errors: internal, with the first difference.
Status validate(const Heap& heap) SPW_REQUIRES(heap.mutex);

}  // namespace spillway
