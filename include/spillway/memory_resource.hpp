// Spillway as a stream-ordered memory resource, in the shape of CCCL (libcu++) and of those who build on it:
//
//   CCCL 3.1 and later      cuda::mr::resource, and so any_resource, resource_ref, CUB's environments
//   CCCL 3.0                cuda::mr::async_resource (LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
//   RMM 26 and later        rmm::device_async_resource_ref, which is CCCL's
//   Thrust, and containers  Allocator, an allocator for one element type
//
// C++17, over the C ABI alone: neither CCCL nor the CUDA runtime is needed to include this. Where CCCL's
// headers are found, they are included, and the concept is checked. Streams are taken in whatever form they
// come: CUstream and cudaStream_t are one type, and cuda::stream_ref and rmm::cuda_stream_view hold it.
//
// With SPILLWAY_WITH_RMM defined, running out of memory is an rmm::out_of_memory, as RMM's adaptors expect of
// a resource. The program says so, and is not guessed: that class is in RMM's library, which a program need
// not link where RMM's headers happen to be found.
//
// Everything here may be called from any thread. docs/embedding.md.
#ifndef SPILLWAY_MEMORY_RESOURCE_HPP
#define SPILLWAY_MEMORY_RESOURCE_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "spillway/spillway.h"

#ifdef SPILLWAY_WITH_RMM
#include <rmm/error.hpp>
#endif

#if __has_include(<cuda/memory_resource>) && __has_include(<cuda_runtime_api.h>)
#include <cuda/memory_resource>
#if CCCL_VERSION >= 3001000 || defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#define SPILLWAY_HAS_CCCL_MEMORY_RESOURCE 1
#endif
#endif

namespace spillway {
#ifdef SPILLWAY_WITH_RMM
// Other symbols than without RMM: sources compiled in either way may meet in one program, each with its own.
inline namespace with_rmm {
#endif

// The text is the library's, with a report of who holds what, as it was when this was thrown.
#ifdef SPILLWAY_WITH_RMM
class OutOfMemory : public rmm::out_of_memory {
 public:
  explicit OutOfMemory(const char* text) : rmm::out_of_memory(text) {}
};
#else
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const char* text) : text_(std::make_shared<const std::string>(text)) {}
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;  // shared: an exception's copies must not throw
};
#endif

// Every other error of the library.
class Error : public std::runtime_error {
 public:
  Error(spw_status status, const char* text) : std::runtime_error(text), status_(status) {}
  spw_status status() const noexcept { return status_; }

 private:
  spw_status status_;
};

// Throws OutOfMemory or Error where a call of the C ABI, the calling thread's last, failed.
inline void check(spw_status status) {
  if (status == SPW_OK) return;
  if (status == SPW_ERROR_OUT_OF_MEMORY) throw OutOfMemory(spw_last_error());
  throw Error(status, spw_last_error());
}

// A stream of the caller's. It owns nothing.
class StreamRef {
 public:
  constexpr StreamRef(spw_stream stream) noexcept : stream_(stream) {}

  // cuda::stream_ref has get(), rmm::cuda_stream_view value().
  template <typename Stream>
  constexpr StreamRef(const Stream& stream, decltype(static_cast<spw_stream>(stream.get()))* = nullptr)
      : stream_(stream.get()) {}
  template <typename Stream>
  constexpr StreamRef(const Stream& stream, decltype(static_cast<spw_stream>(stream.value()))* = nullptr)
      : stream_(stream.value()) {}

  constexpr spw_stream get() const noexcept { return stream_; }

 private:
  spw_stream stream_;
};

// Device memory of one device. A value that holds its number alone: copies are equal, and what one allocated
// another may free. The device must have a context by the first allocation (spillway.h).
//
// Allocations throw OutOfMemory, std::invalid_argument for an alignment that is no power of two or above
// kMostAlignment, and Error for the rest. 0 bytes are a null pointer, which may be freed. Deallocations do
// not throw: a pointer that is not the library's costs a line on stderr with `debug:guard`, and else nothing.
class MemoryResource {
 public:
  // Every block has this one.
  static constexpr std::size_t kMostAlignment = 512;

  constexpr explicit MemoryResource(int device = 0) noexcept : device_(device) {}

  constexpr int device() const noexcept { return device_; }

  // For use on `stream` at once, on others behind an event.
  void* allocate(StreamRef stream, std::size_t bytes, std::size_t alignment) const {
    check_alignment(alignment);
    void* pointer = nullptr;
    check(spw_alloc(bytes, device_, stream.get(), &pointer));
    return pointer;
  }

  // What is enqueued on `stream`, and on the stream that the block was allocated on, may still use it. Costs
  // more where these are two.
  void deallocate(StreamRef stream, void* pointer, std::size_t, std::size_t) const noexcept {
    // Refused for a stream of another context, which orders nothing here: the host waits for it; and for a
    // pointer that the last call refuses too.
    if (spw_record_stream(pointer, stream.get()) != SPW_OK)
      (void)spw_stream_synchronize(device_, stream.get());
    (void)spw_free(pointer);
  }

  // For use on every stream at once: waits for the legacy default stream, whose memory it is. A program with
  // a stream at hand is better served by that.
  void* allocate_sync(std::size_t bytes, std::size_t alignment) const {
    void* pointer = allocate(StreamRef(nullptr), bytes, alignment);
    const spw_status status = pointer == nullptr ? SPW_OK : spw_stream_synchronize(device_, nullptr);
    if (status != SPW_OK) {
      const Error error(status, spw_last_error());
      (void)spw_free(pointer);
      throw error;
    }
    return pointer;
  }

  // All use of the block has completed.
  void deallocate_sync(void* pointer, std::size_t, std::size_t) const noexcept { (void)spw_free(pointer); }

  // The names of CCCL 3.0.
  void* allocate_async(std::size_t bytes, std::size_t alignment, StreamRef stream) const {
    return allocate(stream, bytes, alignment);
  }
  void deallocate_async(void* pointer, std::size_t bytes, std::size_t alignment,
                        StreamRef stream) const noexcept {
    deallocate(stream, pointer, bytes, alignment);
  }
  void* allocate(std::size_t bytes, std::size_t alignment) const { return allocate_sync(bytes, alignment); }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment) const noexcept {
    deallocate_sync(pointer, bytes, alignment);
  }

  friend constexpr bool operator==(const MemoryResource& a, const MemoryResource& b) noexcept {
    return a.device_ == b.device_;
  }
  friend constexpr bool operator!=(const MemoryResource& a, const MemoryResource& b) noexcept {
    return !(a == b);
  }
#ifdef SPILLWAY_HAS_CCCL_MEMORY_RESOURCE
  friend constexpr void get_property(const MemoryResource&, ::cuda::mr::device_accessible) noexcept {}
#endif

 private:
  static void check_alignment(std::size_t alignment) {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMostAlignment) {
      throw std::invalid_argument("spillway: an alignment of " + std::to_string(alignment) +
                                  "; allowed are powers of two up to " + std::to_string(kMostAlignment));
    }
  }

  int device_;
};

#ifdef SPILLWAY_HAS_CCCL_MEMORY_RESOURCE
#if CCCL_VERSION >= 3001000
static_assert(::cuda::mr::resource_with<MemoryResource, ::cuda::mr::device_accessible>,
              "spillway::MemoryResource must be a resource of CCCL");
#else
static_assert(::cuda::mr::async_resource_with<MemoryResource, ::cuda::mr::device_accessible>,
              "spillway::MemoryResource must be an asynchronous resource of CCCL");
#endif
#endif

// An allocator of the C++ library's shape for elements in device memory, in the order of one stream: for
// Thrust's containers (Pointer = thrust::device_ptr<T>) and its execution policies (T = char). The elements
// are not the host's to construct. Throws as MemoryResource does, and std::bad_array_new_length.
template <typename T, typename Pointer = T*>
class Allocator {
 public:
  using value_type = T;
  using pointer = Pointer;
  using const_pointer = typename std::pointer_traits<Pointer>::template rebind<const T>;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;
  template <typename Other>
  struct rebind {
    using other = Allocator<Other, typename std::pointer_traits<Pointer>::template rebind<Other>>;
  };

  // Device 0, and the legacy default stream, as CUDA's own default.
  Allocator() noexcept : Allocator(MemoryResource()) {}
  explicit Allocator(MemoryResource resource, StreamRef stream = StreamRef(nullptr)) noexcept
      : resource_(resource), stream_(stream.get()) {}
  template <typename Other, typename OtherPointer>
  Allocator(const Allocator<Other, OtherPointer>& other) noexcept
      : resource_(other.resource()), stream_(other.stream()) {}

  pointer allocate(size_type count) const {
    static_assert(alignof(T) <= MemoryResource::kMostAlignment, "no block is aligned so far");
    if (count > std::numeric_limits<size_type>::max() / sizeof(T)) throw std::bad_array_new_length();
    return pointer(static_cast<T*>(resource_.allocate(stream_, count * sizeof(T), alignof(T))));
  }
  void deallocate(pointer memory, size_type count) const noexcept {
    resource_.deallocate(stream_, const_cast<std::remove_cv_t<T>*>(address(memory)), count * sizeof(T),
                         alignof(T));
  }

  MemoryResource resource() const noexcept { return resource_; }
  spw_stream stream() const noexcept { return stream_; }

 private:
  static T* address(T* memory) noexcept { return memory; }
  template <typename Fancy>
  static T* address(const Fancy& memory) noexcept {
    return memory.get();
  }

  MemoryResource resource_;
  spw_stream stream_;
};

// Tells whether what one allocated the other may free.
template <typename A, typename AP, typename B, typename BP>
bool operator==(const Allocator<A, AP>& a, const Allocator<B, BP>& b) noexcept {
  return a.resource() == b.resource() && a.stream() == b.stream();
}
template <typename A, typename AP, typename B, typename BP>
bool operator!=(const Allocator<A, AP>& a, const Allocator<B, BP>& b) noexcept {
  return !(a == b);
}

#ifdef SPILLWAY_WITH_RMM
}  // namespace with_rmm
#endif
}  // namespace spillway
#endif
