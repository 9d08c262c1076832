// Memory of graphs: when it is allocated and freed, what relaunches demand, and what the device keeps.
#include <gmock/gmock.h>

#include <functional>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GraphMemoryTest : public DeviceTest {
 protected:
  void SetUp() override {
    start("completion:run-ahead");
    work = stream();
  }

  // A graph that allocates `block`, writes it and does what `body` puts on the stream.
  CUgraph capture(
      size_t bytes, const std::function<void()>& body = [] {}) {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamBeginCapture(work, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocAsync(&block, bytes, work), CUDA_SUCCESS);
    touch(work, block, bytes);
    body();
    EXPECT_EQ(cuStreamEndCapture(work, &graph), CUDA_SUCCESS);
    return graph;
  }
  static CUgraphExec instantiate(CUgraph graph, unsigned long long flags = 0) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, flags), CUDA_SUCCESS);
    return exec;
  }
  CUgraphExec auto_freeing(CUgraph graph) {
    return instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  }
  void free_in_graph() { SIM_EXPECT_OK(cuMemFreeAsync(block, work)); }

  static uint64_t get(CUgraphMem_attribute attribute, int device = 0) {
    uint64_t value = 0;
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(device, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  static CUresult set(CUgraphMem_attribute attribute, uint64_t value, int device = 0) {
    return cuDeviceSetGraphMemAttribute(device, attribute, &value);
  }
  static uint64_t used() { return get(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT); }
  static uint64_t reserved() { return get(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT); }

  CUstream work = nullptr;
  CUdeviceptr block = 0;
};

TEST_F(GraphMemoryTest, IsFreedBeforeARelaunchWhereTheGraphWasInstantiatedSo) {
  const CUgraphExec exec = auto_freeing(capture(kPage));
  for (int i = 0; i < 3; ++i) {
    SIM_OK(cuGraphLaunch(exec, work));
    touch(work, block, kPage);
  }
  EXPECT_EQ(reserved(), kPage);
  EXPECT_THAT(reports(), IsEmpty());
  SIM_OK(cuMemFreeAsync(block, work));
  EXPECT_EQ(cuMemFreeAsync(block, work), CUDA_ERROR_INVALID_VALUE) << "it is freed once";
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(GraphMemoryTest, ThatIsNotFreedForbidsARelaunchOtherwise) {
  const CUgraphExec exec = instantiate(capture(kPage));
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_EQ(cuGraphLaunch(exec, work), CUDA_ERROR_INVALID_VALUE);
  touch(work, block, kPage);
  SIM_OK(cuMemFreeAsync(block, work));
  SIM_OK(cuGraphLaunch(exec, work));
  SIM_OK(cuMemFree(block));
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(GraphMemoryTest, IsFreedInTheOrderOfTheLaunchingStream) {
  const CUgraphExec exec = auto_freeing(capture(kPage));
  const CUstream user = stream();
  const CUevent launched = event();
  SIM_OK(cuGraphLaunch(exec, work));
  SIM_OK(cuEventRecord(launched, work));
  SIM_OK(cuStreamWaitEvent(user, launched, 0));
  touch(user, block, kPage);
  const uint64_t mark = spwSimMark(user);
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_EQ(spwSimIsComplete(user, mark), 0) << "the launch waits for nobody";
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("race: free before cuGraphLaunch")));
}

TEST_F(GraphMemoryTest, LaunchesOnAnotherStreamComeAfterThoseBefore) {
  const CUgraphExec exec = auto_freeing(capture(kPage));
  const CUstream other = stream();
  SIM_OK(cuGraphLaunch(exec, work));
  const uint64_t mark = spwSimMark(work);
  SIM_OK(cuGraphLaunch(exec, other));
  EXPECT_THAT(reports(), IsEmpty());
  SIM_OK(cuStreamSynchronize(other));
  EXPECT_EQ(spwSimIsComplete(work, mark), 1);
}

TEST_F(GraphMemoryTest, ThatTheGraphFreesIsNobodyElsesToFree) {
  const CUgraphExec exec = instantiate(capture(kPage, [&] { free_in_graph(); }));
  for (int i = 0; i < 3; ++i) SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_EQ(cuMemFreeAsync(block, work), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(block), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(reports(), IsEmpty());
  touch(work, block, kPage);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("use after free")));
}

TEST_F(GraphMemoryTest, IsFreedByALaunchOfAnotherGraph) {
  const CUgraphExec maker = instantiate(capture(kPage));
  const CUdeviceptr made = block;
  CUgraph graph = nullptr;
  SIM_OK(cuStreamBeginCapture(work, CU_STREAM_CAPTURE_MODE_GLOBAL));
  SIM_OK(cuMemFreeAsync(made, work));
  EXPECT_EQ(cuMemFreeAsync(made, work), CUDA_ERROR_INVALID_VALUE) << "twice in one graph";
  SIM_OK(cuStreamEndCapture(work, &graph));
  const CUgraphExec freer = instantiate(graph);
  EXPECT_EQ(cuGraphLaunch(freer, work), CUDA_ERROR_INVALID_VALUE) << "there is nothing to free";
  for (int i = 0; i < 3; ++i) {
    SIM_OK(cuGraphLaunch(maker, work));
    touch(work, made, kPage);
    SIM_OK(cuGraphLaunch(freer, work));
  }
  EXPECT_THAT(reports(), IsEmpty());
  touch(work, made, kPage);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("use after free")));
}

TEST_F(GraphMemoryTest, HasItsFreeNodeInOneGraph) {
  CUgraph owner = nullptr;
  CUgraph other = nullptr;
  CUgraphNode node = nullptr;
  SIM_OK(cuGraphCreate(&owner, 0));
  SIM_OK(cuGraphCreate(&other, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  parameters.bytesize = kPage;
  SIM_OK(cuGraphAddMemAllocNode(&node, owner, nullptr, 0, &parameters));
  const CUdeviceptr first = parameters.dptr;
  SIM_OK(cuGraphAddMemAllocNode(&node, owner, nullptr, 0, &parameters));
  const CUdeviceptr second = parameters.dptr;
  SIM_OK(cuGraphAddMemFreeNode(&node, owner, nullptr, 0, first));
  EXPECT_EQ(cuGraphAddMemFreeNode(&node, owner, nullptr, 0, first), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddMemFreeNode(&node, other, nullptr, 0, first), CUDA_ERROR_INVALID_VALUE);
  SIM_OK(cuGraphAddMemFreeNode(&node, other, nullptr, 0, second));
  EXPECT_EQ(cuGraphAddMemFreeNode(&node, owner, nullptr, 0, second), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddMemFreeNode(&node, owner, nullptr, 0, alloc()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddMemFreeNode(&node, owner, nullptr, 0, 12345), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphMemoryTest, ThatANodeFreesIsNotUsedBehindIt) {
  const CUstream side = stream();
  const CUevent fork = event();
  const CUevent join = event();
  const CUgraphExec exec = instantiate(capture(kPage, [&] {
    SIM_EXPECT_OK(cuEventRecord(fork, work));
    SIM_EXPECT_OK(cuStreamWaitEvent(side, fork, 0));
    touch(side, block, kPage);
    free_in_graph();
    SIM_EXPECT_OK(cuEventRecord(join, side));
    SIM_EXPECT_OK(cuStreamWaitEvent(work, join, 0));
  }));
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("race: free node")));
}

TEST_F(GraphMemoryTest, ComesWithTheFirstLaunchAndStaysUntilItIsTrimmed) {
  const CUgraph graph = capture(3 * kPage - 1, [&] { free_in_graph(); });
  const CUgraphExec exec = instantiate(graph);
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u) << "a node has addresses alone";
  EXPECT_EQ(reserved(), 0u);
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_EQ(used(), 3 * kPage);
  EXPECT_EQ(reserved(), 3 * kPage);
  EXPECT_EQ(spwSimPhysicalBytes(0), 3 * kPage);
  SIM_OK(cuDeviceGraphMemTrim(0));
  EXPECT_EQ(reserved(), 3 * kPage) << "the graph may still be running";
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_EQ(reserved(), 3 * kPage) << "waits give nothing back";
  SIM_OK(cuDeviceGraphMemTrim(0));
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(reserved(), 0u);
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_EQ(reserved(), 3 * kPage) << "the next launch has it again";
  SIM_OK(cuGraphExecDestroy(exec));
  EXPECT_EQ(used(), 3 * kPage);
  SIM_OK(cuGraphDestroy(graph));
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(reserved(), 3 * kPage) << "for the graphs that come";
  SIM_OK(cuStreamSynchronize(work));
  SIM_OK(cuDeviceGraphMemTrim(0));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(GraphMemoryTest, ComesWithAnUploadToo) {
  const CUgraphExec exec = instantiate(capture(kPage));
  SIM_OK(cuGraphUpload(exec, work));
  EXPECT_EQ(reserved(), kPage);
  EXPECT_EQ(used(), kPage);
}

TEST_F(GraphMemoryTest, OfGraphsThatAreGoneServesLaterOnes) {
  for (int i = 0; i < 3; ++i) {
    const CUgraph graph = capture(kPage, [&] { free_in_graph(); });
    const CUgraphExec exec = instantiate(graph);
    SIM_OK(cuGraphDestroy(graph));
    SIM_OK(cuGraphLaunch(exec, work));
    SIM_OK(cuStreamSynchronize(work));
    SIM_OK(cuGraphExecDestroy(exec));
  }
  EXPECT_EQ(reserved(), kPage);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(GraphMemoryTest, OutlivesItsGraphUntilItIsFreed) {
  const CUgraph graph = capture(kPage);
  const CUgraphExec exec = auto_freeing(graph);
  SIM_OK(cuGraphLaunch(exec, work));
  SIM_OK(cuGraphExecDestroy(exec));
  SIM_OK(cuGraphDestroy(graph));
  SIM_OK(cuStreamSynchronize(work));
  SIM_OK(cuDeviceGraphMemTrim(0));
  EXPECT_EQ(used(), kPage);
  touch(work, block, kPage);
  SIM_OK(cuMemFreeAsync(block, work));
  EXPECT_EQ(used(), 0u);
  SIM_OK(cuStreamSynchronize(work));
  SIM_OK(cuDeviceGraphMemTrim(0));
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(GraphMemoryTest, ThatIsNotThereFailsTheLaunch) {
  start("completion:run-ahead,capacity:8MiB");
  work = stream();
  const CUgraphExec exec = instantiate(capture(3 * kPage, [&] { free_in_graph(); }));
  const CUdeviceptr rest = alloc(2 * kPage);
  EXPECT_EQ(cuGraphLaunch(exec, work), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuGraphUpload(exec, work), CUDA_ERROR_OUT_OF_MEMORY);
  SIM_OK(cuMemFree(rest));
  SIM_OK(cuGraphLaunch(exec, work));
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(GraphMemoryTest, WatermarksCanBeSetToZeroAlone) {
  const CUgraph graph = capture(3 * kPage, [&] { free_in_graph(); });
  SIM_OK(cuGraphLaunch(instantiate(graph), work));
  SIM_OK(cuStreamSynchronize(work));
  SIM_OK(cuDeviceGraphMemTrim(0));
  for (const auto high : {CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH}) {
    EXPECT_EQ(get(high), 3 * kPage);
    EXPECT_EQ(set(high, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(get(high), 3 * kPage);
    SIM_OK(set(high, 0));
    EXPECT_EQ(get(high), 0u);
  }
}

TEST_F(GraphMemoryTest, AttributesRefuseWhatTheyAreNot) {
  uint64_t value = 0;
  EXPECT_EQ(cuDeviceGetGraphMemAttribute(9, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(set(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, 0, 9), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGraphMemTrim(9), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  for (const int none : {-1, 99}) {
    const auto attribute = static_cast<CUgraphMem_attribute>(none);
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, attribute, &value), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(set(attribute, 0), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(set(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphMemoryTest, EveryWayToInstantiateTakesTheFlag) {
  const CUgraph graph = capture(kPage);
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
  parameters.flags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  CUgraphExec exec = nullptr;
  SIM_OK(cuGraphInstantiateWithParams(&exec, graph, &parameters));
  EXPECT_EQ(parameters.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  SIM_OK(cuGraphLaunch(exec, work));
  SIM_OK(cuGraphLaunch(exec, work));
}

TEST_F(GraphMemoryTest, FlagsThatExcludeEachOtherAreRefused) {
  const CUgraph graph = capture(kPage);
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiate(
                &exec, graph,
                CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphInstantiate(&exec, graph, 1ULL << 20), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, graph, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphMemoryTest, IsNoChildGraphs) {
  const CUgraphExec exec = instantiate(capture(kPage, [&] { free_in_graph(); }));
  SIM_OK(cuStreamBeginCapture(work, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuGraphLaunch(exec, work), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(GraphMemoryTest, OfACaptureThatFailedIsGone) {
  SIM_OK(cuStreamBeginCapture(work, CU_STREAM_CAPTURE_MODE_GLOBAL));
  SIM_OK(cuMemAllocAsync(&block, kPage, work));
  EXPECT_EQ(cuStreamSynchronize(work), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(work, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUdeviceptr base = 0;
  EXPECT_EQ(cuMemGetAddressRange(&base, nullptr, block), CUDA_ERROR_NOT_FOUND);
}

TEST_F(GraphMemoryTest, GoesWithItsContext) {
  SIM_OK(cuGraphLaunch(instantiate(capture(kPage)), work));
  SIM_OK(cuDevicePrimaryCtxReset(0));
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(reserved(), 0u);
}

}  // namespace
}  // namespace spillway::sim_test
