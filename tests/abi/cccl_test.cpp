// The memory resource under CCCL's own types, and Thrust's vector on its allocator. With Thrust's C++
// backend: its algorithms would run on the host, so elements are not made.
#include <thrust/device_vector.h>

#include "include/spillway/memory_resource.hpp"
#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

using DeviceResource = cuda::mr::any_resource<cuda::mr::device_accessible>;
using DeviceResourceRef = cuda::mr::resource_ref<cuda::mr::device_accessible>;

template <typename T>
using Vector = thrust::device_vector<T, Allocator<T, thrust::device_ptr<T>>>;

CUstream make_stream(const Driver& driver) {
  CUstream stream = nullptr;
  SPW_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  return stream;
}

int64_t requested() {
  return stats_of(0).requested_bytes.all.current;
}

TEST(Cccl, AnOwnedResourceAllocatesInTheOrderOfAStream) {
  in_child({}, [] {
    const auto driver = start_device();
    CUstream stream = make_stream(*driver);
    DeviceResource resource{MemoryResource(0)};
    void* block = resource.allocate(cuda::stream_ref(stream), kMiB, 256);
    spw_stream owner = nullptr;
    SPW_CHECK(spw_find_owner(block, &owner, nullptr) == SPW_OK && owner == stream);
    resource.deallocate(cuda::stream_ref(stream), block, kMiB, 256);
    block = resource.allocate_sync(kMiB, 256);
    SPW_CHECK(requested() == kMiB);
    resource.deallocate_sync(block, kMiB, 256);
    SPW_CHECK(requested() == 0 && spw_validate(0) == SPW_OK);
  });
}

TEST(Cccl, AReferenceIsEqualToOneOfTheSameDevice) {
  in_child({}, [] {
    const auto driver = start_device();
    MemoryResource first(0);
    MemoryResource same(0);
    MemoryResource other(1);
    SPW_CHECK(DeviceResourceRef(first) == DeviceResourceRef(same));
    SPW_CHECK(DeviceResourceRef(first) != DeviceResourceRef(other));
    CUstream stream = make_stream(*driver);
    void* block = DeviceResourceRef(first).allocate(stream, kMiB, 256);
    DeviceResourceRef(same).deallocate(stream, block, kMiB, 256);
    SPW_CHECK(requested() == 0);
  });
}

TEST(Cccl, VectorsOfThrustAreInItsMemory) {
  in_child({}, [] {
    const auto driver = start_device();
    {
      const Vector<int> ints(1000, thrust::no_init);
      spw_block block;
      int device = -1;
      SPW_CHECK(spw_find_block(thrust::raw_pointer_cast(ints.data()), &block, &device) == SPW_OK);
      SPW_CHECK(block.requested_bytes == 1000 * sizeof(int) && requested() == 1000 * sizeof(int));
      Vector<double> doubles;
      doubles.reserve(500);
      SPW_CHECK(requested() == 1000 * sizeof(int) + 500 * sizeof(double));
    }
    SPW_CHECK(requested() == 0 && spw_validate(0) == SPW_OK);
  });
}

}  // namespace
}  // namespace spillway::test
