// Who copies first on a device's two streams: what somebody waits for overtakes what was begun ahead, few
// copies are in flight, and moving out makes way for what is waited for.
#include "offload/spill/copy_streams.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "driver/context.h"
#include "offload/spill/regions.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

constexpr size_t kPart = CopyStreams::kPartBytes;

// Sees each copy before the driver does; the driver's table is the test's own.
using Seen = std::function<void(CUdeviceptr device)>;
Seen on_copy_in;
Seen on_copy_out;
decltype(Driver::cuMemcpyHtoDAsync) copy_in;
decltype(Driver::cuMemcpyDtoHAsync) copy_out;

CUresult CUDAAPI seen_copy_in(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  if (on_copy_in) on_copy_in(to);
  return copy_in(to, from, bytes, stream);
}
CUresult CUDAAPI seen_copy_out(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (on_copy_out) on_copy_out(from);
  return copy_out(to, from, bytes, stream);
}

// Holds up whoever comes, until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
  bool is_open_ = false;
};

class CopyOrderTest : public testing::Test {
 protected:
  explicit CopyOrderTest(const char* completion = "late")
      : tiers_((std::string("capacity:512MiB,completion:") + completion).c_str(), disk_options("")),
        arena_(tiers_.device.arena()),
        regions_(std::make_unique<Regions>(*arena_, *tiers_.memory)) {
    auto& driver = const_cast<Driver&>(*tiers_.device.driver);
    copy_in = driver.cuMemcpyHtoDAsync;
    copy_out = driver.cuMemcpyDtoHAsync;
    driver.cuMemcpyHtoDAsync = seen_copy_in;
    driver.cuMemcpyDtoHAsync = seen_copy_out;
  }
  ~CopyOrderTest() override {
    on_copy_in = on_copy_out = nullptr;
    for (const auto& [tag, made] : blocks_) {
      SPW_EXPECT_OK(Arena::free(made.pointer));
      SPW_EXPECT_OK(regions_->release(tag));
    }
    SPW_EXPECT_OK(arena_->trim());
    EXPECT_EQ(tiers_.device.reports(), "");
  }

  // A region of one block of so many parts.
  void make(const std::string& tag, size_t parts) {
    SPW_EXPECT_OK(regions_->begin(tag));
    Made made{must_allocate(*arena_, parts * kPart, nullptr), parts * kPart, {}};
    SPW_EXPECT_OK(regions_->end(tag));
    made.content = TestRegion::pattern(made.bytes, static_cast<uint32_t>(blocks_.size() + 1));
    EXPECT_EQ(tiers_.device.driver->cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(made.pointer),
                                                 made.content.data(), made.bytes),
              CUDA_SUCCESS);
    blocks_.emplace(tag, std::move(made));
  }
  bool is_intact(const std::string& tag) {
    const Made& made = blocks_.at(tag);
    std::vector<char> bytes(made.bytes);
    EXPECT_EQ(tiers_.device.driver->cuMemcpyDtoH(bytes.data(), reinterpret_cast<CUdeviceptr>(made.pointer),
                                                 made.bytes),
              CUDA_SUCCESS);
    return bytes == made.content;
  }
  std::string tag_at(CUdeviceptr device) const {
    for (const auto& [tag, made] : blocks_) {
      const auto begin = reinterpret_cast<CUdeviceptr>(made.pointer);
      if (device >= begin && device < begin + made.bytes) return tag;
    }
    return "?";
  }
  // Keeps the order of copies back, and holds up the one of this number.
  void watch(size_t held, Gate& gate) {
    on_copy_in = [this, held, &gate](CUdeviceptr device) {
      size_t number = 0;
      {
        const std::lock_guard lock(mutex_);
        number = order_.size();
        order_.push_back(tag_at(device));
      }
      if (number == held) gate.pass();
    };
  }
  std::vector<std::string> times(std::initializer_list<std::pair<size_t, const char*>> runs) const {
    std::vector<std::string> out;
    for (const auto& [count, tag] : runs) out.insert(out.end(), count, tag);
    return out;
  }
  std::thread in_background(std::function<void()> work) {
    return std::thread([this, work = std::move(work)] {
      const ScopedContext context(*tiers_.device.driver, arena_->context());
      work();
    });
  }
  void wait_for_moves_in(size_t count) const {
    while (tiers_.copy_streams->moving_in() < count) std::this_thread::yield();
  }

  struct Made {
    void* pointer;
    size_t bytes;
    std::vector<char> content;
  };
  Tiers tiers_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Regions> regions_;
  std::map<std::string, Made> blocks_;
  std::mutex mutex_;
  std::vector<std::string> order_;
};

TEST_F(CopyOrderTest, WhatIsWaitedForOvertakesAPrefetchThatWasBegun) {
  make("large", 12);
  make("small", 3);
  for (const char* tag : {"large", "small"}) SPW_EXPECT_OK(regions_->evict(tag, SpillTo::kHost));
  Gate gate;
  watch(2, gate);
  SPW_EXPECT_OK(regions_->prefetch("large"));
  gate.wait_until_reached();
  std::thread waits = in_background([&] { SPW_EXPECT_OK(regions_->restore("small")); });
  wait_for_moves_in(2);
  gate.open();
  waits.join();
  EXPECT_TRUE(is_intact("small"));
  SPW_EXPECT_OK(regions_->restore("large"));
  EXPECT_TRUE(is_intact("large"));
  EXPECT_EQ(order_, times({{3, "large"}, {3, "small"}, {9, "large"}}));
}

TEST_F(CopyOrderTest, APrefetchThatIsWaitedForOvertakesTheOther) {
  for (const char* tag : {"first", "second"}) {
    make(tag, 6);
    SPW_EXPECT_OK(regions_->evict(tag, SpillTo::kHost));
  }
  Gate gate;
  watch(1, gate);
  SPW_EXPECT_OK(regions_->prefetch("first"));
  gate.wait_until_reached();
  SPW_EXPECT_OK(regions_->prefetch("second"));
  wait_for_moves_in(2);
  std::thread waits = in_background([&] { SPW_EXPECT_OK(regions_->restore("second")); });
  while (!tiers_.copy_streams->somebody_waits()) std::this_thread::yield();
  gate.open();
  waits.join();
  SPW_EXPECT_OK(regions_->restore("first"));
  EXPECT_EQ(order_, times({{2, "first"}, {6, "second"}, {4, "first"}}));
  EXPECT_TRUE(is_intact("first") && is_intact("second"));
}

TEST_F(CopyOrderTest, TwoThatAreEquallyUrgentTakeTurns) {
  for (const char* tag : {"first", "second"}) {
    make(tag, 4);
    SPW_EXPECT_OK(regions_->evict(tag, SpillTo::kHost));
  }
  Gate gate;
  watch(0, gate);
  SPW_EXPECT_OK(regions_->prefetch("first"));
  gate.wait_until_reached();
  SPW_EXPECT_OK(regions_->prefetch("second"));
  wait_for_moves_in(2);
  gate.open();
  // Neither is waited for before both are back: that would be a reason to go first.
  const auto is_back = [&] {
    const std::lock_guard lock(mutex_);
    return order_.size() == 8;
  };
  while (!is_back()) std::this_thread::yield();
  for (const char* tag : {"first", "second"}) SPW_EXPECT_OK(regions_->restore(tag));
  EXPECT_EQ(std::count(order_.begin(), order_.begin() + 5, "second"), 2) << "one after the other";
}

class CopyDepthTest : public CopyOrderTest {
 protected:
  // Nothing is complete before somebody waits for it.
  CopyDepthTest() : CopyOrderTest("run-ahead") {
    mark_ = reinterpret_cast<decltype(mark_)>(tiers_.device.driver->find("spwSimMark"));
    is_complete_ = reinterpret_cast<decltype(is_complete_)>(tiers_.device.driver->find("spwSimIsComplete"));
    on_copy_out = [this](CUdeviceptr) {
      const CUstream out = tiers_.copy_streams->out();
      size_t in_flight = 0;
      for (const uint64_t mark : marks_) in_flight += is_complete_(out, mark) == 0 ? 1 : 0;
      most_in_flight_ = std::max(most_in_flight_, in_flight + 1);
      marks_.push_back(mark_(out) + 1);  // where this copy will be
    };
  }

  decltype(&spwSimMark) mark_ = nullptr;
  decltype(&spwSimIsComplete) is_complete_ = nullptr;
  std::vector<uint64_t> marks_;
  size_t most_in_flight_ = 0;
};

TEST_F(CopyDepthTest, FewCopiesAreInFlight) {
  make("large", 10);
  SPW_EXPECT_OK(regions_->evict("large", SpillTo::kHost));
  EXPECT_EQ(most_in_flight_, CopyStreams::kDepth);
  SPW_EXPECT_OK(regions_->restore("large"));
  EXPECT_TRUE(is_intact("large"));
}

TEST_F(CopyDepthTest, MovingOutMakesWayForWhatIsWaitedFor) {
  make("wanted", 4);
  make("cold", 10);
  SPW_EXPECT_OK(regions_->evict("wanted", SpillTo::kHost));
  Gate gate;
  watch(1, gate);
  marks_.clear();
  most_in_flight_ = 0;
  std::thread waits = in_background([&] { SPW_EXPECT_OK(regions_->restore("wanted")); });
  gate.wait_until_reached();
  SPW_EXPECT_OK(regions_->evict("cold", SpillTo::kHost));
  EXPECT_EQ(marks_.size(), 10u);
  EXPECT_EQ(most_in_flight_, 1u);
  gate.open();
  waits.join();
  SPW_EXPECT_OK(regions_->restore("cold"));
  EXPECT_TRUE(is_intact("wanted") && is_intact("cold"));
}

class CopyStreamsTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 2 * kPart + kMiB;

  CopyStreamsTest() {
    EXPECT_EQ(device_.driver->cuMemAlloc(&memory_, kBytes), CUDA_SUCCESS);
    Result<std::unique_ptr<CopyStreams>> made = CopyStreams::create(*device_.driver);
    if (!made.ok()) throw std::runtime_error(made.status().text());
    copies_ = std::move(made.value());
  }
  ~CopyStreamsTest() override { device_.driver->cuMemFree(memory_); }

  Device device_;
  CUdeviceptr memory_ = 0;
  std::unique_ptr<CopyStreams> copies_;
  const Urgency urgency_;
};

TEST_F(CopyStreamsTest, MovesAreDividedAndEachByteIsCopiedOnce) {
  std::vector<char> host = TestRegion::pattern(kBytes, 3);
  auto* const bytes = reinterpret_cast<std::byte*>(host.data());
  const CopyStreams::Copy whole[] = {{bytes, memory_, kMiB}, {bytes + kMiB, memory_ + kMiB, kBytes - kMiB}};
  SPW_EXPECT_OK(copies_->move_in(whole, urgency_));
  SPW_EXPECT_OK(copies_->drain_in());
  EXPECT_EQ(device_.calls("cuMemcpyHtoDAsync"), 3u);
  EXPECT_EQ(copies_->in_bytes(), kBytes);
  host.assign(kBytes, 0);
  SPW_EXPECT_OK(copies_->move_out(whole));
  SPW_EXPECT_OK(copies_->drain_out());
  EXPECT_EQ(device_.calls("cuMemcpyDtoHAsync"), 3u);
  EXPECT_EQ(copies_->out_bytes(), kBytes);
  EXPECT_TRUE(host == TestRegion::pattern(kBytes, 3));
  // Whole, for those who may not wait.
  SPW_EXPECT_OK(copies_->copy_out(bytes, memory_, kBytes));
  EXPECT_EQ(device_.calls("cuMemcpyDtoHAsync"), 4u);
  EXPECT_EQ(copies_->out_bytes(), 2 * kBytes);
  SPW_EXPECT_OK(copies_->drain_out());
  // Nothing is nothing.
  SPW_EXPECT_OK(copies_->move_out({}));
  SPW_EXPECT_OK(copies_->move_in({}, urgency_));
}

TEST_F(CopyStreamsTest, OnlyAnErrorThatLastsTurnsThemOffWithWhatWasMetFirst) {
  SPW_EXPECT_OK(copies_->note_failure({}));
  EXPECT_EQ(copies_->note_failure(Status::driver("passes")).text(), "passes");
  SPW_EXPECT_OK(copies_->why_off());
  device_.inject_fault("cuStreamQuery", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(copies_->note_failure(Status::io("of the disk")).text(), "of the disk");
  EXPECT_EQ(copies_->lasting_error(), CUDA_ERROR_ILLEGAL_ADDRESS);
  const std::string why = copies_->why_off().text();
  EXPECT_NE(why.find("cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << why;
  EXPECT_EQ(copies_->note_failure(Status::driver("later")).text(), "later");
  EXPECT_EQ(copies_->why_off().text(), why) << "the first";
  device_.clear_faults();
}

}  // namespace
}  // namespace spillway::test
