/* Memory beyond the device: pinned host memory and a file below it (options spill_dir and spill_limit).
 *
 * Regions: allocations under a tag that leave the device together and come back to the same addresses.
 * Stashes: bytes of single tensors that are kept outside while the device does something else.
 *
 * As in spillway.h, functions may be called from any thread and never throw. What fails leaves everything
 * where it was, unless the text says what is lost. docs/spilling.md. */
#ifndef SPILLWAY_OFFLOAD_H
#define SPILLWAY_OFFLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "spillway/spillway.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum spw_tier {
  SPW_TIER_DEVICE = 0,
  SPW_TIER_HOST = 1,   /* pinned memory; what it has no room for goes to the disk, where there is one */
  SPW_TIER_DISK = 2,   /* the file in spill_dir, with checksums */
  SPW_TIER_NOWHERE = 3 /* the bytes are not needed any more */
} spw_tier;

/* ---- Regions. A tag is 1 to 64 letters, digits, `.`, `_`, `-`, `/` and `:`. ----
 *
 * Calls wait for a region that is being moved. Inside a spw_oom_callback none waits: there a region that is
 * being moved, or that another thread is using, is refused with SPW_ERROR_INVALID_STATE, and what looks at
 * all regions leaves it out; the one that room is being made for can be looked at.
 *
 * After an error of the driver that lasts (as after a fault of a kernel) nothing is moved on the device any
 * more: each call that would answers SPW_ERROR_DRIVER at once, with that error. What is where stays there. */

/* From here to spw_region_end, what the calling thread allocates on the device belongs to the region, which
 * is made if need be; regions nest, the innermost serves. Not to be called while a stream is captured.
 * Errors: SPW_ERROR_INVALID_ARGUMENT (the tag, no such device), SPW_ERROR_INVALID_STATE (the region is not on
 * the device), SPW_ERROR_UNSUPPORTED (debug:guard, backend:malloc, no VMM), SPW_ERROR_DRIVER. */
SPW_API spw_status spw_region_begin(int device, const char* tag);
/* By the same thread, innermost first. Errors: SPW_ERROR_INVALID_STATE. */
SPW_API spw_status spw_region_end(int device, const char* tag);

/* From here to spw_region_end_none, what the calling thread allocates, on any device, belongs to no region.
 * Both nest with regions. Errors: SPW_ERROR_INVALID_STATE (a region is innermost). */
SPW_API spw_status spw_region_begin_none(void);
SPW_API spw_status spw_region_end_none(void);

/* From here on, what a thread allocates where it has no region open, and no pool serves, belongs to this
 * region: of all threads, on each device that was used, and on others as soon as they are. NULL ends it. Such
 * a region cannot be moved: another is made the default first, and nothing is allocated in between. Errors:
 * as spw_region_begin, SPW_ERROR_INVALID_STATE (a thread has it open, or the one that was), and nothing
 * changes. */
SPW_API spw_status spw_region_set_default(const char* tag);

/* The region's pool, for those who open pools by id: graphs that are captured into it stay valid when it
 * comes back. Errors: as spw_region_begin. */
SPW_API spw_status spw_region_pool(int device, const char* tag, spw_pool_id* id);

/* Moves everything in the region off the device, after waiting for all of the context's work, and gives its
 * memory back. Its blocks can be freed meanwhile, but not used. Room is found and every copy complete before
 * a byte of the device is given up. Errors: SPW_ERROR_INVALID_STATE (no such region, not on the device, open,
 * pinned, a stream is being captured or may be), SPW_ERROR_OUT_OF_MEMORY (no room there),
 * SPW_ERROR_UNSUPPORTED (no spill_dir), SPW_ERROR_IO, SPW_ERROR_DRIVER, SPW_ERROR_INVALID_ARGUMENT (the
 * tier). */
SPW_API spw_status spw_region_evict(int device, const char* tag, spw_tier tier);
/* Brings it back, each block to its address. Others give what they can to make room. Errors:
 * SPW_ERROR_INVALID_STATE (no such region, on the device already), SPW_ERROR_OUT_OF_MEMORY (no room on the
 * device), SPW_ERROR_DATA_LOST (bytes cannot be read as they were written: everything stays out, nothing
 * wrong is given to the program, and the text says which addresses; when the blocks there are freed, and no
 * graph is left that was captured into the region, the rest can be brought back), SPW_ERROR_IO,
 * SPW_ERROR_DRIVER. */
SPW_API spw_status spw_region_restore(int device, const char* tag);
/* Begins that, in the background; spw_region_restore waits for it and says how it went. Errors:
 * SPW_ERROR_INVALID_STATE, SPW_ERROR_IO (no thread). */
SPW_API spw_status spw_region_prefetch(int device, const char* tag);

/* Copies `bytes` at `address` of a region that is elsewhere to `out` in host memory. They stay there as well,
 * and the device is not used. Errors: SPW_ERROR_INVALID_STATE (no such region, on the device, the bytes were
 * not kept), SPW_ERROR_INVALID_ARGUMENT (NULL, the bytes are not of the region), SPW_ERROR_DATA_LOST,
 * SPW_ERROR_IO. */
SPW_API spw_status spw_region_read(int device, const char* tag, const void* address, size_t bytes, void* out);

/* While it is pinned a region cannot leave: for memory that others know by its physical place (a network
 * library's registration, another process). It must be on the device. Counted. Errors:
 * SPW_ERROR_INVALID_STATE. */
SPW_API spw_status spw_region_pin(int device, const char* tag);
SPW_API spw_status spw_region_unpin(int device, const char* tag);

/* Above 0, an allocation that would fail may evict the region to host memory, those of the highest priority
 * first, then those that were used (begun, restored, pinned) longest ago. The program promises to pin it, or
 * bring it back, before it uses it. 0, the default, is never. Errors: SPW_ERROR_INVALID_STATE (no such
 * region), SPW_ERROR_INVALID_ARGUMENT. */
SPW_API spw_status spw_region_set_priority(int device, const char* tag, int priority);

/* What packs a region's bytes on their way to the disk, without loss. */
typedef enum spw_codec {
  SPW_CODEC_NONE = 0,
  SPW_CODEC_LZ4 = 1, /* fast */
  SPW_CODEC_ZSTD = 2 /* smaller: level 1 */
} spw_codec;

/* Instead of the option spill_codec. Pieces of 2 MiB are packed, with the bytes of their numbers shuffled,
 * where that is measured to be faster than to write them, or spill_daily_writes bounds what is written; what
 * does not pay is tried ever more rarely. Errors: SPW_ERROR_INVALID_STATE (no such region),
 * SPW_ERROR_INVALID_ARGUMENT (the codec). */
SPW_API spw_status spw_region_set_codec(int device, const char* tag, spw_codec codec);

/* Forgets the region: its blocks live on until they are freed, and cannot move any more. One that is
 * elsewhere stays there for ever: its blocks can only be freed, and spw_trim gives up the copies of what was
 * freed. Errors: SPW_ERROR_INVALID_STATE (no such region, open). */
SPW_API spw_status spw_region_release(int device, const char* tag);

#define SPW_REGION_STATS_VERSION 1

/* Bytes are of segments: whole pages. */
typedef struct spw_region_stats {
  uint32_t size;    /* in: sizeof(spw_region_stats) as the caller was built; out: bytes filled */
  uint32_t version; /* out: SPW_REGION_STATS_VERSION of the library */
  uint64_t device_bytes;
  uint64_t host_bytes;
  uint64_t disk_bytes;
  uint64_t discarded_bytes;
  uint64_t lost_bytes;
  uint64_t pins;
  int64_t priority;
  uint64_t evictions; /* that succeeded */
  uint64_t restores;
  uint64_t evict_ns; /* spent on them */
  uint64_t restore_ns;
} spw_region_stats;

SPW_API spw_status spw_region_stats_get(int device, const char* tag, spw_region_stats* stats);
/* Calls `visit` for every region of the device, by tag, until it answers non-zero. No lock is held. It must
 * not throw. */
typedef int (*spw_region_visitor)(const char* tag, const spw_region_stats* stats, void* context);
SPW_API spw_status spw_region_walk(int device, spw_region_visitor visit, void* context);

/* ---- Phases ---- */

/* What the program does from here on. "idle": nothing that needs the device soon. Where Spillway holds more
 * than the option evict_above there, it gives back what it keeps for later, then evicts regions with a
 * priority to host memory, as an allocation that would fail does, until it holds no more than evict_below.
 * "busy": what it had kept for later and gave back in the idle phase before is taken from the driver again,
 * as far as there is room, so that requests need not; regions stay where they are. *given_bytes (may be NULL)
 * is how much device memory was given back. Waits for the device where something is. Errors:
 * SPW_ERROR_INVALID_ARGUMENT (the phase, no such device), SPW_ERROR_INVALID_STATE (a stream is being
 * captured), SPW_ERROR_UNSUPPORTED, SPW_ERROR_DRIVER. */
SPW_API spw_status spw_phase(int device, const char* phase, uint64_t* given_bytes);

/* ---- Stashes ---- */

typedef struct spw_stash spw_stash;

/* The streams that stashes are copied on, out of the device and back. They live as long as the program. */
SPW_API spw_status spw_stash_streams(int device, spw_stream* out, spw_stream* in);

/* Begins to copy `bytes` at `pointer`, as they are when what is enqueued on `stream` is done, and returns.
 * The memory must stay, unchanged, until the `out` stream has come so far: for its free, spw_record_stream on
 * that stream says so. With
 * SPW_TIER_DISK, a thread writes it down as soon as it is in host memory. *stash is the caller's. Errors:
 * SPW_ERROR_OUT_OF_MEMORY (no room now: keep it on the device), SPW_ERROR_UNSUPPORTED (no spill_dir),
 * SPW_ERROR_INVALID_ARGUMENT, SPW_ERROR_INVALID_STATE (the stream is being captured), SPW_ERROR_DRIVER. */
SPW_API spw_status spw_stash_put(int device, const void* pointer, size_t bytes, spw_stream stream,
                                 spw_tier tier, spw_stash** stash);
/* Begins to copy it back to `pointer`, when what is enqueued on `stream` is done, and returns: the memory may
 * have been used there before. The copy is enqueued on the `in` stream when spw_stash_finish_get returns, or
 * never when spw_stash_free has returned before: the memory must stay until one of them has, and until that
 * stream has come so far. One at a time. Errors: SPW_ERROR_INVALID_STATE (begun already),
 * SPW_ERROR_DATA_LOST, SPW_ERROR_IO, SPW_ERROR_DRIVER. */
SPW_API spw_status spw_stash_begin_get(spw_stash* stash, void* pointer, spw_stream stream);
/* What is enqueued on `stream` from now on comes after the copy. *late (may be NULL): whether the copy was
 * still under way. Errors: those above; the copy must not be used then. */
SPW_API spw_status spw_stash_finish_get(spw_stash* stash, spw_stream stream, int* late);
/* Gives it up, once no copy needs it, at any time but during a call that uses it; no copy is enqueued for it
 * afterwards. NULL is allowed. */
SPW_API void spw_stash_free(spw_stash* stash);

/* ---- Tiers ---- */

#define SPW_TIER_STATS_VERSION 1

typedef struct spw_tier_stats {
  uint32_t size;    /* in: sizeof(spw_tier_stats) as the caller was built; out: bytes filled */
  uint32_t version; /* out: SPW_TIER_STATS_VERSION of the library */
  uint64_t region_host_bytes;
  uint64_t region_disk_bytes;
  uint64_t stash_host_bytes;
  uint64_t stash_disk_bytes;
  uint64_t stashes;
  uint64_t stash_puts; /* since the device was first used, like those below */
  uint64_t stash_gets;
  uint64_t late_gets; /* the program asked before the bytes were back */
  uint64_t refused_puts;
  uint64_t out_bytes; /* copied off the device */
  uint64_t in_bytes;
  uint64_t disk_written_bytes;
  uint64_t disk_read_bytes;
  uint64_t disk_zero_bytes; /* that were all zero and not written */
  uint64_t disk_verified_bytes;
  uint64_t disk_mismatches;
  uint64_t disk_repeated_writes;
  uint64_t disk_failed_writes;
  uint64_t disk_file_bytes;
  uint64_t disk_limit_bytes; /* UINT64_MAX when unlimited */
  uint64_t disk_saved_bytes; /* that packing spared */
  uint64_t disk_today_bytes; /* written on this day (UTC), or about to be: what spill_daily_writes bounds */
  uint64_t disk_daily_limit_bytes; /* UINT64_MAX when unlimited */
  uint64_t stuck_bytes;            /* of regions that are elsewhere, and the driver refused to take back */
  uint64_t lasting_error; /* of the driver (CUresult), since which nothing is moved any more; 0: none */
} spw_tier_stats;

SPW_API spw_status spw_tier_stats_get(int device, spw_tier_stats* stats);

#define SPW_DISK_SPEED_VERSION 1

typedef struct spw_disk_speed {
  uint32_t size;    /* in: sizeof(spw_disk_speed) as the caller was built; out: bytes filled */
  uint32_t version; /* out: SPW_DISK_SPEED_VERSION of the library */
  double write_bytes_per_s;
  double read_bytes_per_s;
  double write_cpu_s; /* of this process, for all bytes */
  double read_cpu_s;
  uint64_t bytes; /* that were written, and read */
  uint64_t block_bytes;
  uint64_t depth;
  int64_t is_direct; /* past the page cache */
  char engine[256];  /* what served, and why nothing better did */
  char warning[256]; /* what a user should know of the directory; empty where all is well */
} spw_disk_speed;

#define SPW_TUNE_UNKNOWN 2

/* Writes `bytes`, rounded up to a multiple of 2 MiB, to a nameless file in the directory and reads them
 * again, with the options of spilling in force there; with `tune` not 0, with the block size and the depth
 * that serve it best, for which up to 5 s more are spent, and which are kept for later programs (option
 * spill_tuning). SPW_TUNE_UNKNOWN: only where nothing is kept of that disk, and the options leave it open.
 * Needs no device. Errors: SPW_ERROR_IO, SPW_ERROR_OUT_OF_MEMORY (no room), SPW_ERROR_INVALID_ARGUMENT (NULL,
 * 0 bytes). */
SPW_API spw_status spw_disk_measure(const char* directory, uint64_t bytes, int tune, spw_disk_speed* speed);

#ifdef __cplusplus
}
#endif
#endif
