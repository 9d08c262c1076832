#include "allocator/mapped_range.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "allocator/units.h"
#include "tests/support/device.h"

namespace spillway::test {
namespace {

class MappedRangeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!device.simulated()) GTEST_SKIP() << "mappings are counted, and faults made, by the simulated driver";
  }
  MappedRange reserve(uint32_t pages) const {
    Result<MappedRange> range = MappedRange::reserve(*device.driver, pages * kPageBytes);
    EXPECT_TRUE(range.ok()) << range.status().text();
    return std::move(range.value());
  }
  PhysicalHandle handle(uint32_t pages) const {
    Result<PhysicalHandle> made = PhysicalHandle::create(*device.driver, 0, pages * kPageBytes);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return std::move(made.value());
  }
  void make_accessible(const MappedRange& range, uint32_t pages) const {
    SPW_EXPECT_OK(set_access(*device.driver, range.base(), pages * kPageBytes, 0));
  }
  void write(CUdeviceptr va, uint8_t byte) const {
    EXPECT_EQ(device.driver->cuMemcpyHtoD(va, &byte, 1), CUDA_SUCCESS);
  }
  int read(CUdeviceptr va) const {
    uint8_t byte = 0;
    EXPECT_EQ(device.driver->cuMemcpyDtoH(&byte, va, 1), CUDA_SUCCESS);
    return byte;
  }

  Device device{"capacity:64MiB"};
};

TEST_F(MappedRangeTest, HandlesLieInARowFromItsBeginning) {
  MappedRange range = reserve(4);
  EXPECT_EQ(range.bytes(), 4 * kPageBytes);
  EXPECT_EQ(range.base() % kPageBytes, 0u);
  const PhysicalHandle one = handle(1);
  const PhysicalHandle three = handle(3);
  EXPECT_EQ(range.pieces(), 0u);
  SPW_EXPECT_OK(range.append(one));
  EXPECT_EQ(range.pieces(), 1u);
  EXPECT_FALSE(range.is_full());
  SPW_EXPECT_OK(range.append(three));
  EXPECT_EQ(range.pieces(), 2u);
  EXPECT_TRUE(range.is_full());
  make_accessible(range, 4);
  write(range.base(), 11);
  write(range.base() + kPageBytes, 22);
  // Each handle by itself at another address shows what was written to it.
  MappedRange other = reserve(3);
  SPW_EXPECT_OK(other.append(three));
  make_accessible(other, 3);
  EXPECT_EQ(read(other.base()), 22);
  EXPECT_EQ(device.live_mappings(), 3u);
}

TEST_F(MappedRangeTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  MappedRange range = reserve(2);
  const PhysicalHandle one = handle(1);
  const PhysicalHandle two = handle(2);
  SPW_EXPECT_OK(range.append(one));
  EXPECT_EQ(range.append(two).code(), SPW_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(range.pieces(), 1u);
  EXPECT_EQ(device.live_mappings(), 1u);
  const PhysicalHandle other = handle(1);
  SPW_EXPECT_OK(range.append(other));
  EXPECT_TRUE(range.is_full());
  EXPECT_EQ(range.append(one).code(), SPW_ERROR_INVALID_ARGUMENT);
}

TEST_F(MappedRangeTest, AMappingThatTheDriverRefusesLeavesItsPlaceToTheNext) {
  MappedRange range = reserve(2);
  const PhysicalHandle one = handle(1);
  device.inject_fault("cuMemMap", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(range.append(one).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(range.pieces(), 0u);
  SPW_EXPECT_OK(range.append(one));
  make_accessible(range, 1);
  write(range.base(), 5);
  EXPECT_EQ(read(range.base()), 5);
}

TEST_F(MappedRangeTest, IsFilledAgainOnceAllIsUnmapped) {
  MappedRange range = reserve(2);
  const PhysicalHandle one = handle(1);
  const PhysicalHandle two = handle(2);
  SPW_EXPECT_OK(range.append(one));
  SPW_EXPECT_OK(range.append(one));
  SPW_EXPECT_OK(range.unmap_all());
  EXPECT_EQ(range.pieces(), 0u);
  EXPECT_FALSE(range.is_full());
  EXPECT_EQ(device.live_mappings(), 0u);
  const uint64_t calls = device.calls("cuMemUnmap");
  SPW_EXPECT_OK(range.unmap_all());
  EXPECT_EQ(device.calls("cuMemUnmap"), calls) << "nothing is mapped";
  SPW_EXPECT_OK(range.append(two));
  EXPECT_TRUE(range.is_full());
}

TEST_F(MappedRangeTest, WhatTheDriverDoesNotUnmapStaysItsOwn) {
  const PhysicalHandle one = handle(1);
  {
    MappedRange range = reserve(2);
    SPW_EXPECT_OK(range.append(one));
    device.inject_fault("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(range.unmap_all().code(), SPW_ERROR_DRIVER);
    EXPECT_EQ(range.pieces(), 1u);
    EXPECT_EQ(device.live_mappings(), 1u);
  }
  EXPECT_EQ(device.live_mappings(), 0u) << "its end tries again";
}

TEST_F(MappedRangeTest, EndsWithWhatIsMappedInIt) {
  const PhysicalHandle one = handle(1);
  const uint64_t freed = device.calls("cuMemAddressFree");
  {
    MappedRange range = reserve(1);
    SPW_EXPECT_OK(range.append(one));
    EXPECT_EQ(device.live_mappings(), 1u);
  }
  EXPECT_EQ(device.live_mappings(), 0u);
  EXPECT_EQ(device.calls("cuMemAddressFree") - freed, 1u);
  EXPECT_EQ(device.reports(), "");
}

TEST_F(MappedRangeTest, MovesWithAllThatItHolds) {
  const PhysicalHandle one = handle(1);
  MappedRange from = reserve(2);
  SPW_EXPECT_OK(from.append(one));
  const CUdeviceptr base = from.base();
  MappedRange to(std::move(from));
  EXPECT_EQ(to.base(), base);
  EXPECT_EQ(to.pieces(), 1u);
  SPW_EXPECT_OK(to.append(one));
  EXPECT_TRUE(to.is_full());
  EXPECT_EQ(device.live_mappings(), 2u);

  // What it held before is unmapped at once.
  MappedRange other = reserve(1);
  SPW_EXPECT_OK(other.append(one));
  EXPECT_EQ(device.live_mappings(), 3u);
  other = std::move(to);
  EXPECT_EQ(device.live_mappings(), 2u);
  EXPECT_EQ(other.base(), base);
  EXPECT_TRUE(other.is_full());
}

TEST_F(MappedRangeTest, WhatIsLeftToTheDriverIsNotUnmapped) {
  const PhysicalHandle one = handle(1);
  const uint64_t calls = device.calls("cuMemUnmap");
  {
    MappedRange range = reserve(1);
    SPW_EXPECT_OK(range.append(one));
    range.leave_to_driver();
    EXPECT_EQ(range.pieces(), 0u);
  }
  EXPECT_EQ(device.calls("cuMemUnmap"), calls);
  EXPECT_EQ(device.live_mappings(), 1u);
}

TEST_F(MappedRangeTest, WithoutAddressesThereIsNone) {
  device.inject_fault("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(MappedRange::reserve(*device.driver, kPageBytes).status().code(), SPW_ERROR_OUT_OF_MEMORY);
  MappedRange none;
  EXPECT_EQ(none.bytes(), 0u);
  SPW_EXPECT_OK(none.unmap_all());
}

}  // namespace
}  // namespace spillway::test
