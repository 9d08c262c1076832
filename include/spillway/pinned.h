/* Pinned host memory: memory of the host that devices copy from and to at full speed. It is pinned in chunks,
 * which are divided as programs ask: nothing is rounded to powers of two. A block that streams use serves
 * again when they are done with it. The option pinned_limit bounds what is pinned, and so does the memory
 * that the host has left; where pinning is refused, no more is tried until some went back, spw_pinned_trim(),
 * or the option is set anew. */
#ifndef SPILLWAY_PINNED_H
#define SPILLWAY_PINNED_H

#include <stddef.h>
#include <stdint.h>

#include "spillway/spillway.h"
#include "spillway/stats.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *out is a multiple of 512, from 64 KiB on of 4096, and NULL when bytes is 0. Every context may use the
 * block; `device` is one that has a context. Errors: SPW_ERROR_OUT_OF_MEMORY (the limit, the host, or the
 * driver), SPW_ERROR_INVALID_ARGUMENT (no such device, `out` is NULL), SPW_ERROR_INVALID_STATE (the device
 * has no context), SPW_ERROR_UNSUPPORTED (in a child of fork), SPW_ERROR_DRIVER. */
SPW_API spw_status spw_pinned_alloc(size_t bytes, int device, void** out);

/* NULL is allowed. The memory waits for the streams that the block was recorded on. A block that is freed
 * while one of them is being captured belongs to that graph, and serves nothing again. Errors:
 * SPW_ERROR_INVALID_POINTER (no block begins there). */
SPW_API spw_status spw_pinned_free(void* pointer);

/* The block around `pointer` is used by what is enqueued on `stream`, a stream of `device`, until it is
 * freed. Errors: SPW_ERROR_INVALID_POINTER (in no block), SPW_ERROR_INVALID_ARGUMENT (no such device),
 * SPW_ERROR_INVALID_STATE (the device has no context). */
SPW_API spw_status spw_pinned_record_stream(const void* pointer, int device, spw_stream stream);

/* Unpins the chunks that nothing is in any more, neither a block nor what was moved out of a device nor a
 * copy on its way to the disk, and gives them back to the host; pins that were refused may be tried again. */
SPW_API spw_status spw_pinned_trim(void);

/* Errors: SPW_ERROR_INVALID_ARGUMENT (stats is NULL, or its size too small). */
SPW_API spw_status spw_pinned_stats_get(spw_pinned_stats* stats);
SPW_API spw_status spw_pinned_stats_reset_peaks(void);
SPW_API spw_status spw_pinned_stats_reset_accumulated(void);

#ifdef __cplusplus
}
#endif
#endif
