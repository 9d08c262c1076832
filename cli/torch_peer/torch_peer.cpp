// The only file compiled against torch's headers.
#include "cli/torch_peer/torch_peer.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#define SPILLWAY_PEER_ACCESS_IS_CACHED  // since PyTorch 2.11 the allocator's own library asks who are peers
#endif

#include <string>

// Exported by libc10_cuda.so for libtorch_cuda.so, in no header.
namespace c10::cuda::_internal {
// NOLINTNEXTLINE(readability-identifier-naming): its name.
void setHasPrimaryContext(bool (*has_primary_context)(c10::DeviceIndex device));
}  // namespace c10::cuda::_internal

namespace spillway {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

thread_local std::string last_error_text;

// Runs `body` and turns what PyTorch throws into a code; no exception leaves this library.
template <typename Body>
spw_status guarded(Body body) noexcept {
  try {
    body();
    return SPW_OK;
  } catch (const c10::OutOfMemoryError& error) {
    last_error_text = error.what_without_backtrace();
    return SPW_ERROR_OUT_OF_MEMORY;
  } catch (const c10::Error& error) {
    last_error_text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error_text = error.what();
  } catch (...) {
    last_error_text = "PyTorch threw something that is no exception";
  }
  return SPW_ERROR_INTERNAL;
}

spw_status init(int device_count) {
  return guarded([&] {
    // libtorch_cuda.so would tell c10 which devices have a context. A device that is allocated from has one:
    // the runtime makes it.
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex /*device*/) { return true; });
    // As libtorch_cuda.so does; from 2.15 on, expandable segments ask it for every segment.
#ifdef SPILLWAY_PEER_ACCESS_IS_CACHED
    c10::cuda::detail::init_p2p_access_cache(device_count);
#endif
    torch_cuda::init(device_count);
  });
}

spw_status allocate(uint64_t bytes, CUstream_st* stream, void** out) {
  return guarded([&] { *out = torch_cuda::raw_alloc_with_stream(bytes, stream); });
}

spw_status free_block(void* block) {
  return guarded([&] { torch_cuda::raw_delete(block); });
}

spw_status record_stream(void* block, CUstream_st* stream) {
  return guarded([&] {
    const c10::DeviceIndex device = c10::cuda::current_device();
    // recordStream knows its own blocks by their deleter; the context is let go again, so that nothing is
    // freed when the DataPtr ends.
    c10::DataPtr data(block, block, torch_cuda::get()->raw_deleter(), c10::Device(c10::kCUDA, device));
    try {
      torch_cuda::recordStream(data, c10::cuda::getStreamFromExternal(stream, device));
    } catch (...) {
      (void)data.release_context();
      throw;
    }
    (void)data.release_context();
  });
}

spw_status empty_cache() {
  return guarded([] { torch_cuda::emptyCache(); });
}

spw_status set_device(int device) {
  return guarded([&] { c10::cuda::set_device(static_cast<c10::DeviceIndex>(device)); });
}

using c10::CachingAllocator::StatType;

uint64_t reserved(int device, bool peak) {
  uint64_t bytes = 0;
  (void)guarded([&] {
    const auto stats = torch_cuda::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto& row = stats.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)];
    bytes = static_cast<uint64_t>(peak ? row.peak : row.current);
  });
  return bytes;
}

uint64_t peak_reserved_bytes(int device) {
  return reserved(device, true);
}
uint64_t reserved_bytes(int device) {
  return reserved(device, false);
}
spw_status reset_peaks(int device) {
  return guarded([&] { torch_cuda::resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}

spw_status watch_segments(void (*on_segment)(void*, uint64_t), void* context) {
  return guarded([=] {
    torch_cuda::attachAllocatorTraceTracker([=](const torch_cuda::TraceEntry& entry) {
      if (entry.action_ == torch_cuda::TraceEntry::SEGMENT_ALLOC ||
          entry.action_ == torch_cuda::TraceEntry::SEGMENT_MAP) {
        on_segment(context, static_cast<uint64_t>(entry.size_));
      }
    });
  });
}

const char* last_error() {
  return last_error_text.c_str();
}

}  // namespace
}  // namespace spillway

extern "C" __attribute__((visibility("default"))) const spillway::TorchPeer* spw_torch_peer() {
  static constexpr spillway::TorchPeer kPeer{
      .init = spillway::init,
      .allocate = spillway::allocate,
      .free = spillway::free_block,
      .record_stream = spillway::record_stream,
      .empty_cache = spillway::empty_cache,
      .set_device = spillway::set_device,
      .peak_reserved_bytes = spillway::peak_reserved_bytes,
      .reset_peaks = spillway::reset_peaks,
      .reserved_bytes = spillway::reserved_bytes,
      .watch_segments = spillway::watch_segments,
      .last_error = spillway::last_error,
  };
  return &kPeer;
}
