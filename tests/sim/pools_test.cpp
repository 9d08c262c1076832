// Pools of the stream-ordered allocator: what they count and keep, which streams may use a freed block again,
// and what their attributes refuse.
#include <gmock/gmock.h>

#include <array>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::array kReuses{CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                             CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                             CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES};

class PoolsTest : public DeviceTest {
 protected:
  void SetUp() override {
    start("completion:run-ahead");
    pool = usual();
  }

  static CUmemoryPool usual(int device = 0) {
    CUmemoryPool found = nullptr;
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&found, device), CUDA_SUCCESS);
    return found;
  }
  static CUmemoryPool create_pool(int device = 0) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cuMemPoolCreate(&made, &properties), CUDA_SUCCESS);
    return made;
  }
  static uint64_t get(CUmemoryPool of, CUmemPool_attribute attribute) {
    uint64_t value = 0;
    EXPECT_EQ(cuMemPoolGetAttribute(of, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  static CUresult set(CUmemoryPool of, CUmemPool_attribute attribute, uint64_t value) {
    return cuMemPoolSetAttribute(of, attribute, &value);
  }
  uint64_t used() const { return get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT); }
  uint64_t reserved() const { return get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }
  static CUdeviceptr take(CUstream on, size_t bytes = kPage) {
    CUdeviceptr block = 0;
    EXPECT_EQ(cuMemAllocAsync(&block, bytes, on), CUDA_SUCCESS);
    return block;
  }
  static void give(CUdeviceptr block, CUstream on) { EXPECT_EQ(cuMemFreeAsync(block, on), CUDA_SUCCESS); }
  // Keeps whatever is freed.
  void keep() const { SIM_EXPECT_OK(set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX)); }
  void allow_only(CUmemPool_attribute allowed) const {
    for (const CUmemPool_attribute reuse : kReuses) SIM_EXPECT_OK(set(pool, reuse, reuse == allowed ? 1 : 0));
  }

  CUmemoryPool pool = nullptr;
};

TEST_F(PoolsTest, CountsWhatIsUsedAndWhatIsReserved) {
  const CUstream work = stream();
  const CUdeviceptr first = take(work, kMiB);
  const CUdeviceptr second = take(work, kPage + 1);
  EXPECT_EQ(used(), kMiB + kPage + 1);
  EXPECT_EQ(reserved(), 3 * kPage);
  EXPECT_EQ(spwSimPhysicalBytes(0), 3 * kPage);
  give(second, work);
  EXPECT_EQ(used(), kMiB);
  EXPECT_EQ(reserved(), 3 * kPage) << "nobody has waited for the free";
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_EQ(reserved(), kPage);
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage);
  SIM_OK(cuMemFree(first));
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(reserved(), 0u);
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), kMiB + kPage + 1);
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 3 * kPage);
}

TEST_F(PoolsTest, HighWatermarksCanBeSetToZeroAlone) {
  const CUstream work = stream();
  give(take(work, 3 * kPage), work);
  SIM_OK(cuStreamSynchronize(work));
  const CUdeviceptr left = take(work);
  for (const auto high : {CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH}) {
    EXPECT_EQ(set(pool, high, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(get(pool, high), 3 * kPage);
    SIM_OK(set(pool, high, 0));
    EXPECT_EQ(get(pool, high), kPage) << "what is there now is the highest since";
  }
  give(left, work);
}

TEST_F(PoolsTest, AttributesHaveTheDefaultsOfTheDocumentation) {
  for (const CUmemPool_attribute reuse : kReuses) {
    int enabled = 7;
    SIM_OK(cuMemPoolGetAttribute(pool, reuse, &enabled));
    EXPECT_EQ(enabled, 1);
    int off = 0;
    SIM_OK(cuMemPoolSetAttribute(pool, reuse, &off));
    SIM_OK(cuMemPoolGetAttribute(pool, reuse, &enabled));
    EXPECT_EQ(enabled, 0);
  }
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0u);
  SIM_OK(set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX));
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), UINT64_MAX);
}

TEST_F(PoolsTest, RefusesWhatIsNoPoolNoAttributeAndNoValue) {
  uint64_t value = 0;
  EXPECT_EQ(cuMemPoolGetAttribute(nullptr, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolSetAttribute(nullptr, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  for (const int none : {0, 99}) {
    EXPECT_EQ(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(none), &value),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(set(pool, static_cast<CUmemPool_attribute>(none), 0), CUDA_ERROR_INVALID_VALUE);
  }
  for (const auto counted : {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT})
    EXPECT_EQ(set(pool, counted, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolTrimTo(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  const CUmemoryPool gone = create_pool();
  SIM_OK(cuMemPoolDestroy(gone));
  EXPECT_EQ(cuMemPoolGetAttribute(gone, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolDestroy(gone), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE) << "a device keeps its own";
}

TEST_F(PoolsTest, WaitsReleaseWhatIsBeyondTheThreshold) {
  const CUstream work = stream();
  SIM_OK(set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 2 * kPage));
  const std::array blocks{take(work), take(work), take(work), take(work)};
  for (const CUdeviceptr block : blocks) give(block, work);
  EXPECT_EQ(reserved(), 4 * kPage);
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_EQ(reserved(), 2 * kPage);
  SIM_OK(set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, kPage));
  EXPECT_EQ(reserved(), 2 * kPage) << "the next wait releases";
  const CUevent done = event();
  SIM_OK(cuEventRecord(done, work));
  SIM_OK(cuEventSynchronize(done));
  EXPECT_EQ(reserved(), kPage);
  SIM_OK(set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0));
  SIM_OK(cuCtxSynchronize());
  EXPECT_EQ(reserved(), 0u);
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
}

TEST_F(PoolsTest, AWaitForOneStreamKeepsWhatAnotherMayStillUse) {
  const CUstream work = stream();
  const CUstream other = stream();
  const CUdeviceptr block = take(work);
  touch(work, block, kPage);
  give(block, work);
  SIM_OK(cuStreamSynchronize(other));
  EXPECT_EQ(reserved(), kPage);
  SIM_OK(cuMemPoolTrimTo(pool, 0));
  EXPECT_EQ(reserved(), kPage) << "nobody has seen the free complete";
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_EQ(reserved(), 0u);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(PoolsTest, TrimKeepsWhatItIsTold) {
  const CUstream work = stream();
  keep();
  const CUdeviceptr kept = take(work);
  const std::array blocks{take(work), take(work), take(work)};
  for (const CUdeviceptr block : blocks) give(block, work);
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_EQ(reserved(), 4 * kPage);
  SIM_OK(cuMemPoolTrimTo(pool, 5 * kPage));
  EXPECT_EQ(reserved(), 4 * kPage);
  SIM_OK(cuMemPoolTrimTo(pool, 2 * kPage + 1));
  EXPECT_EQ(reserved(), 3 * kPage) << "at least that many bytes stay";
  SIM_OK(cuMemPoolTrimTo(pool, 0));
  EXPECT_EQ(reserved(), kPage) << "blocks that are not freed stay";
  give(kept, work);
}

TEST_F(PoolsTest, AStreamUsesItsOwnFreesAgain) {
  const CUstream work = stream();
  allow_only(CUmemPool_attribute{});
  const CUdeviceptr block = take(work, kMiB);
  touch(work, block, kMiB);
  give(block, work);
  const CUdeviceptr again = take(work, kPage);
  EXPECT_EQ(again, block);
  touch(work, again, kPage);
  EXPECT_EQ(reserved(), kPage);
  EXPECT_EQ(used(), kPage);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(PoolsTest, AnotherStreamFollowsEventsWhereThatIsAllowed) {
  for (const bool allowed : {true, false}) {
    SetUp();
    const CUstream work = stream();
    const CUstream other = stream();
    allow_only(allowed ? CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES : CUmemPool_attribute{});
    const CUdeviceptr block = take(work);
    give(block, work);
    EXPECT_NE(take(other), block) << "there is no order yet";
    const CUevent freed = event();
    SIM_OK(cuEventRecord(freed, work));
    SIM_OK(cuStreamWaitEvent(other, freed, 0));
    EXPECT_EQ(take(other) == block, allowed);
  }
}

TEST_F(PoolsTest, AnotherStreamUsesCompleteFreesWhereThatIsAllowed) {
  for (const bool allowed : {true, false}) {
    SetUp();
    const CUstream work = stream();
    const CUstream other = stream();
    allow_only(allowed ? CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC : CUmemPool_attribute{});
    const CUdeviceptr block = take(work);
    touch(work, block, kPage);
    give(block, work);
    EXPECT_NE(take(other), block);
    ASSERT_EQ(spwSimCompleteTo(work, spwSimMark(work)), CUDA_SUCCESS);
    const CUdeviceptr next = take(other);
    EXPECT_EQ(next == block, allowed);
    touch(other, next, kPage);
    EXPECT_THAT(reports(), IsEmpty());
  }
}

TEST_F(PoolsTest, AFreeThatTheHostKnowsOfIsUsedByEveryStream) {
  const CUstream work = stream();
  keep();
  allow_only(CUmemPool_attribute{});
  const CUdeviceptr block = take(work);
  give(block, work);
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_EQ(take(stream()), block);
}

TEST_F(PoolsTest, AnotherStreamIsMadeToWaitWhereThatIsAllowed) {
  const CUstream work = stream();
  const CUstream other = stream();
  allow_only(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
  const CUdeviceptr block = take(work);
  touch(work, block, kPage);
  give(block, work);
  const uint64_t freed = spwSimMark(work);
  EXPECT_EQ(take(other), block);
  touch(other, block, kPage);
  EXPECT_THAT(reports(), IsEmpty());
  SIM_OK(cuStreamSynchronize(other));
  EXPECT_EQ(spwSimIsComplete(work, freed), 1) << "the allocation waits for the free";
}

TEST_F(PoolsTest, UseAfterAFreeIsReported) {
  const CUstream work = stream();
  const CUdeviceptr block = take(work);
  give(block, work);
  touch(work, block, kPage);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("use after free")));
}

TEST_F(PoolsTest, AFreeBeforeWorkOfAnotherStreamIsReported) {
  const CUstream work = stream();
  const CUdeviceptr block = take(work);
  touch(stream(), block, kPage);
  give(block, work);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("cuMemFreeAsync")));
}

TEST_F(PoolsTest, ABlockIsFreedOnce) {
  const CUstream work = stream();
  const CUdeviceptr block = take(work);
  give(block, work);
  EXPECT_EQ(cuMemFreeAsync(block, work), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(block), CUDA_ERROR_INVALID_VALUE);
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_EQ(cuMemFreeAsync(block, work), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PoolsTest, AFullDeviceTakesBackWhatThePoolsDoNotUse) {
  start("completion:run-ahead,capacity:8MiB");
  pool = usual();
  const CUmemoryPool other = create_pool();
  const CUstream work = stream();
  const CUdeviceptr block = take(work, 3 * kPage);
  touch(work, block, kPage);
  give(block, work);
  CUdeviceptr large = 0;
  SIM_OK(cuMemAllocFromPoolAsync(&large, 4 * kPage, other, work));
  EXPECT_EQ(reserved(), 0u);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&large, kPage, other, work), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(PoolsTest, ThePoolOfADeviceIsChosen) {
  const CUstream work = stream();
  const CUmemoryPool mine = create_pool();
  CUmemoryPool current = nullptr;
  SIM_OK(cuDeviceGetMemPool(&current, 0));
  EXPECT_EQ(current, pool);
  SIM_OK(cuDeviceSetMemPool(0, mine));
  SIM_OK(cuDeviceGetMemPool(&current, 0));
  EXPECT_EQ(current, mine);
  const CUdeviceptr block = take(work);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(get(mine, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), kPage);
  CUmemoryPool of_block = nullptr;
  SIM_OK(cuPointerGetAttribute(&of_block, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
  EXPECT_EQ(of_block, mine);
  SIM_OK(cuMemPoolDestroy(mine));
  SIM_OK(cuDeviceGetMemPool(&current, 0));
  EXPECT_EQ(current, pool) << "the device has its own again";
  touch(work, block, kPage);
  give(block, work);
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage);
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u) << "the pool goes with its last block";
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(PoolsTest, AContextsEndTakesItsBlocksFromThePools) {
  take(stream());
  SIM_OK(cuDevicePrimaryCtxReset(0));
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(reserved(), 0u);
}

}  // namespace
}  // namespace spillway::sim_test
