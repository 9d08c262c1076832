// Stashes while their reads and writes are held up: what is given up, waited for or short of host memory
// meanwhile.
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "offload/spill/stashes.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

// Holds up operations of the disk.
class Gate {
 public:
  void close(IoKind kind) {
    const std::lock_guard lock(mutex_);
    closed_ = kind;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_.reset();
    waiting_ = 0;
    changed_.notify_all();
  }
  void wait_until_someone_waits() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void pass(IoKind kind) {
    std::unique_lock lock(mutex_);
    if (closed_ != kind) return;
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return closed_ != kind; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<IoKind> closed_;
  int waiting_ = 0;
};

class StashesTest : public testing::Test {
 protected:
  explicit StashesTest(uint64_t pinned_bytes = UINT64_MAX)
      : tiers_("capacity:128MiB,completion:late", gated_disk(), pinned_bytes) {}

  DiskTierOptions gated_disk() {
    return with_faults(disk_options(directory_.path(), false),
                       [this](const IoOperation& operation, uint64_t) {
                         gate_.pass(operation.kind);
                         const std::lock_guard lock(mutex_);
                         places_[operation.kind].push_back(operation.offset);
                         return IoFault();
                       });
  }

  void* filled(size_t bytes, unsigned char value) {
    void* block = must_allocate(*arena_, bytes, nullptr);
    fill(block, bytes, value);
    return block;
  }
  void fill(void* block, size_t bytes, unsigned char value) const {
    EXPECT_EQ(
        tiers_.device.driver->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(block), value, bytes, nullptr),
        CUDA_SUCCESS);
  }
  bool is_filled(void* block, size_t bytes, unsigned char value) const {
    std::vector<unsigned char> found(bytes);
    EXPECT_EQ(tiers_.device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(tiers_.device.driver->cuMemcpyDtoH(found.data(), reinterpret_cast<CUdeviceptr>(block), bytes),
              CUDA_SUCCESS);
    return found == std::vector<unsigned char>(bytes, value);
  }
  Stashes::Stash* put(void* block, size_t bytes, Stashes::To to = Stashes::To::kDisk,
                      CUstream stream = nullptr) {
    Result<Stashes::Stash*> made = stashes_.put(reinterpret_cast<CUdeviceptr>(block), bytes, stream, to);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return made.ok() ? made.value() : nullptr;
  }
  Status begin_get(Stashes::Stash* stash, void* block) {
    return stashes_.begin_get(*stash, reinterpret_cast<CUdeviceptr>(block), nullptr);
  }
  void wait_until_on_disk(uint64_t bytes) {
    while (stashes_.counters().disk_bytes < bytes) std::this_thread::yield();
  }
  void wait_until_none_is_left() {
    while (stashes_.counters().stashes > 0) std::this_thread::yield();
  }

  // Returns where one of several stashes of as many operations each was written, or which was read, in that
  // order.
  std::set<uint64_t> places(IoKind kind, size_t which, size_t operations) {
    const std::lock_guard lock(mutex_);
    const auto begin = places_[kind].begin() + static_cast<ptrdiff_t>(which * operations);
    return {begin, begin + static_cast<ptrdiff_t>(operations)};
  }

  Folder directory_;
  Gate gate_;
  std::mutex mutex_;
  std::map<IoKind, std::vector<uint64_t>> places_;
  Tiers tiers_;
  std::unique_ptr<Arena> arena_ = tiers_.device.arena();
  Stashes stashes_{tiers_.device.context, *tiers_.copy_streams, tiers_.pinned, tiers_.disk};
};

// The memory it was to come back to belongs to whoever allocates it next.
TEST_F(StashesTest, WhatIsFreedBeforeItIsReadWritesNoDeviceMemory) {
  constexpr size_t kBytes = 3 * kMiB;
  void* block = filled(kBytes, 1);
  Stashes::Stash* being_read = put(block, kBytes);
  Stashes::Stash* behind_it = put(block, kBytes);
  wait_until_on_disk(2 * kBytes);
  void* first = must_allocate(*arena_, kBytes, nullptr);
  void* second = must_allocate(*arena_, kBytes, nullptr);
  gate_.close(IoKind::kRead);
  SPW_EXPECT_OK(begin_get(being_read, first));
  SPW_EXPECT_OK(begin_get(behind_it, second));
  gate_.wait_until_someone_waits();
  stashes_.free(being_read);
  stashes_.free(behind_it);
  fill(first, kBytes, 2);
  fill(second, kBytes, 3);
  ASSERT_EQ(tiers_.device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
  gate_.open();
  wait_until_none_is_left();
  EXPECT_TRUE(is_filled(first, kBytes, 2));
  EXPECT_TRUE(is_filled(second, kBytes, 3));
  EXPECT_EQ(tiers_.copy_streams->in_bytes(), 0U);
  EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0U);
  EXPECT_EQ(tiers_.device.reports(), "");
  for (void* each : {block, first, second}) SPW_EXPECT_OK(Arena::free(each));
}

TEST_F(StashesTest, WhatIsWaitedForIsReadBeforeWhatIsNot) {
  constexpr size_t kOperations = 3;
  constexpr size_t kBytes = kOperations * kMiB;
  void* block = filled(kBytes, 1);
  std::vector<Stashes::Stash*> stashes;
  std::vector<void*> targets;
  for (size_t i = 0; i < 3; ++i) {
    stashes.push_back(put(block, kBytes));
    targets.push_back(must_allocate(*arena_, kBytes, nullptr));
  }
  wait_until_on_disk(3 * kBytes);
  gate_.close(IoKind::kRead);
  for (size_t i = 0; i < 3; ++i) SPW_EXPECT_OK(begin_get(stashes[i], targets[i]));
  gate_.wait_until_someone_waits();
  std::thread waits([&] {
    EXPECT_EQ(tiers_.device.driver->cuCtxSetCurrent(tiers_.device.context), CUDA_SUCCESS);
    SPW_EXPECT_OK(stashes_.finish_get(*stashes[2], nullptr, nullptr));
  });
  while (!tiers_.copy_streams->somebody_waits()) std::this_thread::yield();
  gate_.open();
  waits.join();
  for (size_t i = 0; i < 2; ++i) SPW_EXPECT_OK(stashes_.finish_get(*stashes[i], nullptr, nullptr));
  const size_t order[] = {0, 2, 1};
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(places(IoKind::kRead, i, kOperations), places(IoKind::kWrite, order[i], kOperations));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(is_filled(targets[i], kBytes, 1));
    stashes_.free(stashes[i]);
    SPW_EXPECT_OK(Arena::free(targets[i]));
  }
  SPW_EXPECT_OK(Arena::free(block));
}

// The disk has all the time it wants for what nobody waits for.
TEST_F(StashesTest, WhatIsBeingWrittenComesBackWithoutAWaitForTheDisk) {
  constexpr size_t kBytes = 3 * kMiB;
  void* block = filled(kBytes, 1);
  void* target = must_allocate(*arena_, kBytes, nullptr);
  gate_.close(IoKind::kWrite);
  Stashes::Stash* stash = put(block, kBytes);
  Stashes::Stash* behind_it = put(block, kBytes);
  gate_.wait_until_someone_waits();
  for (Stashes::Stash* each : {stash, behind_it}) {
    SPW_EXPECT_OK(begin_get(each, target));
    SPW_EXPECT_OK(stashes_.finish_get(*each, nullptr, nullptr));
    EXPECT_TRUE(is_filled(target, kBytes, 1));
    fill(target, kBytes, 2);
  }
  EXPECT_EQ(stashes_.counters().host_bytes, 2 * kBytes);
  gate_.open();
  // Its copy may still be under way when the write ends: it stays where it is.
  while (tiers_.disk.counters().blocks_bytes > 0) std::this_thread::yield();
  EXPECT_EQ(stashes_.counters().disk_bytes, 0U);
  SPW_EXPECT_OK(begin_get(stash, target));
  SPW_EXPECT_OK(stashes_.finish_get(*stash, nullptr, nullptr));
  EXPECT_TRUE(is_filled(target, kBytes, 1));
  stashes_.free(stash);
  stashes_.free(behind_it);
  wait_until_none_is_left();
  EXPECT_EQ(tiers_.device.reports(), "");
  for (void* each : {block, target}) SPW_EXPECT_OK(Arena::free(each));
}

// Neither the thread's work nor a put, on another stream, is the business of a capture.
TEST_F(StashesTest, ACaptureGoesOnWhileStashesAreMadeAndWritten) {
  constexpr size_t kBytes = 3 * kMiB;
  const Driver& driver = *tiers_.device.driver;
  const CUstream stream = tiers_.device.stream();
  const CUstream captured = tiers_.device.stream();
  void* block = filled(kBytes, 1);
  ASSERT_EQ(driver.cuCtxSynchronize(), CUDA_SUCCESS);
  gate_.close(IoKind::kWrite);
  std::vector<Stashes::Stash*> stashes{put(block, kBytes)};
  gate_.wait_until_someone_waits();
  stashes.push_back(put(block, kBytes));
  tiers_.device.begin_capture(captured);
  stashes.push_back(put(block, kBytes, Stashes::To::kHost, stream));
  gate_.open();
  wait_until_on_disk(2 * kBytes);
  tiers_.device.discard_capture(captured);
  for (Stashes::Stash* stash : stashes) stashes_.free(stash);
  ASSERT_EQ(driver.cuCtxSynchronize(), CUDA_SUCCESS);
  SPW_EXPECT_OK(Arena::free(block));
}

// Host memory for one stash and no more, in which no ring of buffers has room.
class StashesWithLittleHostMemoryTest : public StashesTest {
 protected:
  static constexpr size_t kBytes = 3 * kMiB;

  StashesWithLittleHostMemoryTest() : StashesTest(4 * kMiB) {}

  // One that is on the disk.
  Stashes::Stash* put_down(unsigned char value) {
    void* block = filled(kBytes, value);
    Stashes::Stash* stash = put(block, kBytes);
    SPW_EXPECT_OK(Arena::record_stream(block, tiers_.copy_streams->out()));
    SPW_EXPECT_OK(Arena::free(block));
    wait_until_on_disk(kBytes);
    return stash;
  }
};

TEST_F(StashesWithLittleHostMemoryTest, WhatIsOnTheDiskComesBackWithoutAPin) {
  Stashes::Stash* stash = put_down(7);
  void* pinned = tiers_.pinned.take(kBytes);
  ASSERT_NE(pinned, nullptr);
  for (int i = 0; i < 2; ++i) {
    void* target = filled(kBytes, 1);
    SPW_EXPECT_OK(begin_get(stash, target));
    SPW_EXPECT_OK(stashes_.finish_get(*stash, nullptr, nullptr));
    EXPECT_TRUE(is_filled(target, kBytes, 7));
    EXPECT_EQ(stashes_.counters().disk_bytes, kBytes) << "where it stays";
    SPW_EXPECT_OK(Arena::free(target));
  }
  // Given up in the middle: no copy comes after that.
  void* target = filled(kBytes, 1);
  gate_.close(IoKind::kRead);
  SPW_EXPECT_OK(begin_get(stash, target));
  gate_.wait_until_someone_waits();
  std::thread program([&] {
    ASSERT_EQ(tiers_.device.driver->cuCtxSetCurrent(tiers_.device.context), CUDA_SUCCESS);
    stashes_.free(stash);
    fill(target, kBytes, 2);
  });
  gate_.open();
  program.join();
  wait_until_none_is_left();
  EXPECT_TRUE(is_filled(target, kBytes, 2));
  EXPECT_EQ(tiers_.device.reports(), "");
  tiers_.pinned.give_back(pinned, kBytes);
  SPW_EXPECT_OK(Arena::free(target));
}

TEST_F(StashesWithLittleHostMemoryTest, WhatFreedStashesHeldServesThoseThatComeBack) {
  Stashes::Stash* stash = put_down(7);
  void* block = filled(kBytes, 1);
  stashes_.free(put(block, kBytes, Stashes::To::kHost));
  ASSERT_EQ(tiers_.device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
  SPW_EXPECT_OK(begin_get(stash, block));
  SPW_EXPECT_OK(stashes_.finish_get(*stash, nullptr, nullptr));
  EXPECT_TRUE(is_filled(block, kBytes, 7));
  EXPECT_EQ(stashes_.counters().host_bytes, kBytes);
  stashes_.free(stash);
  SPW_EXPECT_OK(Arena::free(block));
}

}  // namespace
}  // namespace spillway::test
