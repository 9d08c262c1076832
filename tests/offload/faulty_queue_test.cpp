// A queue with faults does to each operation what it was told, and is otherwise the queue that it was made
// of.
#include "offload/io/faulty_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/io_faults.h"
#include "tests/support/io_requests.h"

namespace spillway::test {
namespace {

// Keeps what it is told; each operation is complete when somebody waits, and has filled its memory.
class ToldQueue final : public IoQueue {
 public:
  static constexpr std::byte kFilled{0x0f};

  void push(const IoOperation& operation) override { pushed.push_back(operation); }
  size_t wait(std::span<IoCompletion> out) override {
    const size_t found = std::min(out.size(), pushed.size() - done_);
    for (size_t i = 0; i < found; ++i) {
      const IoOperation& operation = pushed[done_++];
      std::fill_n(operation.memory, operation.bytes, kFilled);
      out[i] = {operation.token, static_cast<int64_t>(operation.bytes)};
    }
    return found;
  }
  void wake() override { calls += "wake "; }
  void use_memory(std::span<std::byte> memory) override {
    calls += "use " + std::to_string(memory.size()) + " ";
  }
  bool forget_memory(std::span<std::byte> memory) override {
    calls += "forget " + std::to_string(memory.size()) + " ";
    return false;
  }
  void use_file(int file) override { calls += "file " + std::to_string(file); }
  uint32_t depth() const override { return 17; }
  std::string description() const override { return "a queue"; }

  std::vector<IoOperation> pushed;
  std::string calls;

 private:
  size_t done_ = 0;
};

class FaultyQueueTest : public testing::Test {
 protected:
  void make(ChooseFault choose) {
    auto told = std::make_unique<ToldQueue>();
    told_ = told.get();
    queue_ = make_faulty_queue(std::move(told), std::move(choose));
  }
  void push(uint32_t token, size_t bytes = 8) {
    queue_->push({IoKind::kRead, 3, memory_.data() + 8 * size_t{token}, bytes, 0, token});
  }
  // Returns results by token, from one wait for at most so many.
  std::vector<std::pair<uint32_t, int64_t>> wait(size_t most = 8) {
    std::vector<IoCompletion> out(most);
    out.resize(queue_->wait(out));
    std::vector<std::pair<uint32_t, int64_t>> results;
    for (const IoCompletion& each : out) results.emplace_back(each.token, each.result);
    return results;
  }
  using Results = std::vector<std::pair<uint32_t, int64_t>>;

  std::array<std::byte, 64> memory_{};
  std::unique_ptr<IoQueue> queue_;
  ToldQueue* told_ = nullptr;
};

TEST_F(FaultyQueueTest, EachOperationIsAskedAboutOnceByItsNumber) {
  std::vector<std::pair<uint32_t, uint64_t>> asked;
  make([&](const IoOperation& operation, uint64_t index) {
    asked.emplace_back(operation.token, index);
    return IoFault();
  });
  for (const uint32_t token : {5u, 2u, 5u}) push(token);
  EXPECT_EQ(asked, (std::vector<std::pair<uint32_t, uint64_t>>{{5, 0}, {2, 1}, {5, 2}}));
  EXPECT_EQ(wait(), (Results{{5, 8}, {2, 8}, {5, 8}}));
}

TEST_F(FaultyQueueTest, AResultComesInsteadOfTheOperation) {
  make([](const IoOperation&, uint64_t index) { return index == 1 ? fails(-EIO) : IoFault(); });
  for (uint32_t token = 0; token < 3; ++token) push(token);
  ASSERT_EQ(told_->pushed.size(), 2u);
  EXPECT_EQ(wait(), (Results{{1, -EIO}, {0, 8}, {2, 8}}));
  EXPECT_EQ(memory_[8], std::byte{0}) << "nothing was done";
  EXPECT_EQ(told_->calls, "wake ") << "or the wait would be one for others";
}

TEST_F(FaultyQueueTest, MoreFailuresThanThereIsRoomForComeWithTheNextWait) {
  make([](const IoOperation&, uint64_t index) { return fails(-static_cast<int64_t>(index) - 1); });
  for (uint32_t token = 0; token < 3; ++token) push(token);
  EXPECT_EQ(wait(2), (Results{{0, -1}, {1, -2}}));
  EXPECT_EQ(wait(2), (Results{{2, -3}}));
  EXPECT_EQ(wait(2), Results{});
}

TEST_F(FaultyQueueTest, AnOperationDoesNoMoreThanItMay) {
  make([](const IoOperation&, uint64_t) { return stops_short(5); });
  push(0, 8);
  push(1, 4);
  EXPECT_EQ(wait(), (Results{{0, 5}, {1, 4}}));
  EXPECT_EQ(memory_[4], ToldQueue::kFilled);
  EXPECT_EQ(memory_[5], std::byte{0});
}

TEST_F(FaultyQueueTest, AByteIsWrongAfterTheOperationAndNotAfterTheNext) {
  make([](const IoOperation&, uint64_t index) { return index == 1 ? flips(3) : IoFault(); });
  for (uint32_t token = 0; token < 2; ++token) push(token);
  EXPECT_EQ(wait(), (Results{{0, 8}, {1, 8}}));
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(memory_[i] == ToldQueue::kFilled, i != 8 + 3) << i;
  push(1);
  EXPECT_EQ(wait(), (Results{{1, 8}}));
  EXPECT_EQ(memory_[8 + 3], ToldQueue::kFilled);
}

TEST_F(FaultyQueueTest, EverythingElseIsTheQueues) {
  make([](const IoOperation&, uint64_t) { return IoFault(); });
  queue_->wake();
  queue_->use_memory(std::span(memory_).first(7));
  EXPECT_FALSE(queue_->forget_memory(std::span(memory_).first(9)));
  queue_->use_file(4);
  EXPECT_EQ(told_->calls, "wake use 7 forget 9 file 4");
  EXPECT_EQ(queue_->depth(), 17u);
  EXPECT_EQ(queue_->description(), "a queue, with faults");
}

class FaultyRealQueueTest : public OnEachQueue {};
INSTANTIATE_TEST_SUITE_P(Queues, FaultyRealQueueTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "uring" : "threads"; });

// Nothing else is in flight that could end the wait.
TEST_P(FaultyRealQueueTest, AFailureAloneIsNotWaitedForInVain) {
  Result<std::unique_ptr<IoQueue>> made = queue_of(options());
  if (!made.ok()) GTEST_SKIP() << made.status().text();
  const std::unique_ptr<IoQueue> queue =
      make_faulty_queue(std::move(made.value()), [](const IoOperation&, uint64_t) { return fails(-EIO); });
  std::array<IoCompletion, 4> out;
  for (uint32_t token = 0; token < 3; ++token) {
    queue->push({IoKind::kRead, -1, nullptr, 1, 0, token});
    ASSERT_EQ(queue->wait(out), 1u);
    EXPECT_EQ(out[0].token, token);
    EXPECT_EQ(out[0].result, -EIO);
  }
}

}  // namespace
}  // namespace spillway::test
