// The stream-ordered memory resource: what it gives is counted and ordered, what it refuses is an exception.
// On the simulated device, which executes late and reports every use of memory out of order.
#include "include/spillway/memory_resource.hpp"

#include <cstdint>

#include "tests/support/late_device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// A driver's stream, as a library may hold one.
struct GetStream {
  spw_stream stream;
  spw_stream get() const { return stream; }
};
struct ValueStream {
  spw_stream stream;
  spw_stream value() const { return stream; }
};

TEST(MemoryResource, TakesEveryFormOfStream) {
  in_child(kLate, [] {
    const LateDevice device;
    const MemoryResource resource;
    CUstream stream = device.stream();
    for (const StreamRef& form :
         {StreamRef(stream), StreamRef(GetStream{stream}), StreamRef(ValueStream{stream})}) {
      void* block = resource.allocate(form, kMiB + 1, 256);
      SPW_CHECK(reinterpret_cast<uintptr_t>(block) % MemoryResource::kMostAlignment == 0);
      SPW_CHECK(stats_of(0).requested_bytes.all.current == kMiB + 1);
      spw_stream owner = nullptr;
      SPW_CHECK(spw_find_owner(block, &owner, nullptr) == SPW_OK && owner == stream);
      device.write(block, kMiB + 1, stream);
      resource.deallocate(form, block, kMiB + 1, 256);
    }
    device.finish();
  });
}

TEST(MemoryResource, ABlockFreedOnAnotherStreamWaitsForIt) {
  in_child(kLate, [] {
    const LateDevice device;
    const MemoryResource resource;
    CUstream made_on = device.stream();
    CUstream freed_on = device.stream();
    for (int i = 0; i < 20; ++i) {
      void* block = resource.allocate(made_on, kMiB, 256);
      device.write(block, kMiB, made_on);
      device.order(made_on, freed_on);
      device.write(block, kMiB, freed_on);
      resource.deallocate(freed_on, block, kMiB, 256);
    }
    device.finish();
  });
}

TEST(MemoryResource, ABlockFreedOnAStreamOfAnotherContextWaitsForIt) {
  in_child(kLate, [] {
    const LateDevice device;
    const MemoryResource resource;
    CUstream made_on = device.stream();
    CUstream foreign = device.stream_of_another_context();
    for (int i = 0; i < 20; ++i) {
      void* block = resource.allocate(made_on, kMiB, 256);
      device.order(made_on, foreign);
      device.write(block, kMiB, foreign);
      resource.deallocate(foreign, block, kMiB, 256);
      void* next = resource.allocate(made_on, kMiB, 256);
      device.write(next, kMiB, made_on);
      resource.deallocate(made_on, next, kMiB, 256);
    }
    device.finish();
  });
}

TEST(MemoryResource, ASynchronousBlockIsForEveryStreamAtOnce) {
  in_child(kLate, [] {
    const LateDevice device;
    const MemoryResource resource;
    CUstream other = device.stream();
    void* used = resource.allocate(StreamRef(nullptr), kMiB, 256);
    device.write(used, kMiB, nullptr);
    resource.deallocate(StreamRef(nullptr), used, kMiB, 256);
    void* block = resource.allocate_sync(kMiB, 256);
    SPW_CHECK(block == used);  // or the wait would not be tried
    device.write(block, kMiB, other);
    resource.deallocate(other, block, kMiB, 256);
    device.finish();
  });
}

TEST(MemoryResource, RefusalsAreExceptions) {
  in_child({{"SPILLWAY_CONF", "limit:8MiB"}}, [] {
    const LateDevice device;
    const MemoryResource resource;
    for (const size_t alignment : {size_t{0}, size_t{3}, size_t{1024}}) {
      EXPECT_THROW(resource.allocate(nullptr, 1, alignment), std::invalid_argument);
    }
    try {
      resource.allocate(nullptr, 9 * kMiB, 256);
      SPW_CHECK(false && "memory beyond the limit");
    } catch (const std::bad_alloc& error) {
      SPW_CHECK(std::string(error.what()).find("9.00 MiB") != std::string::npos);
    }
    try {
      MemoryResource(99).allocate(nullptr, 1, 1);
      SPW_CHECK(false && "a device that is not there");
    } catch (const Error& error) {
      SPW_CHECK(error.status() == SPW_ERROR_INVALID_ARGUMENT &&
                std::string(error.what()).find("99") < SIZE_MAX);
    }
    SPW_CHECK(resource.allocate(nullptr, 0, 256) == nullptr);
    resource.deallocate(nullptr, nullptr, 0, 256);
    int foreign = 0;
    resource.deallocate(nullptr, &foreign, sizeof foreign, 256);  // nothing happens
    SPW_CHECK(resource == MemoryResource(0) && resource != MemoryResource(1));
    device.finish();
    SPW_CHECK(!testing::Test::HasFailure());
  });
}

TEST(MemoryResource, AllocatorsOfAnyElementShareAStreamsMemory) {
  in_child(kLate, [] {
    const LateDevice device;
    const Allocator<int> ints(MemoryResource(0), device.stream());
    const Allocator<int>::rebind<double>::other doubles(ints);
    SPW_CHECK(doubles == ints && ints != Allocator<int>());
    int* block = ints.allocate(1000);
    SPW_CHECK(stats_of(0).requested_bytes.all.current == 1000 * sizeof(int));
    device.write(block, 1000 * sizeof(int), ints.stream());
    ints.deallocate(block, 1000);
    EXPECT_THROW(doubles.allocate(SIZE_MAX / 4), std::bad_array_new_length);
    device.finish();
    SPW_CHECK(!testing::Test::HasFailure());
  });
}

}  // namespace
}  // namespace spillway::test
