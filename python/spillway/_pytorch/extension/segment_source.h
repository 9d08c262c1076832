// A torch.cuda.MemPool with an allocator of its own: Spillway takes segments from that allocator, and divides
// them.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>

namespace spillway_torch {

// The pool exists, and has no memory yet. Errors: c10::Error.
void take_segments_from(c10::DeviceIndex device, c10::cuda::MempoolId_t pool,
                        std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> allocator);

}  // namespace spillway_torch
