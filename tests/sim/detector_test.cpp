// Each kind of error is planted and seen; each legal pattern beside it is not.
#include <gmock/gmock.h>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// In every completion mode: what is reported is order, not luck.
class DetectorTest : public DeviceTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { start(GetParam()); }

  // `later` waits on the device for all that is on `earlier`.
  static void order(CUstream earlier, CUstream later) {
    const CUevent edge = event();
    ASSERT_EQ(cuEventRecord(edge, earlier), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(later, edge, 0), CUDA_SUCCESS);
  }
};

INSTANTIATE_TEST_SUITE_P(Completion, DetectorTest,
                         ::testing::Values("completion:instant", "completion:late", "completion:run-ahead"),
                         [](const auto& info) {
                           std::string name = info.param + sizeof "completion:" - 1;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

TEST_P(DetectorTest, CrossStreamUseNeedsAnEdge) {
  const CUdeviceptr block = alloc();
  const CUstream first = stream();
  const CUstream second = stream();
  touch(first, block, 64);
  order(first, second);
  touch(second, block, 64);
  EXPECT_THAT(reports(), IsEmpty());
  touch(first, block + 32, 64);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("race: grid"), HasSubstr("writes"))));
}

TEST_P(DetectorTest, ReadersShareAndAWriterWaitsForAll) {
  const CUdeviceptr block = alloc();
  const CUstream writer = stream();
  const CUstream readers[2] = {stream(), stream()};
  touch(writer, block, 64);
  for (const CUstream reader : readers) {
    order(writer, reader);
    touch(reader, block, 64, SPW_SIM_READ);
  }
  order(readers[0], writer);
  EXPECT_THAT(reports(), IsEmpty());
  touch(writer, block, 64);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("reads the same bytes")));
  spwSimClearReports();
  order(readers[1], writer);
  touch(writer, block, 64);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, NeighboursDoNotConflict) {
  const CUdeviceptr block = alloc();
  touch(stream(), block, 512);
  touch(stream(), block + 512, 512);
  touch(stream(), block + 1024, 1);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, AnEventOrdersWhatWasBeforeItOnly) {
  const CUdeviceptr block = alloc();
  const CUstream first = stream();
  const CUstream second = stream();
  const CUevent edge = event();
  SIM_OK(cuEventRecord(edge, first));
  touch(first, block, 64);
  SIM_OK(cuStreamWaitEvent(second, edge, 0));
  touch(second, block, 64);
  EXPECT_EQ(spwSimReportCount(), 1u);
}

TEST_P(DetectorTest, OrderIsTransitive) {
  const CUdeviceptr block = alloc();
  const CUstream streams[3] = {stream(), stream(), stream()};
  touch(streams[0], block, 64);
  order(streams[0], streams[1]);
  order(streams[1], streams[2]);
  touch(streams[2], block, 64);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, AHostWaitIsAnEdge) {
  const CUdeviceptr block = alloc();
  const CUstream first = stream();
  touch(first, block, 64);
  SIM_OK(cuStreamSynchronize(first));
  touch(stream(), block, 64);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, AQueryThatSaysYesIsAnEdge) {
  const CUdeviceptr block = alloc();
  const CUstream first = stream();
  const CUevent done = event();
  touch(first, block, 64);
  SIM_OK(cuEventRecord(done, first));
  while (cuEventQuery(done) == CUDA_ERROR_NOT_READY) {
  }
  touch(stream(), block, 64);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, CompletionThatNobodyAskedForIsNoEdge) {
  const CUdeviceptr block = alloc();
  const CUstream first = stream();
  touch(first, block, 64);
  ASSERT_EQ(spwSimCompleteTo(first, spwSimMark(first)), CUDA_SUCCESS);
  touch(stream(), block, 64);
  EXPECT_EQ(spwSimReportCount(), 1u);
}

TEST_P(DetectorTest, CopiesAndFillsAreAccesses) {
  const CUdeviceptr from = alloc();
  const CUdeviceptr to = alloc();
  SIM_OK(cuMemcpyDtoDAsync(to, from, 64, stream()));
  EXPECT_THAT(reports(), IsEmpty());
  SIM_OK(cuMemsetD8Async(from, 1, 64, stream()));
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("cuMemsetD8Async"), HasSubstr("reads the same bytes"))));
}

TEST_P(DetectorTest, UseOfWhatIsNotMapped) {
  const CUdeviceptr reserved = reserve(kPage);
  touch(stream(), reserved, 64);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("unmapped"), HasSubstr("never mapped"))));
  spwSimClearReports();
  const CUdeviceptr mapped = map_new();
  touch(stream(), mapped + kPage - 8, 16);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("unmapped")));
}

TEST_P(DetectorTest, UseAfterUnmap) {
  const CUdeviceptr at = map_new();
  SIM_OK(cuMemUnmap(at, kPage));
  touch(stream(), at, 64);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("already unmapped")));
}

TEST_P(DetectorTest, UseAfterFree) {
  const CUdeviceptr block = alloc();
  SIM_OK(cuMemFree(block));
  touch(stream(), block, 64);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("already freed")));
}

TEST_P(DetectorTest, MappedMemoryNeedsAccess) {
  const CUdeviceptr at = reserve(kPage);
  SIM_OK(cuMemMap(at, kPage, 0, create(), 0));
  touch(stream(), at, 64, SPW_SIM_READ);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("no access")));
  spwSimClearReports();
  CUmemAccessDesc desc = read_write();
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  SIM_OK(cuMemSetAccess(at, kPage, &desc, 1));
  touch(stream(), at, 64, SPW_SIM_READ);
  EXPECT_THAT(reports(), IsEmpty());
  touch(stream(), at, 64, SPW_SIM_WRITE);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("read access only")));
}

TEST_P(DetectorTest, UnmapDoesNotWait) {
  const CUdeviceptr at = map_new();
  const CUstream work = stream();
  touch(work, at, 64);
  SIM_OK(cuMemUnmap(at, kPage));
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("unmap of memory in use")));
  spwSimClearReports();
  const CUdeviceptr again = map_new();
  touch(work, again, 64);
  SIM_OK(cuStreamSynchronize(work));
  SIM_OK(cuMemUnmap(again, kPage));
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, FreeWaits) {
  const CUdeviceptr block = alloc();
  touch(stream(), block, 64);
  SIM_OK(cuMemFree(block));
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, OneViewMayGoWhileAnotherIsInUse) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr first = reserve(kPage);
  const CUdeviceptr second = reserve(kPage);
  map(first, handle);
  map(second, handle);
  touch(stream(), first, 64);
  SIM_OK(cuMemUnmap(second, kPage));
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, ALaterUseThroughAnotherViewDoesNotHideAnEarlierOne) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr first = reserve(kPage);
  const CUdeviceptr second = reserve(kPage);
  map(first, handle);
  map(second, handle);
  const CUstream work = stream();
  touch(work, first, 64);
  touch(work, second, 64);
  SIM_OK(cuMemUnmap(first, kPage));
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("unmap of memory in use")));
}

TEST_P(DetectorTest, ViewsMeetOnTheSameBytes) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr first = reserve(kPage);
  const CUdeviceptr second = reserve(kPage);
  map(first, handle);
  map(second, handle);
  const CUstream work = stream();
  touch(work, first, 64);
  touch(work, second, 64);  // the stream orders them
  EXPECT_THAT(reports(), IsEmpty());
  touch(stream(), second, 64);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("race")));
}

TEST_P(DetectorTest, AliasesMayNotMeetInOneGrid) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr first = reserve(kPage);
  const CUdeviceptr second = reserve(kPage);
  map(first, handle);
  map(second, handle);
  const CUstream work = stream();
  const SpwSimRange reads[2] = {{first, 64, SPW_SIM_READ, 0}, {second, 64, SPW_SIM_READ, 0}};
  ASSERT_EQ(spwSimTouch(work, reads, 2, 0), CUDA_SUCCESS);
  const SpwSimRange apart[2] = {{first, 64, SPW_SIM_WRITE, 0}, {second + 64, 64, SPW_SIM_WRITE, 0}};
  ASSERT_EQ(spwSimTouch(work, apart, 2, 0), CUDA_SUCCESS);
  const SpwSimRange same_view[2] = {{first, 64, SPW_SIM_READ, 0}, {first + 32, 64, SPW_SIM_WRITE, 0}};
  ASSERT_EQ(spwSimTouch(work, same_view, 2, 0), CUDA_SUCCESS);
  EXPECT_THAT(reports(), IsEmpty());
  const SpwSimRange alias[2] = {{first, 64, SPW_SIM_READ, 0}, {second + 32, 64, SPW_SIM_WRITE, 0}};
  ASSERT_EQ(spwSimTouch(work, alias, 2, 0), CUDA_SUCCESS);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("alias within one grid")));
  spwSimClearReports();
  const SpwSimRange reversed[2] = {{first, 64, SPW_SIM_WRITE, 0}, {second + 32, 64, SPW_SIM_READ, 0}};
  ASSERT_EQ(spwSimTouch(work, reversed, 2, 0), CUDA_SUCCESS);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("alias within one grid")));
}

TEST_P(DetectorTest, TheHostsOwnAccessWaits) {
  void* host = nullptr;
  SIM_OK(cuMemHostAlloc(&host, 4096, 0));
  const CUstream work = stream();
  SIM_OK(cuMemcpyDtoHAsync(host, alloc(), 64, work));
  ASSERT_EQ(spwSimHostAccess(host, 64, SPW_SIM_READ), CUDA_SUCCESS);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("race: the host reads")));
  spwSimClearReports();
  SIM_OK(cuStreamSynchronize(work));
  ASSERT_EQ(spwSimHostAccess(host, 64, SPW_SIM_READ), CUDA_SUCCESS);
  EXPECT_THAT(reports(), IsEmpty());
  SIM_OK(cuMemcpyHtoDAsync(alloc(), host, 64, work));
  ASSERT_EQ(spwSimHostAccess(host, 64, SPW_SIM_READ), CUDA_SUCCESS);
  EXPECT_THAT(reports(), IsEmpty());
  ASSERT_EQ(spwSimHostAccess(host, 64, SPW_SIM_WRITE), CUDA_SUCCESS);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("race: the host writes")));
  SIM_OK(cuMemFreeHost(host));
}

TEST_P(DetectorTest, NotedBlocksAreNotUsedAfterTheirFree) {
  const CUdeviceptr at = map_new();
  const CUstream work = stream();
  spwSimNoteAlloc(at, 512, work);
  touch(work, at, 512);
  spwSimNoteFree(at);
  touch(work, at + 512, 512);
  EXPECT_THAT(reports(), IsEmpty());
  touch(work, at + 511, 2);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("use after free")));
  spwSimClearReports();
  spwSimNoteAlloc(at, 512, work);
  touch(work, at, 512);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, ABlockHandedToAnotherStreamTooEarly) {
  const CUdeviceptr at = map_new();
  const CUstream first = stream();
  const CUstream second = stream();
  spwSimNoteAlloc(at, 512, first);
  touch(first, at, 512);
  spwSimNoteFree(at);
  spwSimNoteAlloc(at, 512, second);
  touch(second, at, 512);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("race")));
}

TEST_P(DetectorTest, NotesOfOwnersAreChecked) {
  const CUdeviceptr at = map_new();
  const CUstream work = stream();
  spwSimNoteAlloc(at, 1024, work);
  spwSimNoteAlloc(at + 512, 1024, work);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("two owners")));
  spwSimClearReports();
  spwSimNoteFree(at + 100);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("not a live block")));
  spwSimClearReports();
  spwSimNoteFree(at + 512);
  spwSimNoteFree(at + 512);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("not a live block")));
}

TEST_P(DetectorTest, PeersNeedPermission) {
  start((std::string(GetParam()) + ",devices:2").c_str());
  const CUdeviceptr block = alloc();
  CUcontext own = nullptr;
  CUcontext peer = nullptr;
  SIM_OK(cuCtxGetCurrent(&own));
  SIM_OK(cuDevicePrimaryCtxRetain(&peer, 1));
  SIM_OK(cuCtxSetCurrent(peer));
  touch(nullptr, block, 64, SPW_SIM_READ);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("no access")));
  spwSimClearReports();
  SIM_OK(cuCtxEnablePeerAccess(own, 0));
  EXPECT_EQ(cuCtxEnablePeerAccess(own, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  touch(nullptr, block, 64, SPW_SIM_READ);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_P(DetectorTest, ThePeerFormOfACopyReachesEachSideFromItsOwnDevice) {
  start((std::string(GetParam()) + ",devices:2,mig:1").c_str());
  CUcontext own = nullptr;
  CUcontext other = nullptr;
  SIM_OK(cuCtxGetCurrent(&own));
  SIM_OK(cuDevicePrimaryCtxRetain(&other, 1));
  const CUdeviceptr here = map_new();
  const CUmemAllocationProp prop = device_memory(1);
  const CUmemAccessDesc desc = read_write(1);
  CUmemGenericAllocationHandle handle = 0;
  SIM_OK(cuMemCreate(&handle, kPage, &prop, 0));
  const CUdeviceptr there = reserve(kPage);
  SIM_OK(cuMemMap(there, kPage, 0, handle, 0));
  SIM_OK(cuMemSetAccess(there, kPage, &desc, 1));
  SIM_OK(cuMemcpyPeerAsync(there, other, here, own, kPage, nullptr));
  EXPECT_THAT(reports(), IsEmpty());
  EXPECT_EQ(cuMemcpyPeerAsync(there, nullptr, here, own, kPage, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  SIM_OK(cuMemcpyPeerAsync(there, own, here, own, kPage, nullptr));
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("no access")));
  spwSimClearReports();
  SIM_OK(cuMemcpyAsync(there, here, kPage, nullptr));
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("no access")));
}

TEST_P(DetectorTest, BranchesOfAGraphAreCheckedAgainstEachOther) {
  const CUdeviceptr block = alloc();
  const CUstream origin = stream();
  const CUstream side = stream();
  const auto capture = [&](CUdeviceptr side_block) {
    EXPECT_EQ(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    const CUevent fork = event();
    const CUevent join = event();
    EXPECT_EQ(cuEventRecord(fork, origin), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(side, fork, 0), CUDA_SUCCESS);
    touch(origin, block, 64);
    touch(side, side_block, 64);
    EXPECT_EQ(cuEventRecord(join, side), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(origin, join, 0), CUDA_SUCCESS);
    touch(origin, block, 2048);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(origin, &graph), CUDA_SUCCESS);
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
  };
  const CUgraphExec sound = capture(block + 1024);
  const CUgraphExec racy = capture(block + 32);
  EXPECT_THAT(reports(), IsEmpty()) << "captured work does nothing yet";
  SIM_OK(cuGraphLaunch(sound, origin));
  SIM_OK(cuGraphLaunch(sound, origin));
  EXPECT_THAT(reports(), IsEmpty());
  SIM_OK(cuGraphLaunch(racy, origin));
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("race")));
}

TEST_P(DetectorTest, ManyReportsAreCountedAndSomeKept) {
  const CUdeviceptr reserved = reserve(kPage);
  const CUstream work = stream();
  for (int i = 0; i < 1500; ++i) touch(work, reserved, 1);
  EXPECT_EQ(spwSimReportCount(), 1500u);
  EXPECT_NE(spwSimReport(999), nullptr);
  EXPECT_EQ(spwSimReport(1000), nullptr);
}

TEST_P(DetectorTest, SwitchedOffItSaysNothing) {
  start((std::string(GetParam()) + ",races:off").c_str());
  const CUdeviceptr at = map_new();
  touch(stream(), at, 64);
  touch(stream(), at, 64);
  SIM_OK(cuMemUnmap(at, kPage));
  touch(stream(), at, 64);
  EXPECT_EQ(spwSimReportCount(), 0u);
}

}  // namespace
}  // namespace spillway::sim_test
