/* The counters of one device, as plain data. One list per kind generates the structure here, the JSON dump
 * and its schema, so a counter cannot exist in one and be missing in another. A structure begins with its
 * size and version: a library fills no more than the caller's size, so a program built against an older
 * header keeps working. New members go at the end of the structure only, which is why the lists of a released
 * version are never reordered. */
#ifndef SPILLWAY_STATS_H
#define SPILLWAY_STATS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Names and meanings of torch.cuda.memory_stats(). `allocated` and `freed` are running totals, `peak` the
 * highest `current` since the last reset, `current` what came less what went. */
typedef struct spw_stat {
  int64_t current;
  int64_t peak;
  int64_t allocated;
  int64_t freed;
} spw_stat;

/* all.current = small_pool.current + large_pool.current. Memory that moves between the pools (a slab is
 * carved or given back) counts in the running totals of both pools and not in those of `all`. */
typedef struct spw_pool_stat {
  spw_stat all;
  spw_stat small_pool;
  spw_stat large_pool;
} spw_pool_stat;

/* Each is a spw_pool_stat. Bytes are bytes of device memory, counted once however many views map them.
 *   allocation, allocated_bytes   blocks in the program's hands: up when handed out, down when freed
 *   active, active_bytes          the same, down only when the free has completed on all streams that used it
 *   requested_bytes               what the program asked for, of the active blocks
 *   segment                       runs of memory taken from the driver; all are counted as large_pool
 *   reserved_bytes                bytes taken from the driver; small_pool: those carved into slabs
 *   inactive_split, .._bytes      free pieces of pages that are partly in use, unused slots of slabs included
 * At every moment reserved_bytes = active_bytes + inactive_split_bytes + cached_free_bytes. */
#define SPW_STATS_POOLED(X) \
  X(allocation)             \
  X(allocated_bytes)        \
  X(active)                 \
  X(active_bytes)           \
  X(requested_bytes)        \
  X(segment)                \
  X(reserved_bytes)         \
  X(inactive_split)         \
  X(inactive_split_bytes)

/* Each is an int64_t.
 *   num_alloc_retries             allocations served only after a rung that waits on the host
 *   num_ooms                      allocations that failed for want of memory
 *   num_sync_all_streams          waits for everything a device had to do
 *   num_device_alloc, .._free     driver calls that brought memory, and that gave it back
 *   max_split_size                always -1: there is no size above which blocks are not split
 *   cached_free_bytes             pages with no byte in use
 *   pending_blocks, .._bytes      freed, waiting for a stream to finish with them
 *   largest_free_bytes            the largest request that needs no new memory of the driver
 *   limit_bytes                   what reserved_bytes may reach; INT64_MAX when unlimited
 *   heaps                         number of (stream, pool) heaps
 *   stream_waits, host_waits      device-side waits enqueued, waits that blocked a host thread
 *   live_mappings                 pages mapped, once at home and once for every view they appear in
 *   metadata_bytes                host memory of the tables, less the process-wide one of blocks by address
 *   mean_*_bytes                  weighted by time, since the last reset of peaks: reserved bytes exactly,
 *                                 others on the line through samples: each pool of a heap takes one in 64 to
 *                                 191 allocations, halfway through it, and so does every reader of these
 *   host_placed_blocks, .._bytes  blocks in host memory that the device uses; in none of the counts above */
#define SPW_STATS_VALUES(X) \
  X(num_alloc_retries)      \
  X(num_ooms)               \
  X(num_sync_all_streams)   \
  X(num_device_alloc)       \
  X(num_device_free)        \
  X(max_split_size)         \
  X(cached_free_bytes)      \
  X(pending_blocks)         \
  X(pending_bytes)          \
  X(largest_free_bytes)     \
  X(limit_bytes)            \
  X(heaps)                  \
  X(stream_waits)           \
  X(host_waits)             \
  X(live_mappings)          \
  X(metadata_bytes)         \
  X(mean_active_bytes)      \
  X(mean_requested_bytes)   \
  X(mean_reserved_bytes)    \
  X(host_placed_blocks)     \
  X(host_placed_bytes)

/* Rungs of the ladder that a request climbs when its own heap cannot serve it, in order. Each is a
 * spw_rung. */
#define SPW_STATS_RUNGS(X)                                                     \
  X(completed_frees, CompletedFrees) /* frees that had completed meanwhile */  \
  X(view, View)                      /* a view over own free pages */          \
  X(new_pages, NewPages)             /* memory from the driver */              \
  X(device_wait, DeviceWait)         /* other streams' memory, device waits */ \
  X(host_wait, HostWait)             /* waited for pending frees */            \
  X(steal, Steal)                    /* free pages of other heaps */           \
  X(evict, Evict)                    /* cold regions moved out */              \
  X(callback, Callback)              /* the program gave something back */     \
  X(host_placement, HostPlacement)   /* placed in host memory */               \
  X(out_of_memory, OutOfMemory)      /* nothing helped */

typedef struct spw_rung {
  int64_t hits;    /* requests that this rung served; for out_of_memory, that failed */
  int64_t time_ns; /* time spent on it, successful or not */
} spw_rung;

/* Calls of the CUDA driver by kind. Each is an int64_t. */
#define SPW_STATS_DRIVER_CALLS(X) \
  X(create, Create)               \
  X(release, Release)             \
  X(map, Map)                     \
  X(unmap, Unmap)                 \
  X(set_access, SetAccess)        \
  X(reserve, Reserve)             \
  X(event_record, EventRecord)    \
  X(event_query, EventQuery)      \
  X(stream_wait, StreamWait)      \
  X(synchronize, Synchronize)     \
  X(mem_alloc, MemAlloc)          \
  X(mem_free, MemFree)

typedef struct spw_rungs {
#define SPW_STATS_MEMBER(name, Name) spw_rung name;
  SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
} spw_rungs;

typedef struct spw_driver_calls {
#define SPW_STATS_MEMBER(name, Name) int64_t name;
  SPW_STATS_DRIVER_CALLS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
} spw_driver_calls;

#define SPW_STATS_VERSION 1

typedef struct spw_stats {
  uint32_t size;    /* in: sizeof(spw_stats) as the caller was built; out: bytes filled */
  uint32_t version; /* out: SPW_STATS_VERSION of the library */
#define SPW_STATS_MEMBER(name) spw_pool_stat name;
  SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  spw_stat
      oversize_allocations;   /* zero: there is no oversize class; kept for programs that read every name */
  spw_stat oversize_segments; /* zero, likewise */
#define SPW_STATS_MEMBER(name) int64_t name;
  SPW_STATS_VALUES(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  spw_rungs rungs;
  spw_driver_calls driver_calls;
} spw_stats;

/* ---- Pinned host memory: pinned.h ---- */

/* Microseconds. */
typedef struct spw_duration {
  int64_t count;
  int64_t total_us;
  int64_t longest_us;
  int64_t shortest_us; /* 0 before the first */
} spw_duration;

#define SPW_PINNED_STATS_VERSION 1

/* requested_bytes <= active_bytes <= reserved_bytes. */
typedef struct spw_pinned_stats {
  uint32_t size;              /* in: sizeof(spw_pinned_stats) as the caller was built; out: bytes filled */
  uint32_t version;           /* out: SPW_PINNED_STATS_VERSION of the library */
  spw_stat blocks;            /* in use: up when handed out, down when freed and the last stream is done */
  spw_stat active_bytes;      /* of these blocks */
  spw_stat requested_bytes;   /* of these blocks, what the program asked for */
  spw_stat chunks;            /* of pinned memory, which blocks are carved from */
  spw_stat reserved_bytes;    /* of these chunks */
  spw_duration pin;           /* calls that pinned a chunk */
  spw_duration unpin;         /* calls that gave one back */
  int64_t refused_pins;       /* calls that would have pinned a chunk, and were refused */
  int64_t limit_bytes;        /* what reserved_bytes may reach; INT64_MAX when unlimited */
  int64_t chunks_by_size[64]; /* pinned so far, of at most 1 << index bytes and more than half of that */
} spw_pinned_stats;

#ifdef __cplusplus
}
#endif
#endif
