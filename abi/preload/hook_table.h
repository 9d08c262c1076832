// Holds what libspillway_preload.so and libspillway.so agree on: the entry points that are hooked, as one
// table of functions. The first finds the driver's own, the second answers with what is to be called instead.
// Both are of one version: the size of the table tells whether they are.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>

#include "include/spillway/spillway.h"

#if CUDA_VERSION >= 12020
// From CUDA 13 on the header gives this name to the newer function and declares the older no more.
#undef cuGraphAddNode
extern "C" CUresult CUDAAPI cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* nodes,
                                           size_t count, CUgraphNodeParams* parameters);
#endif

namespace spillway {

struct DriverCalls {
#define SPW_HOOK(name, since, symbol, need, parameters, arguments) PFN_##name##_v##since symbol = nullptr;
#define SPW_HOOK_PTSZ(name, since, symbol, need, parameters, arguments) \
  PFN_##name##_v##since##_ptsz symbol = nullptr;
#include "abi/preload/hooks.inc"
};

}  // namespace spillway

extern "C" {

/* What a program is to call instead of `real` (a spillway::DriverCalls of `size` bytes, which must live as
 * long as the process), of the same kind and size; or NULL, with one line at `why` that says why not. */
SPW_API const void* spw_preload_hooks(const void* real, size_t size, char* why, size_t why_size);
}
