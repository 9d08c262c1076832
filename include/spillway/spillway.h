/* The C ABI of Spillway, a caching allocator for CUDA device memory.
 *
 * Every function may be called from any thread at any time, returns a spw_status (or what it says), and never
 * throws, exits or aborts. An error leaves everything as it was, and its text is spw_last_error() of the same
 * thread. Device memory is taken from the context that is current in the calling thread or else from the
 * device's primary context, which the program must have made active; Spillway creates no context.
 *
 * Structures begin with their size, filled in by the caller, so that programs built against an older header
 * keep working. */
#ifndef SPILLWAY_H
#define SPILLWAY_H

#include <stddef.h>
#include <stdint.h>

#include "spillway/stats.h"
#include "spillway/status.h"

#define SPW_VERSION_MAJOR 0
#define SPW_VERSION_MINOR 1
#define SPW_VERSION_PATCH 0

#if defined(__GNUC__)
#define SPW_API __attribute__((visibility("default")))
#else
#define SPW_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A CUstream or cudaStream_t. NULL is the legacy default stream. */
typedef struct CUstream_st* spw_stream;

/* ---- Memory ---- */

/* Allocates `bytes` on a device for use on `stream` first. *out is a multiple of 512, and NULL when bytes is
 * 0. Errors: SPW_ERROR_OUT_OF_MEMORY, with a report as text; SPW_ERROR_INVALID_ARGUMENT (no such device,
 * `out` is NULL, the stream is of another context: docs/devices.md); SPW_ERROR_INVALID_STATE (the device has
 * no context); SPW_ERROR_DRIVER; SPW_ERROR_CONFIG (see `strict`). */
SPW_API spw_status spw_alloc(size_t bytes, int device, spw_stream stream, void** out);

/* Gives a block back, whichever device it is on. Work already enqueued on its stream may still use it. NULL
 * is allowed. Errors: SPW_ERROR_INVALID_POINTER (foreign, freed before, or inside a block). */
SPW_API spw_status spw_free(void* pointer);

/* The block is also used by what is enqueued on `stream` until it is freed: its memory waits for that work
 * too. NULL is allowed. Errors: SPW_ERROR_INVALID_POINTER, SPW_ERROR_INVALID_ARGUMENT (the stream is of
 * another context than the block's). */
SPW_API spw_status spw_record_stream(void* pointer, spw_stream stream);

/* To be called before cuStreamDestroy, when nothing more will be enqueued on the stream: the driver gives its
 * handle to another and faults where it is named meanwhile, and this call keeps the two apart. What is free
 * of its memory serves other streams from then on, in order; its blocks, and those it was recorded on, stay
 * valid until they are freed. A stream that no memory was asked for on is ok, and so is a default stream.
 * Errors: SPW_ERROR_INVALID_ARGUMENT (no such device), SPW_ERROR_DRIVER. */
SPW_API spw_status spw_stream_destroyed(int device, spw_stream stream);

/* For a stream that another library owns, and may destroy without a word; to be called before the first
 * spw_alloc on it. Spillway names it to the driver then only in calls that name it, each of which asks the
 * driver once more which stream it is, and what it frees serves other streams after a wait of the host alone.
 * With `check_streams:on` that is so for each stream. Calling it again costs little. Errors:
 * SPW_ERROR_INVALID_ARGUMENT (no such device), SPW_ERROR_INVALID_STATE (the device has no context). */
SPW_API spw_status spw_stream_ends_unseen(int device, spw_stream stream);

/* Waits until all that is enqueued on `stream` of `device` is done. A block that was allocated on it may be
 * used by every stream then, and by the host where it can reach it. Errors: SPW_ERROR_INVALID_ARGUMENT (no
 * such device), SPW_ERROR_INVALID_STATE (the device has no context), SPW_ERROR_DRIVER (the stream is being
 * captured, or an earlier error of the program's). */
SPW_API spw_status spw_stream_synchronize(int device, spw_stream stream);

/* Gives every page without live bytes back to the driver, after waiting for the device, and to the disk what
 * of the spill file nothing is in. Errors: SPW_ERROR_INVALID_STATE (a stream is being captured),
 * SPW_ERROR_DRIVER. */
SPW_API spw_status spw_trim(int device);
/* Waits for the device as spw_trim does, and keeps the memory: what is free serves every stream and pool from
 * here on without a wait. Only what exceeds a limit goes back, and on a device that is full what lacks to
 * 1/64 of it, at most 256 MiB, that the driver may want for a graph. With debug:guard and with backend:malloc
 * it is spw_trim. Errors: as spw_trim. */
SPW_API spw_status spw_settle(int device);

/* Makes all memory that Spillway holds on `device`, now and later, usable from device `peer` (kernels and
 * copies there). One direction; again is ok; it cannot be undone. Errors: SPW_ERROR_INVALID_ARGUMENT (no such
 * device, or twice the same), SPW_ERROR_UNSUPPORTED (the devices are no peers, or MIG instances),
 * SPW_ERROR_INVALID_STATE (a device has no context), SPW_ERROR_DRIVER. */
SPW_API spw_status spw_enable_peer(int device, int peer);

/* The most device memory to hold, in bytes. Below what is held, pages without live bytes go back to the
 * driver, now, behind a wait for the device, and as more come free at the next allocation, until the limit is
 * kept; while a stream is being captured none go. Blocks stay. UINT64_MAX is unlimited. The same as the
 * option `limit`, for one device. */
SPW_API spw_status spw_set_limit(int device, uint64_t bytes);
SPW_API spw_status spw_get_limit(int device, uint64_t* bytes);

/* What the device has, and what an allocation could still get: free by the driver's account or held by
 * Spillway without a byte in use, within the limit and without `reserve`. Either pointer may be NULL. */
SPW_API spw_status spw_memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes);
/* The same for who counts what Spillway holds by itself, as PyTorch does: all of it is taken, in use or not.
 * In whole pages. */
SPW_API spw_status spw_untaken_memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes);

/* Called when an allocation on `device` finds no memory, even behind a wait of the host, before it fails: the
 * program may free, and trim. `bytes` is how much is missing. Answers how many bytes it gave back, 0 for
 * none; the allocation is tried again where that is not 0, and calls again, a few times at most. Called by
 * the allocating thread, by several at a time, with no lock held; it must not throw. An allocation inside it
 * is served from what Spillway holds, or fails: it calls nobody. Allocations of a stream under capture call
 * nobody either. */
typedef uint64_t (*spw_oom_callback)(int device, uint64_t bytes, void* context);

/* Callbacks are called in the order in which they were added. Errors: SPW_ERROR_INVALID_ARGUMENT (`callback`
 * is NULL), SPW_ERROR_INVALID_STATE (added already with this context), those of spw_alloc's first use. */
SPW_API spw_status spw_add_oom_callback(int device, spw_oom_callback callback, void* context);
/* When it returns, no call is in progress and none will begin; removed inside a callback, that call alone
 * goes on. Errors: SPW_ERROR_INVALID_STATE (no such callback). */
SPW_API spw_status spw_remove_oom_callback(int device, spw_oom_callback callback, void* context);

/* ---- Other processes: docs/devices.md ---- */

/* As spw_alloc, for memory that another process or a network card is to use: an extent of its own of 32 MiB
 * and more, in which no other block lies, registrable for GPUDirect RDMA where the device can. spw_free frees
 * it. Slow: several driver calls. Not guarded by debug:guard. Further errors: SPW_ERROR_UNSUPPORTED (a MIG
 * instance, no virtual memory management, backend:malloc), SPW_ERROR_INVALID_STATE (the stream is being
 * captured). */
SPW_API spw_status spw_alloc_shareable(size_t bytes, int device, spw_stream stream, void** out);

/* A POSIX file descriptor for the extent around `pointer`, which lies in a live block of spw_alloc_shareable.
 * The caller closes it, and sends it to the other process (SCM_RIGHTS). *offset is that of `pointer` in the
 * extent, *bytes the extent's size. The memory lives until every process has let go of it; once exported it
 * is not used for another block. Errors: SPW_ERROR_INVALID_POINTER (a plain block, or none),
 * SPW_ERROR_INVALID_ARGUMENT (NULL), SPW_ERROR_DRIVER. */
SPW_API spw_status spw_export_fd(const void* pointer, int* fd, uint64_t* offset, uint64_t* bytes);

/* Maps an extent that another process exported, for use by `device`. *out is the extent's beginning; `bytes`
 * is what spw_export_fd said. The descriptor stays the caller's and may be closed. The memory counts where it
 * was made. Errors: SPW_ERROR_INVALID_ARGUMENT, SPW_ERROR_UNSUPPORTED, SPW_ERROR_DRIVER (no such descriptor).
 */
SPW_API spw_status spw_import_fd(int fd, uint64_t bytes, int device, void** out);

/* Lets go of an extent of spw_import_fd, by its beginning, after waiting for the device. NULL is allowed.
 * Errors: SPW_ERROR_INVALID_POINTER, SPW_ERROR_INVALID_STATE (a stream is being captured, or may be: a pool
 * is open), SPW_ERROR_DRIVER.
 */
SPW_API spw_status spw_import_close(void* pointer);

/* Names an ordinary block of spw_alloc to other processes of the same user on this machine, as
 * cudaIpcMemHandle_t names one of cudaMalloc. Bytes to be sent on; equal for blocks that are named alike. */
typedef struct spw_ipc_handle {
  unsigned char bytes[64];
} spw_ipc_handle;

/* The block that begins at `pointer`, which must live until every process has closed the handle: its pages
 * serve others after its free. Who opens the handle can use those pages whole, with what else of this process
 * lies in the first and the last. *offset, in bytes, is that of the block in what spw_ipc_open_handle gives.
 * The first call starts a thread, which answers those who open. Errors: SPW_ERROR_INVALID_POINTER (no
 * ordinary block in use begins there), SPW_ERROR_UNSUPPORTED (as spw_alloc_shareable; ipc:off), SPW_ERROR_IO,
 * SPW_ERROR_INVALID_ARGUMENT (NULL). */
SPW_API spw_status spw_ipc_get_handle(const void* pointer, spw_ipc_handle* handle, uint64_t* offset);

/* Maps the pages of a handle for use by `device`; *out is their beginning, the same for the same pages while
 * they are open. The process that made the handle must be alive, the block in use. Each call is undone by
 * spw_ipc_close_handle. Errors: SPW_ERROR_INVALID_ARGUMENT (no handle, or one of this process itself),
 * SPW_ERROR_IO (that process cannot be reached), SPW_ERROR_INVALID_POINTER and SPW_ERROR_INVALID_STATE (the
 * block was freed), SPW_ERROR_UNSUPPORTED, SPW_ERROR_DRIVER. */
SPW_API spw_status spw_ipc_open_handle(const spw_ipc_handle* handle, int device, void** out);

/* The last one for a pointer waits for the device and unmaps; while a stream is captured, or a pool open, a
 * later call does. NULL is allowed. Errors: SPW_ERROR_INVALID_POINTER. */
SPW_API spw_status spw_ipc_close_handle(void* pointer);

/* ---- Pools ---- */

/* A pool's memory is its own until the pool is released. {0, 0} is the default pool and cannot be opened. */
typedef struct spw_pool_id {
  uint64_t first;
  uint64_t second;
} spw_pool_id;

/* Whether a request on this stream belongs to the pool: non-zero if so. Called by the allocating thread, with
 * no lock held, and once about a stream that it never saw; it must not throw. */
typedef int (*spw_pool_filter)(spw_stream stream, void* context);

/* From here to spw_pool_end, requests of any thread that `filter` accepts (all, if it is NULL) are served
 * from the pool. `context` must live until spw_pool_end. Errors: SPW_ERROR_INVALID_ARGUMENT,
 * SPW_ERROR_INVALID_STATE (already open). */
SPW_API spw_status spw_pool_begin(int device, spw_pool_id id, spw_pool_filter filter, void* context);
/* When it returns, no call of the pool's filter is in progress and none will begin; so it must not be called
 * with a lock held that a filter takes. Inside a filter, that call alone goes on. Errors:
 * SPW_ERROR_INVALID_STATE (not open). */
SPW_API spw_status spw_pool_end(int device, spw_pool_id id);
/* Undoes one spw_pool_begin's claim on the memory; after the last, what is free serves everyone.
 * Errors: SPW_ERROR_INVALID_STATE (no such pool, or still open). */
SPW_API spw_status spw_pool_release(int device, spw_pool_id id);

/* One claim more on the pool's memory without opening it; the pool exists from its first claim on. Each is
 * undone by spw_pool_release. Errors: SPW_ERROR_INVALID_ARGUMENT. */
SPW_API spw_status spw_pool_retain(int device, spw_pool_id id);
/* Whether what is free in the pool serves others, from whichever thread, where an allocation would fail
 * otherwise; 0 (as at first) is no. What was lent is not the pool's again. A pool that graphs were captured
 * in must not lend: their replays would write to it. Ends with the pool. Errors: SPW_ERROR_INVALID_STATE (no
 * such pool). */
SPW_API spw_status spw_pool_lend(int device, spw_pool_id id, int lends);
/* How many claims there are: 0 for a pool that does not exist. */
SPW_API spw_status spw_pool_claims(int device, spw_pool_id id, uint64_t* claims);
/* As spw_trim, of the memory of this pool alone, which must have been released or be a region's; what others
 * have cached stays. A pool without memory is ok, and costs no wait. Errors: as spw_trim. */
SPW_API spw_status spw_pool_trim(int device, spw_pool_id id);

/* Calls `visit` for each private pool, with the bytes of device memory that it holds, until it answers
 * non-zero. A pool that was released holds none; it is visited until peaks and running totals were reset
 * (spw_stats_reset_peaks, spw_stats_reset_accumulated). With no lock held; it must not throw. */
typedef int (*spw_pool_visitor)(const spw_pool_id* id, const spw_stat* bytes, void* context);
SPW_API spw_status spw_walk_pools(int device, spw_pool_visitor visit, void* context);

/* Gives `bytes` of device memory that `stream` may use at once, for a pool; NULL when there are none. */
typedef void* (*spw_segment_alloc)(size_t bytes, spw_stream stream, void* context);
/* Takes back what it gave; nothing uses it any more. */
typedef void (*spw_segment_free)(void* pointer, size_t bytes, void* context);

/* A pool's memory comes from these functions from now on, in segments of 2 MiB and more which Spillway
 * divides, instead of from the device: for allocators whose memory a network library can use, as NCCL's. It
 * counts as memory of the device. What is free goes back when the pool is released, behind a wait for the
 * device, the rest in trims; until then all of it is kept. The functions are called by any thread, with no
 * lock held; they must not throw, and must work as long as the program. Inside them no pool with a source
 * serves. Errors: SPW_ERROR_INVALID_ARGUMENT (NULL), SPW_ERROR_INVALID_STATE (no such pool, or it has memory
 * or a source already). */
SPW_API spw_status spw_pool_set_source(int device, spw_pool_id id, spw_segment_alloc alloc,
                                       spw_segment_free free, void* context);
/* Each block of a pool with a source has a segment of its own from now on, for programs that register each
 * block by the allocation that it lies in. A segment whose block is free serves requests of half its bytes
 * and more. Of a pool without a source nobody sees segments, and it stays as it is. Errors:
 * SPW_ERROR_INVALID_STATE (no such pool, or it has served blocks already). */
SPW_API spw_status spw_pool_set_no_split(int device, spw_pool_id id);

/* ---- Blocks ---- */

typedef enum spw_block_state {
  SPW_BLOCK_INACTIVE = 0,     /* free */
  SPW_BLOCK_ALLOCATED = 1,    /* in the program's hands */
  SPW_BLOCK_PENDING_FREE = 2, /* freed, still used by a stream */
} spw_block_state;

typedef struct spw_block {
  uint64_t address;
  uint64_t bytes;           /* of device memory */
  uint64_t requested_bytes; /* what the program asked for; 0 when free */
  spw_block_state state;
} spw_block;

/* ---- States of pools: docs/decisions/pool-checkpoints.md ---- */

/* Which blocks of a pool the program had at one moment, and where. It holds no device memory. */
typedef struct spw_pool_state spw_pool_state;

/* *out is the caller's, for spw_pool_state_free. Blocks in host memory belong to no pool. Errors:
 * SPW_ERROR_INVALID_STATE (no such pool), SPW_ERROR_INVALID_ARGUMENT (NULL), SPW_ERROR_UNSUPPORTED
 * (debug:guard, a pool with a source of its own). */
SPW_API spw_status spw_pool_checkpoint(int device, spw_pool_id id, spw_pool_state** out);

/* A block that spw_pool_restore freed (SPW_BLOCK_INACTIVE) or allocated (SPW_BLOCK_ALLOCATED), and the stream
 * that it belongs to. It must not throw. */
typedef void (*spw_restore_visitor)(const spw_block* block, spw_stream stream, void* context);

/* Frees every block of the pool that the program has, and allocates those of the state again at their
 * addresses: all of it at once, or nothing. A block of both is freed and allocated without being touched. The
 * bytes of a block are what was written there last. Nothing is waited for, mapped or unmapped, so graphs over
 * the pool's memory may be in replay. A state can be restored any number of times.
 *
 * Afterwards `visit` (may be NULL) is called for all that was freed, then for all that was allocated, with no
 * lock held. Errors: SPW_ERROR_INVALID_STATE (the pool was released since; or memory of the state was freed
 * since, and a stream that was recorded on it still uses it), SPW_ERROR_INVALID_ARGUMENT (NULL). */
SPW_API spw_status spw_pool_restore(const spw_pool_state* state, spw_restore_visitor visit, void* context);

/* NULL is allowed. No other call may be using the state. */
SPW_API void spw_pool_state_free(spw_pool_state* state);

/* ---- What is where ---- */

/* Contiguous addresses of one heap, divided into blocks. */
typedef struct spw_segment {
  uint64_t address;
  uint64_t total_bytes;
  uint64_t allocated_bytes;
  uint64_t active_bytes;
  uint64_t requested_bytes;
  spw_stream stream;
  spw_pool_id pool;
  const spw_block* blocks; /* ascending, without gaps; valid during the call */
  uint64_t block_count;
} spw_segment;

/* Calls `visit` for each segment of the device, by heap; their total_bytes add up to reserved_bytes. The
 * state is that of one moment; `visit` is called afterwards, with no lock held, until it answers non-zero. It
 * must not throw. Slow. */
typedef int (*spw_segment_visitor)(const spw_segment* segment, void* context);
SPW_API spw_status spw_walk(int device, spw_segment_visitor visit, void* context);

/* The block that begins at `pointer`, allocated or pending, and its device. Errors: SPW_ERROR_INVALID_POINTER
 * (none does), SPW_ERROR_INVALID_ARGUMENT (NULL). */
SPW_API spw_status spw_find_block(const void* pointer, spw_block* block, int* device);
/* The stream and the pool that the block at `pointer` is of: of the requests that its memory serves without
 * a wait once it is free. Either may be NULL. Errors: SPW_ERROR_INVALID_POINTER (no block begins there). */
SPW_API spw_status spw_find_owner(const void* pointer, spw_stream* stream, spw_pool_id* pool);

/* ---- Counters ---- */

/* stats->size must be sizeof(spw_stats) as the caller was compiled; a smaller, older size is filled as far as
 * it goes. */
SPW_API spw_status spw_stats_get(int device, spw_stats* stats);
SPW_API spw_status spw_stats_reset_peaks(int device);
SPW_API spw_status spw_stats_reset_accumulated(int device);

/* What the program knows of its memory, beside the counters: `bytes` of a device are for `name`, until it is
 * said anew; 0 is a value too. Names are those of the program; spillway.annotate() in Python writes
 * parameter_bytes, gradient_bytes, buffer_bytes and optimizer_bytes. Dumps show them. Errors:
 * SPW_ERROR_INVALID_ARGUMENT (no such device; a name is 1 to 64 lower-case letters, digits and `_`; a 65th
 * name), SPW_ERROR_DRIVER. */
SPW_API spw_status spw_annotate(int device, const char* name, uint64_t bytes);
/* *bytes is 0 for what was never said. Errors: as spw_annotate. */
SPW_API spw_status spw_annotation(int device, const char* name, uint64_t* bytes);

/* With the option trace: puts a mark into the trace, such as the beginning of a step or a phase; text beyond
 * 256 bytes is left out. Without it, nothing. Errors: SPW_ERROR_INVALID_ARGUMENT (`text` is NULL). */
SPW_API spw_status spw_trace_mark(const char* text);
/* The name under which the calling thread's next allocations are recorded, until it is said anew; NULL for
 * none. */
SPW_API spw_status spw_trace_tag(const char* name);

/* Walks everything, derives every counter again and compares. Slow. Errors: SPW_ERROR_INTERNAL, with the
 * first difference. */
SPW_API spw_status spw_validate(int device);

/* With the option debug:guard: waits for the device, and checks every block in use or in quarantine for
 * writes outside of it and after its free. Each finding is reported on stderr when it is made. *findings (may
 * be NULL) is how many there were on this device since the program began, wrong frees included. Slow. Errors:
 * SPW_ERROR_INVALID_STATE (no debug:guard, or a stream is being captured), SPW_ERROR_DRIVER. */
SPW_API spw_status spw_guard_check(int device, uint64_t* findings);

/* Writes counters, segments and blocks of every device used, with the configuration in force: docs/dumps.md.
 * The file appears whole or not at all. `path`: %p becomes the process id, %r the rank (RANK, else 0), %t the
 * time in seconds, %d the device, one file each, %% a percent sign. `format`: "json", "prometheus" (text),
 * "pickle" (a memory snapshot of PyTorch's), or NULL for what the path's ending says: .prom, .pickle, else
 * JSON. Errors: SPW_ERROR_INVALID_ARGUMENT, SPW_ERROR_IO. */
SPW_API spw_status spw_dump(const char* path, const char* format);

/* ---- Configuration: docs/configuration.md ---- */

/* "option:value,option:value". All of it takes effect or none. Options that are not run-time writable can be
 * set until the first use of a device. Errors: SPW_ERROR_CONFIG, SPW_ERROR_INVALID_STATE (too late for this
 * option). */
SPW_API spw_status spw_conf_set(const char* text);

/* The value in force of one option, or, with name NULL, of all in the form that spw_conf_set reads. Writes at
 * most `size` bytes, the closing zero included; *needed (may be NULL) is the size that would hold all of it.
 * Errors: SPW_ERROR_CONFIG (no such option), SPW_ERROR_INVALID_ARGUMENT (buffer too small, nothing written).
 */
SPW_API spw_status spw_conf_get(const char* name, char* buffer, size_t size, size_t* needed);

/* The table of options as Markdown: docs/configuration.md. Valid as long as the library is loaded. */
SPW_API const char* spw_conf_describe(void);

/* ---- This library ---- */

/* The text of the calling thread's last error, "" before the first. Valid until this thread's next call. */
SPW_API const char* spw_last_error(void);
/* "SPW_ERROR_OUT_OF_MEMORY", or "unknown status". */
SPW_API const char* spw_status_name(spw_status status);
/* "0.1.0". */
SPW_API const char* spw_version(void);

#ifdef __cplusplus
}
#endif
#endif
