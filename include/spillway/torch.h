/* What PyTorch calls when Spillway is its pluggable allocator (torch.cuda.memory.CUDAPluggableAllocator): for
 * programs without the extension that answers everything. A program hands their addresses to PyTorch and
 * calls none of them.
 *
 * A hook has no way to return an error, and none throws but spw_torch_alloc: what goes wrong elsewhere costs
 * one line on stderr. All are thread-safe. `stream` is a cudaStream_t. */
#ifndef SPILLWAY_TORCH_H
#define SPILLWAY_TORCH_H

#include <stddef.h>

#include "spillway/spillway.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NULL for size 0 and for nothing else. Throws a std::exception: for want of memory its text begins `CUDA out
 * of memory`, else `spillway:`. A device is made a peer of those used before, where the hardware can, since
 * PyTorch asks for that without a hook. */
SPW_API void* spw_torch_alloc(size_t bytes, int device, spw_stream stream);
/* The same, but NULL for want of memory: for the segments of a torch.cuda.MemPool beside PyTorch's own
 * allocator, which then frees what it can and asks again. */
SPW_API void* spw_torch_alloc_segment(size_t bytes, int device, spw_stream stream);
/* NULL is allowed. */
SPW_API void spw_torch_free(void* pointer, size_t bytes, int device, spw_stream stream);

SPW_API void spw_torch_init(int device_count);
/* torch.cuda.empty_cache(), for all devices. Nothing happens to one whose streams are being captured. */
SPW_API void spw_torch_reset(void);
/* The same for one device, with its errors: spw_trim, or spw_settle where this thread is about to capture. */
SPW_API spw_status spw_torch_trim(int device);
/* PyTorch empties the cache before each capture, for the graph's pool to find memory. Spillway's pools are
 * served with what others have free: where a thread says 1 before and 0 after, nothing goes back to the
 * driver to be created again. */
SPW_API void spw_torch_about_to_capture(int is_about);
/* Of the memory of the device, 0 to 1; 1 is no limit. */
SPW_API void spw_torch_memory_fraction(double fraction, int device);
/* The block that begins at `pointer`; *bytes (may be NULL) is its size. A foreign pointer is its own base. */
SPW_API void* spw_torch_base_alloc(void* pointer, size_t* bytes);
/* NULL and foreign pointers are allowed: PyTorch asks for the memory of others too. */
SPW_API void spw_torch_record_stream(void* pointer, spw_stream stream);

/* `filter` is a std::function<bool(cudaStream_t)>, which C++ passes by address; it is copied. */
SPW_API void spw_torch_begin_pool(int device, spw_pool_id id, const void* filter);
SPW_API void spw_torch_end_pool(int device, spw_pool_id id);
SPW_API void spw_torch_release_pool(int device, spw_pool_id id);

/* Makes spw_torch_alloc throw PyTorch's own error for want of memory, c10::OutOfMemoryError, which this
 * library is not compiled against: `vtable` is the address of its vtable, `construct` that of the constructor
 * of its base, c10::Error(std::string text, std::shared_ptr<> backtrace, const void* caller). They are
 * looked at, and the constructor is tried: where they are of something else, and where either is NULL, a
 * std::runtime_error is thrown. To be called before the allocator is in use. */
SPW_API void spw_torch_throw_as(const void* vtable, void* construct);

#ifdef __cplusplus
}
#endif
#endif
