#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::IsEmpty;

class StreamTest : public DeviceTest {
 protected:
  static unsigned byte_at(CUdeviceptr at) {
    unsigned char got = 0;
    EXPECT_EQ(cuMemcpyDtoH(&got, at, 1), CUDA_SUCCESS);
    return got;
  }
};

TEST_F(StreamTest, InstantWorkIsCompleteWhenEnqueued) {
  const CUstream work = stream();
  const CUevent done = event();
  SIM_OK(cuMemsetD8Async(alloc(), 1, 16, work));
  SIM_OK(cuEventRecord(done, work));
  SIM_EXPECT_OK(cuEventQuery(done));
  SIM_EXPECT_OK(cuStreamQuery(work));
}

TEST_F(StreamTest, AStreamThatWaitsForAWordOfMemoryStandsStillInEveryMode) {
  for (const char* mode : {"completion:instant", "completion:late", "completion:run-ahead"}) {
    start(mode);
    const CUstream held = stream();
    const CUstream behind = stream();
    const CUstream free = stream();
    const CUdeviceptr block = alloc();
    const CUevent reached = event();
    void* word = nullptr;
    CUdeviceptr address = 0;
    SIM_OK(cuMemHostAlloc(&word, sizeof(uint32_t), CU_MEMHOSTALLOC_DEVICEMAP));
    std::atomic_ref<uint32_t> gate(*static_cast<uint32_t*>(word));
    gate = 0;
    SIM_OK(cuMemHostGetDevicePointer(&address, word, 0));
    SIM_OK(cuStreamWaitValue32(held, address, 1, CU_STREAM_WAIT_VALUE_EQ));
    SIM_OK(cuMemsetD8Async(block, 7, 16, held));
    SIM_OK(cuEventRecord(reached, held));
    SIM_OK(cuStreamWaitEvent(behind, reached, 0));
    SIM_OK(cuMemsetD8Async(block + 16, 7, 16, behind));
    SIM_OK(cuStreamSynchronize(free));
    for (int look = 0; look < 200; ++look) {
      EXPECT_EQ(cuStreamQuery(held), CUDA_ERROR_NOT_READY) << mode;
      EXPECT_EQ(cuStreamQuery(behind), CUDA_ERROR_NOT_READY) << mode;
    }
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      gate = 1;
    });
    SIM_OK(cuStreamSynchronize(behind));
    EXPECT_EQ(gate, 1u) << mode;
    opener.join();
    SIM_EXPECT_OK(cuEventQuery(reached));
    EXPECT_EQ(byte_at(block), 7u);
    EXPECT_EQ(byte_at(block + 16), 7u);
  }
}

TEST_F(StreamTest, WaitsForMemoryThatAreRefused) {
  const CUstream stream = this->stream();
  const CUdeviceptr block = alloc();
  EXPECT_EQ(cuStreamWaitValue32(stream, block + 2, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(stream, block, 1, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(stream, 64, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_ERROR_INVALID_VALUE);
  start("backing:none");
  EXPECT_EQ(cuStreamWaitValue32(this->stream(), alloc(), 1, CU_STREAM_WAIT_VALUE_EQ),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(StreamTest, RunAheadCompletesOnlyWhatTheHostWaitsFor) {
  start("completion:run-ahead");
  const CUstream first = stream();
  const CUstream second = stream();
  const CUevent done = event();
  SIM_OK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, first, nullptr, nullptr));
  SIM_OK(cuEventRecord(done, first));
  SIM_OK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, second, nullptr, nullptr));
  EXPECT_EQ(cuEventQuery(done), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  SIM_OK(cuEventSynchronize(done));
  SIM_EXPECT_OK(cuEventQuery(done));
  EXPECT_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  SIM_OK(cuCtxSynchronize());
  SIM_EXPECT_OK(cuStreamQuery(second));
}

TEST_F(StreamTest, AnEventOnAnIdleStreamIsComplete) {
  start("completion:run-ahead");
  const CUstream work = stream();
  const CUevent done = event();
  SIM_OK(cuEventRecord(done, work));
  SIM_EXPECT_OK(cuEventQuery(done));
  touch(work, 4096, 0);
  SIM_OK(cuEventRecord(done, work));
  EXPECT_EQ(cuEventQuery(done), CUDA_ERROR_NOT_READY);
}

TEST_F(StreamTest, MarksCompleteWithWhatTheyDependOn) {
  start("completion:run-ahead");
  const CUstream first = stream();
  const CUstream second = stream();
  const CUstream third = stream();
  const CUevent done = event();
  SIM_OK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, first, nullptr, nullptr));
  SIM_OK(cuEventRecord(done, first));
  const uint64_t first_mark = spwSimMark(first);
  SIM_OK(cuStreamWaitEvent(second, done, 0));
  const uint64_t mark = spwSimMark(second);
  SIM_OK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, second, nullptr, nullptr));
  touch(third, alloc(), 16);
  ASSERT_EQ(spwSimCompleteTo(second, mark), CUDA_SUCCESS);
  EXPECT_EQ(spwSimIsComplete(first, first_mark), 1);
  EXPECT_EQ(spwSimIsComplete(second, mark), 1);
  EXPECT_EQ(spwSimIsComplete(second, mark + 1), 0);
  EXPECT_EQ(spwSimIsComplete(third, spwSimMark(third)), 0);
  EXPECT_EQ(spwSimCompleteTo(second, mark + 100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(spwSimHostWaits(), 0u);
  EXPECT_EQ(spwSimStreamWaits(), 1u);
}

TEST_F(StreamTest, GridsStoreWhatTheyAreTold) {
  start("completion:late");
  const CUdeviceptr block = alloc();
  const CUstream work = stream();
  const uint64_t value[2] = {0x0102030405060708, 0x1112131415161718};
  const SpwSimRange ranges[] = {{block, 32, 0, 0}, {block + 64, 20, 0, 0}};
  ASSERT_EQ(spwSimFill(work, ranges, 2, value, sizeof value), CUDA_SUCCESS);
  const SpwSimRange kept{block, 128, SPW_SIM_WRITE | SPW_SIM_KEEP_BYTES, 0};
  ASSERT_EQ(spwSimTouch(work, &kept, 1, 0), CUDA_SUCCESS);
  uint64_t bytes[16];
  SIM_OK(cuMemcpyDtoHAsync(bytes, block, sizeof bytes, work));
  SIM_OK(cuStreamSynchronize(work));
  const uint64_t wanted[16] = {value[0], value[1], value[0], value[1], 0, 0, 0, 0, value[0], value[1]};
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(bytes[i], wanted[i]) << i;

  // A write that stores nothing is a write for the detector.
  touch(stream(), block + 100, 1, SPW_SIM_READ);
  EXPECT_EQ(reports().size(), 0u);
  ASSERT_EQ(spwSimTouch(work, &kept, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(reports().size(), 1u);

  EXPECT_EQ(spwSimFill(work, ranges, 2, value, 17), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(spwSimFill(work, ranges, 2, value, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(spwSimFill(work, ranges, 2, nullptr, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(std::string(spwSimLastError()), "");
}

TEST_F(StreamTest, LateWorkRunsWhenForcedAndNotBefore) {
  start("completion:late");
  const CUdeviceptr block = alloc();
  const CUstream first = stream();
  const CUstream second = stream();
  void* pinned = nullptr;
  SIM_OK(cuMemHostAlloc(&pinned, 2, 0));
  auto* bytes = static_cast<unsigned char*>(pinned);
  bytes[0] = 0;
  bytes[1] = 0;
  SIM_OK(cuMemsetD8Async(block, 7, 2, first));
  SIM_OK(cuMemcpyDtoHAsync(pinned, block, 1, first));
  const CUevent done = event();
  SIM_OK(cuEventRecord(done, first));
  SIM_OK(cuStreamWaitEvent(second, done, 0));
  SIM_OK(cuMemcpyDtoHAsync(bytes + 1, block + 1, 1, second));
  EXPECT_EQ(bytes[0], 0);
  SIM_OK(cuEventSynchronize(done));
  EXPECT_EQ(bytes[0], 7);
  EXPECT_EQ(bytes[1], 0);
  SIM_OK(cuStreamSynchronize(second));
  EXPECT_EQ(bytes[1], 7);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(StreamTest, LateStreamsWithoutOrderRunInEitherOrder) {
  bool first_won = false;
  bool second_won = false;
  for (int seed = 0; seed < 40 && !(first_won && second_won); ++seed) {
    start(("completion:late,races:off,seed:" + std::to_string(seed)).c_str());
    const CUdeviceptr block = alloc();
    const CUstream first = stream();
    const CUstream second = stream();
    SIM_OK(cuMemsetD8Async(block, 1, 1, first));
    SIM_OK(cuMemsetD8Async(block, 2, 1, second));
    const CUevent both[2] = {event(), event()};
    SIM_OK(cuEventRecord(both[0], first));
    SIM_OK(cuEventRecord(both[1], second));
    const CUstream third = stream();
    SIM_OK(cuStreamWaitEvent(third, both[0], 0));
    SIM_OK(cuStreamWaitEvent(third, both[1], 0));
    SIM_OK(cuStreamSynchronize(third));
    (byte_at(block) == 1 ? first_won : second_won) = true;
  }
  EXPECT_TRUE(first_won);
  EXPECT_TRUE(second_won);
}

TEST_F(StreamTest, LateOrderRespectsEveryDependency) {
  for (int seed = 0; seed < 20; ++seed) {
    start(("completion:late,seed:" + std::to_string(seed)).c_str());
    const CUdeviceptr block = alloc();
    const CUstream streams[3] = {stream(), stream(), stream()};
    const CUevent done = event();
    // A chain over three streams; each step writes its number over the last.
    for (unsigned char step = 1; step <= 30; ++step) {
      const CUstream on = streams[(step * 7) % 3];
      SIM_OK(cuStreamWaitEvent(on, done, 0));
      SIM_OK(cuMemsetD8Async(block, step, 64, on));
      SIM_OK(cuEventRecord(done, on));
    }
    SIM_OK(cuEventSynchronize(done));
    ASSERT_EQ(byte_at(block + 63), 30u);
    ASSERT_THAT(reports(), IsEmpty());
  }
}

TEST_F(StreamTest, LateQueriesComeTrueInTheEnd) {
  start("completion:late");
  const CUstream work = stream();
  const CUevent done = event();
  bool ever_not_ready = false;
  for (int i = 0; i < 20; ++i) {
    touch(work, alloc(), 16);
    SIM_OK(cuEventRecord(done, work));
    int asked = 0;
    while (cuEventQuery(done) == CUDA_ERROR_NOT_READY) {
      ever_not_ready = true;
      ASSERT_LT(++asked, 64);
    }
  }
  EXPECT_TRUE(ever_not_ready);
}

TEST_F(StreamTest, APollingLoopIsOneHostWait) {
  start("completion:run-ahead");
  const CUstream work = stream();
  const CUevent done = event();
  SIM_OK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, work, nullptr, nullptr));
  SIM_OK(cuEventRecord(done, work));
  int asked = 0;
  while (cuEventQuery(done) == CUDA_ERROR_NOT_READY) ASSERT_LT(++asked, 1000);
  EXPECT_EQ(spwSimHostWaits(), 1u);
  // Asking now and then between other work is no loop.
  for (int i = 0; i < 1000; ++i) {
    touch(work, 4096, 0);
    SIM_OK(cuEventRecord(done, work));
    ASSERT_EQ(cuEventQuery(done), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(spwSimHostWaits(), 1u);
}

TEST_F(StreamTest, HostWaitsAreCounted) {
  const CUstream work = stream();
  const CUevent done = event();
  SIM_OK(cuStreamSynchronize(work));
  SIM_OK(cuEventSynchronize(done));
  SIM_OK(cuCtxSynchronize());
  SIM_OK(cuMemFree(alloc()));
  SIM_OK(cuMemUnmap(map_new(), kPage));
  SIM_OK(cuStreamWaitEvent(work, done, 0));
  EXPECT_EQ(spwSimHostWaits(), 5u);
  EXPECT_EQ(spwSimStreamWaits(), 1u);
}

TEST_F(StreamTest, TheLegacyStreamIsOrderedWithBlockingStreamsOnly) {
  start("completion:run-ahead");
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  const CUstream free = stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr block = alloc(3);
  touch(blocking, block, 1);
  touch(free, block + 1, 1);
  touch(nullptr, block, 1);  // after `blocking`
  EXPECT_THAT(reports(), IsEmpty());
  touch(nullptr, block + 1, 1);  // not after `free`
  EXPECT_EQ(spwSimReportCount(), 1u);
  spwSimClearReports();
  touch(nullptr, block + 2, 1);
  touch(blocking, block + 2, 1);  // after the legacy stream
  EXPECT_THAT(reports(), IsEmpty());
  const uint64_t before = spwSimMark(blocking);
  SIM_OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(spwSimIsComplete(blocking, before), 1);
  EXPECT_EQ(spwSimIsComplete(free, spwSimMark(free)), 0);
}

TEST_F(StreamTest, SynchronousCopiesDoNotWaitForNonBlockingStreams) {
  start("completion:run-ahead");
  const CUdeviceptr block = alloc();
  const CUstream free = stream(CU_STREAM_NON_BLOCKING);
  touch(free, block, 16);
  char got[16];
  SIM_OK(cuMemcpyDtoH(got, block, sizeof got));
  EXPECT_EQ(spwSimReportCount(), 1u);
  EXPECT_EQ(spwSimIsComplete(free, spwSimMark(free)), 0);
}

TEST_F(StreamTest, EachThreadHasItsOwnDefaultStream) {
  CUcontext context = nullptr;
  SIM_OK(cuCtxGetCurrent(&context));
  unsigned long long mine = 0;
  unsigned long long theirs = 0;
  unsigned long long legacy = 0;
  SIM_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
  SIM_OK(cuStreamGetId(nullptr, &legacy));
  std::thread other([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamGetId(CU_STREAM_PER_THREAD, &theirs), CUDA_SUCCESS);
  });
  other.join();
  EXPECT_NE(mine, theirs);
  EXPECT_NE(mine, legacy);
}

TEST_F(StreamTest, HandlesAreRecycledButIdsAreNot) {
  start("destroyed_streams:report");
  const CUstream first = stream();
  unsigned long long first_id = 0;
  SIM_OK(cuStreamGetId(first, &first_id));
  SIM_OK(cuStreamDestroy(first));
  EXPECT_EQ(cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
  const CUstream second = stream();
  EXPECT_EQ(second, first);
  unsigned long long second_id = 0;
  SIM_OK(cuStreamGetId(second, &second_id));
  EXPECT_NE(second_id, first_id);
}

TEST_F(StreamTest, WorkOfADestroyedStreamIsNotOrderedBeforeItsSuccessors) {
  start("completion:run-ahead");
  const CUdeviceptr block = alloc();
  const CUstream first = stream();
  touch(first, block, 16);
  SIM_OK(cuStreamDestroy(first));
  const CUstream second = stream();
  ASSERT_EQ(second, first);
  touch(second, block, 16);
  EXPECT_EQ(spwSimReportCount(), 1u);
  // A wait for the context covers it.
  SIM_OK(cuCtxSynchronize());
  touch(stream(), block, 16);
  EXPECT_EQ(spwSimReportCount(), 1u);
}

TEST_F(StreamTest, HostFunctionsRunInOrderAndMayNotCallTheDriver) {
  start("completion:late");
  const CUstream work = stream();
  std::vector<int> order;
  struct Step {
    std::vector<int>* order;
    int number;
  } steps[2] = {{&order, 1}, {&order, 2}};
  const CUhostFn run = [](void* data) {
    auto* step = static_cast<Step*>(data);
    step->order->push_back(step->number);
    CUdeviceptr block = 0;
    EXPECT_EQ(cuMemAlloc(&block, 1), CUDA_ERROR_NOT_PERMITTED);
  };
  SIM_OK(cuLaunchHostFunc(work, run, &steps[0]));
  SIM_OK(cuLaunchHostFunc(work, run, &steps[1]));
  EXPECT_THAT(order, IsEmpty());
  SIM_OK(cuStreamSynchronize(work));
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2));
}

TEST_F(StreamTest, TwoThreadsMayWaitForOneHostFunction) {
  start("completion:late");
  const CUstream work = stream();
  CUcontext context = nullptr;
  SIM_OK(cuCtxGetCurrent(&context));
  struct Gate {
    std::atomic<int> entered{0};
    std::atomic<bool> open{false};
  } gate;
  SIM_OK(cuLaunchHostFunc(
      work,
      [](void* data) {
        auto* gate = static_cast<Gate*>(data);
        gate->entered.fetch_add(1);
        while (!gate->open.load()) std::this_thread::yield();
      },
      &gate));
  const auto wait = [&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(work), CUDA_SUCCESS);
    EXPECT_TRUE(gate.open.load());
  };
  std::thread first(wait);
  std::thread second(wait);
  while (gate.entered.load() == 0) std::this_thread::yield();
  // The driver serves other threads meanwhile.
  alloc();
  gate.open.store(true);
  first.join();
  second.join();
  EXPECT_EQ(gate.entered.load(), 1);
}

TEST_F(StreamTest, LongQueuesOfWaitsComplete) {
  start("completion:run-ahead,backing:none");
  const CUstream work = stream();
  const CUstream other = stream();
  const CUevent done = event();
  touch(work, 4096, 0);
  for (int i = 1; i < 300000; ++i) {
    SIM_OK(cuEventRecord(done, work));
    if (i % 3 != 0) continue;
    SIM_OK(cuStreamWaitEvent(other, done, 0));
  }
  EXPECT_EQ(spwSimIsComplete(work, 1), 0);
  SIM_OK(cuStreamSynchronize(other));
  EXPECT_EQ(spwSimIsComplete(work, 299998), 1);
  EXPECT_EQ(spwSimIsComplete(work, 300000), 0);
}

TEST_F(StreamTest, ThreadsShareTheDevice) {
  start("completion:late,backing:none");
  CUcontext context = nullptr;
  SIM_OK(cuCtxGetCurrent(&context));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      const CUstream work = stream();
      const CUevent done = event();
      for (int i = 0; i < 200; ++i) {
        const CUdeviceptr block = alloc();
        touch(work, block, kPage);
        EXPECT_EQ(cuEventRecord(done, work), CUDA_SUCCESS);
        EXPECT_EQ(cuEventSynchronize(done), CUDA_SUCCESS);
        EXPECT_EQ(cuMemFree(block), CUDA_SUCCESS);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(reports(), IsEmpty());
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
}

TEST_F(StreamTest, ADestroyedStreamIsRefusedOrAFault) {
  start("destroyed_streams:report");
  CUstream gone = stream();
  SIM_OK(cuStreamDestroy(gone));
  EXPECT_EQ(cuStreamQuery(gone), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(spwSimDeadStreams(), 1u);

  // Each in a process that has a device of its own.
  const auto after_its_end = [&](auto ask) {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would end the process by itself
    start("destroyed_streams:fault");
    gone = stream();
    EXPECT_EQ(cuStreamDestroy(gone), CUDA_SUCCESS);
    ask();
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  };
  unsigned long long id = 0;
  EXPECT_EXIT(after_its_end([&] { (void)cuStreamGetId(gone, &id); }), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(after_its_end([&] { (void)cuEventRecord(event(), gone); }), testing::KilledBySignal(SIGSEGV),
              "");
  EXPECT_EXIT(after_its_end([&] { (void)cuStreamDestroy(gone); }), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(after_its_end([&] {
                EXPECT_EQ(spwSimIsComplete(gone, 1), 1) << "a control is no call";
                SIM_EXPECT_OK(cuStreamQuery(nullptr));
              }),
              testing::ExitedWithCode(0), "");
}

// As an H100 with driver 580 answered.
TEST_F(StreamTest, AContextThatIsResetStaysCurrentAndItsStreamsAndEventsAreAFault) {
  start("destroyed_streams:report");
  const auto use_after_reset = [&] {
    CUcontext before = nullptr;
    CUcontext after = nullptr;
    SIM_OK(cuCtxGetCurrent(&before));
    CUstream work = stream();
    CUevent mark = event();
    SIM_OK(cuEventRecord(mark, work));
    SIM_OK(cuDevicePrimaryCtxReset(0));
    SIM_OK(cuCtxGetCurrent(&after));
    EXPECT_EQ(before, after);
    unsigned flags = 0;
    int active = 1;
    SIM_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 0);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuStreamQuery(work), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuEventRecord(mark, work), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuEventQuery(mark), CUDA_ERROR_INVALID_HANDLE);
  };
  use_after_reset();
  std::signal(SIGSEGV, SIG_DFL);
  const auto ask = [&](const std::function<void(CUstream, CUevent)>& question) {
    start("destroyed_streams:fault");
    CUstream work = stream();
    CUevent mark = event();
    SIM_OK(cuEventRecord(mark, work));
    SIM_OK(cuDevicePrimaryCtxReset(0));
    question(work, mark);
    std::exit(0);
  };
  const auto dies = testing::KilledBySignal(SIGSEGV);
  EXPECT_EXIT(ask([](CUstream work, CUevent) { cuStreamQuery(work); }), dies, "");
  EXPECT_EXIT(ask([](CUstream work, CUevent mark) { cuEventRecord(mark, work); }), dies, "");
  EXPECT_EXIT(ask([](CUstream, CUevent mark) { cuEventQuery(mark); }), dies, "");
  EXPECT_EXIT(ask([](CUstream, CUevent) { cuCtxSynchronize(); }), testing::ExitedWithCode(0), "");
}

TEST_F(StreamTest, WorkOfAnotherLibraryHoldsItsStreamUntilItIsReady) {
  static std::atomic<int> ready;
  static std::atomic<int> runs;
  static std::atomic<int> waits;
  for (const char* mode : {"completion:instant", "completion:late", "completion:run-ahead"}) {
    start(mode);
    ready = runs = waits = 0;
    const CUdeviceptr block = alloc();
    const CUstream work = stream();
    static CUdeviceptr written;
    written = block;
    const auto is_ready = [](void*) { return ready.load(); };
    const auto run = [](void*) {
      ++runs;
      const char value = 7;
      const SpwSimRange range{written, 1, 0, 0};
      EXPECT_EQ(spwSimPoke(&range, 1, &value), CUDA_SUCCESS);
    };
    ASSERT_EQ(spwSimEnqueueExternal(work, is_ready, run, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(work), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(byte_at(block), 0u);
    // What waits for it is told by who knows.
    spwSimSetHold([] { return uint64_t{5}; },
                  [](uint64_t looked) {
                    EXPECT_EQ(looked, 5u);
                    ++waits;
                    ready = 1;
                  });
    SIM_OK(cuStreamSynchronize(work));
    spwSimSetHold(nullptr, nullptr);
    EXPECT_EQ(runs, 1) << mode;
    EXPECT_EQ(waits, 1) << mode;
    EXPECT_EQ(byte_at(block), 7u);
    char read = 0;
    const SpwSimRange range{block, 1, 0, 0};
    EXPECT_EQ(spwSimPeek(&range, 1, &read), CUDA_SUCCESS);
    EXPECT_EQ(read, 7);
  }
}

TEST_F(StreamTest, WorkThatBecameReadyGoesOnByItself) {
  static std::atomic<int> ready;
  static std::atomic<int> runs;
  ready = runs = 0;
  const CUstream work = stream();
  ASSERT_EQ(spwSimEnqueueExternal(
                work, [](void*) { return ready.load(); }, [](void*) { ++runs; }, nullptr),
            CUDA_SUCCESS);
  spwSimProgress();
  EXPECT_EQ(runs, 0);
  ready = 1;
  spwSimProgress();
  EXPECT_EQ(runs, 1);
  SIM_EXPECT_OK(cuStreamQuery(work));
}

TEST_F(StreamTest, ElapsedTimeNeedsTimingEvents) {
  CUevent from = nullptr;
  CUevent to = nullptr;
  SIM_OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
  SIM_OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
  SIM_OK(cuEventRecord(from, nullptr));
  SIM_OK(cuEventRecord(to, nullptr));
  float milliseconds = -1;
  SIM_OK(cuEventElapsedTime(&milliseconds, from, to));
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, from, event()), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace spillway::sim_test
