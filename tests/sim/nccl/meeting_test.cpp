#include "sim/nccl/meeting.h"

#include <gmock/gmock.h>

#include <cstring>

namespace spillway::nccl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Items = std::vector<int32_t>;

class MeetingTest : public ::testing::Test {
 protected:
  void start(int ranks, int processes, int world) {
    sent_.clear();
    meeting_.emplace(
        ranks, [this](int to, const Message& message) { sent_[to].push_back(message); },
        [this](pid_t) {
          return Meeting::Activity{used_, busy_};
        });
    for (int i = 0; i < processes; ++i) {
      meeting_->connect(i);
      Message hello;
      hello.kind = Kind::kHello;
      hello.text = "job";
      hello.rank = hello.world_rank = i;
      hello.size = world;
      meeting_->receive(i, hello);
    }
  }
  // `members`: rank in the communicator by process.
  void join(const std::vector<int>& members, int size) {
    for (size_t i = 0; i < members.size(); ++i) {
      Message message;
      message.kind = Kind::kJoin;
      message.operation = Operation::kJoin;
      message.text = "id";
      message.rank = members[i];
      message.size = size;
      message.ticket = ++ticket_;
      meeting_->receive(static_cast<int>(i), message);
    }
  }
  uint64_t communicator(int process) { return sent_[process].front().communicator; }

  void post(int process, int rank, Operation operation, const Items& items, uint64_t count, int root = 0,
            uint64_t sequence = 0, const std::string& line = "") {
    Message message;
    message.kind = Kind::kPost;
    message.operation = operation;
    message.type = kInt32;
    message.count = count;
    message.root = root;
    message.rank = rank;
    message.communicator = communicator(0);
    message.sequence = sequence;
    message.ticket = ++ticket_;
    message.text = line;
    message.flag = is_real_there_;
    message.has_bytes = true;
    message.bytes.resize(items.size() * sizeof(int32_t));
    if (!items.empty()) std::memcpy(message.bytes.data(), items.data(), message.bytes.size());
    meeting_->receive(process, message);
  }
  void wait(int process, bool may_go) {
    Message message;
    message.kind = Kind::kWait;
    message.ticket = 1;
    message.flag = may_go;
    for (const Message& answer : sent_[process]) message.count += answer.kind == Kind::kDone ? 1 : 0;
    meeting_->receive(process, message);
  }
  Items answer(int process) {
    const Message& last = sent_[process].back();
    Items items(last.bytes.size() / sizeof(int32_t));
    std::memcpy(items.data(), last.bytes.data(), last.bytes.size());
    return items;
  }
  void pass(std::chrono::milliseconds time) {
    for (const auto until = now_ + time; now_ < until; now_ += std::chrono::milliseconds(100))
      meeting_->tick(now_);
  }

  std::optional<Meeting> meeting_;
  std::map<int, std::vector<Message>> sent_;
  Clock::time_point now_;
  uint64_t ticket_ = 0;
  double used_ = 0;
  bool busy_ = false;
  bool is_real_there_ = false;  // where results go
};

TEST_F(MeetingTest, CollectivesMoveBytes) {
  start(0, 2, 2);
  join({0, 1}, 2);
  post(0, 0, Operation::kAllReduce, {1, 2}, 2);
  EXPECT_EQ(sent_[0].size(), 1u);
  post(1, 1, Operation::kAllReduce, {10, 20}, 2);
  EXPECT_THAT(answer(0), ElementsAre(11, 22));
  EXPECT_THAT(answer(1), ElementsAre(11, 22));
  post(0, 0, Operation::kReduceScatter, {1, 2}, 1, 0, 1);
  post(1, 1, Operation::kReduceScatter, {10, 20}, 1, 0, 1);
  EXPECT_THAT(answer(0), ElementsAre(11));
  EXPECT_THAT(answer(1), ElementsAre(22));
  post(0, 0, Operation::kAllToAll, {1, 2}, 1, 0, 2);
  post(1, 1, Operation::kAllToAll, {10, 20}, 1, 0, 2);
  EXPECT_THAT(answer(0), ElementsAre(1, 10));
  EXPECT_THAT(answer(1), ElementsAre(2, 20));
  post(0, 0, Operation::kBroadcast, {}, 1, 1, 3);
  post(1, 1, Operation::kBroadcast, {7}, 1, 1, 3);
  EXPECT_THAT(answer(0), ElementsAre(7));
}

TEST_F(MeetingTest, MessagesMeetInOrder) {
  start(0, 2, 2);
  join({0, 1}, 2);
  const uint64_t large = (uint64_t{64} << 10) / sizeof(int32_t) + 1;
  post(0, 0, Operation::kSend, {5}, large, 1, 0);
  EXPECT_EQ(sent_[0].size(), 1u);  // it waits for its receiver
  post(1, 1, Operation::kReceive, {}, large, 0, 0);
  EXPECT_THAT(answer(1), ElementsAre(5));
  EXPECT_EQ(sent_[0].size(), 2u);
  post(0, 0, Operation::kSend, {6}, 1, 1, 1);
  EXPECT_EQ(sent_[0].size(), 3u);  // the network has it
}

TEST_F(MeetingTest, DifferentOperationsAreNamed) {
  start(0, 3, 3);
  join({0, 1, 2}, 3);
  post(0, 0, Operation::kAllGather, {1}, 1, 0, 0, "a.py:1");
  post(2, 2, Operation::kAllReduce, {1}, 1, 0, 0, "a.py:2");
  EXPECT_FALSE(meeting_->verdict());
  post(1, 1, Operation::kAllGather, {1}, 1, 0, 0, "a.py:1");
  ASSERT_TRUE(meeting_->verdict());
  EXPECT_EQ(meeting_->verdict()->kind, "mismatch");
  EXPECT_THAT(meeting_->verdict()->lines,
              ElementsAre("ranks 0,1 wait in all_gather of 1 x int32 at a.py:1",
                          "rank 2 waits in all_reduce of 1 x int32 (sum) at a.py:2"));
  EXPECT_EQ(sent_[0].back().kind, Kind::kFatal);
}

TEST_F(MeetingTest, ADeadlockIsNamedAfterAWhileInWhichNobodyComputes) {
  start(0, 2, 2);
  join({0, 1}, 2);
  post(0, 0, Operation::kReceive, {}, 1, 1, 0, "a.py:1");
  post(1, 1, Operation::kReceive, {}, 1, 0, 0, "a.py:2");
  wait(0, true);
  EXPECT_NE(sent_[0].back().kind, Kind::kWake);
  wait(1, true);
  // Both may go on, as on a GPU, and then wait for what they need.
  EXPECT_EQ(sent_[0].back().kind, Kind::kWake);
  EXPECT_TRUE(sent_[0].back().flag);
  wait(0, false);
  pass(std::chrono::seconds(5));
  EXPECT_FALSE(meeting_->verdict());
  wait(1, false);
  for (int i = 0; i < 50; ++i) {
    used_ += 0.05;  // half of a core
    pass(std::chrono::milliseconds(100));
  }
  EXPECT_FALSE(meeting_->verdict());
  pass(std::chrono::seconds(4));
  ASSERT_TRUE(meeting_->verdict());
  EXPECT_THAT(meeting_->verdict()->lines,
              ElementsAre("rank 0 waits in recv of 1 x int32 from rank 1 at a.py:1",
                          "rank 1 waits in recv of 1 x int32 from rank 0 at a.py:2"));
}

TEST_F(MeetingTest, WhoEndedIsNamed) {
  start(0, 2, 2);
  join({0, 1}, 2);
  post(0, 0, Operation::kAllReduce, {1}, 1);
  wait(0, false);
  meeting_->disconnect(1);
  pass(std::chrono::seconds(10));
  ASSERT_TRUE(meeting_->verdict());
  EXPECT_EQ(meeting_->verdict()->lines.back(), "rank 1 has ended");
}

TEST_F(MeetingTest, WhoSaysNothingIsAsked) {
  start(0, 2, 2);
  join({0, 1}, 2);
  post(0, 0, Operation::kAllReduce, {1}, 1);
  wait(0, false);
  pass(std::chrono::seconds(20));
  EXPECT_FALSE(meeting_->verdict());
  EXPECT_EQ(sent_[1].back().kind, Kind::kAsk);
  Message told;
  told.kind = Kind::kTold;
  told.text = "a.py:3";
  meeting_->receive(1, told);  // in no call that waits for others
  pass(std::chrono::seconds(20));
  EXPECT_FALSE(meeting_->verdict());
  told.flag = true;
  meeting_->receive(1, told);
  pass(std::chrono::seconds(10));
  ASSERT_TRUE(meeting_->verdict());
  EXPECT_EQ(meeting_->verdict()->lines.back(), "rank 1 waits for other ranks at a.py:3");
}

TEST_F(MeetingTest, RanksThatDoNotRunDoAsTheNearest) {
  start(2, 2, 8);
  join({0, 7}, 8);
  wait(0, false);
  EXPECT_TRUE(sent_[0].empty());  // another may come
  wait(1, false);
  EXPECT_EQ(sent_[0].front().size, 8);
  post(0, 0, Operation::kAllReduce, {1}, 1);
  post(1, 7, Operation::kAllReduce, {10}, 1);
  EXPECT_THAT(answer(0), ElementsAre(44));
  post(0, 0, Operation::kSend, {5}, 1, 3, 0);
  post(0, 0, Operation::kReceive, {}, 1, 3, 0);
  EXPECT_THAT(answer(0), ElementsAre(5));
  EXPECT_THAT(meeting_->notes(), IsEmpty());
  // A root that does not run: nothing is known, once nobody moves.
  post(0, 0, Operation::kBroadcast, {}, 1, 4, 1, "a.py:9");
  post(1, 7, Operation::kBroadcast, {}, 1, 4, 1, "a.py:9");
  wait(0, true);
  wait(1, true);
  EXPECT_EQ(sent_[1].back().kind, Kind::kWake);
  EXPECT_FALSE(sent_[1].back().flag);
  EXPECT_EQ(meeting_->notes().size(), 1u);
  // Who has what it would get is taken to get that.
  is_real_there_ = true;
  post(0, 0, Operation::kBroadcast, {}, 1, 4, 2, "a.py:10");
  post(1, 7, Operation::kBroadcast, {}, 1, 4, 2, "a.py:10");
  wait(0, true);
  wait(1, true);
  EXPECT_EQ(meeting_->notes().size(), 1u);
  const Message& done = sent_[0].at(sent_[0].size() - 2);
  EXPECT_EQ(done.kind, Kind::kDone);
  EXPECT_TRUE(done.flag);
}

TEST_F(MeetingTest, AKeyOfARankThatDoesNotRunIsAsOneOfARankThatDoes) {
  start(1, 1, 8);
  const auto call = [&](StoreCall what, const std::string& key, const std::string& value) {
    Message message;
    message.kind = Kind::kStore;
    message.store = what;
    message.text = key;
    message.bytes.assign(value.begin(), value.end());
    message.ticket = ++ticket_;
    meeting_->receive(0, message);
  };
  const auto answer = [&] { return std::string(sent_[0].back().bytes.begin(), sent_[0].back().bytes.end()); };
  call(StoreCall::kSet, "place/0", "here");
  call(StoreCall::kGet, "place/0", "");
  EXPECT_EQ(answer(), "here");
  const size_t answers = sent_[0].size();
  call(StoreCall::kGet, "place/5", "");
  EXPECT_EQ(sent_[0].size(), answers);
  wait(0, false);
  EXPECT_EQ(sent_[0].size(), answers + 2);  // the answer, and that the thread may look
  EXPECT_EQ(std::string(sent_[0][answers].bytes.begin(), sent_[0][answers].bytes.end()), "here");
}

TEST(StoreTest, WhatAStoreHas) {
  Store store;
  uint64_t ticket = 0;
  const auto call = [&](StoreCall what, const std::string& key, const std::vector<char>& bytes = {},
                        uint64_t count = 0) {
    Message message;
    message.kind = Kind::kStore;
    message.store = what;
    message.text = key;
    message.bytes = bytes;
    message.count = count;
    message.ticket = ++ticket;
    return store.call(1, message);
  };
  const auto text = [](const std::vector<Store::Answer>& answers) {
    return std::string(answers.front().done.bytes.begin(), answers.front().done.bytes.end());
  };
  EXPECT_EQ(call(StoreCall::kAdd, "n", {}, 2).front().done.count, 2u);
  EXPECT_EQ(call(StoreCall::kAdd, "n", {}, 3).front().done.count, 5u);
  EXPECT_EQ(text(call(StoreCall::kGet, "n")), "5");
  EXPECT_EQ(text(call(StoreCall::kCompareSet, "c", pack_list({"", "one"}))), "one");
  EXPECT_EQ(text(call(StoreCall::kCompareSet, "c", pack_list({"other", "two"}))), "one");
  EXPECT_EQ(text(call(StoreCall::kCompareSet, "c", pack_list({"one", "two"}))), "two");
  call(StoreCall::kAppend, "c", {'!'});
  EXPECT_EQ(text(call(StoreCall::kGet, "c")), "two!");
  EXPECT_TRUE(call(StoreCall::kCheck, "", pack_list({"n", "c"})).front().done.flag);
  EXPECT_FALSE(call(StoreCall::kCheck, "", pack_list({"n", "x"})).front().done.flag);
  EXPECT_THAT(call(StoreCall::kWait, "", pack_list({"x", "y"})), IsEmpty());
  EXPECT_EQ(call(StoreCall::kSet, "x").size(), 1u);
  EXPECT_EQ(call(StoreCall::kSet, "y").size(), 2u);  // who waited too
  EXPECT_EQ(call(StoreCall::kCount, "").front().done.count, 4u);
  EXPECT_TRUE(call(StoreCall::kDelete, "x").front().done.flag);
  EXPECT_FALSE(call(StoreCall::kDelete, "x").front().done.flag);
}

TEST_F(MeetingTest, AHelperOfARankIsNone) {
  start(0, 2, 2);
  meeting_->connect(9);
  Message hello;
  hello.kind = Kind::kHello;
  hello.text = "job";
  hello.rank = 1;
  hello.size = 2;
  meeting_->receive(9, hello);
  join({0, 1}, 2);
  post(0, 0, Operation::kReceive, {}, 1, 1);
  post(1, 1, Operation::kReceive, {}, 1, 0);
  wait(0, false);
  wait(1, false);
  pass(std::chrono::seconds(4));
  EXPECT_TRUE(meeting_->verdict());
}

TEST(WireTest, MessagesComeInPieces) {
  Message message;
  message.kind = Kind::kPost;
  message.text = "line";
  message.bytes = {1, 2, 3};
  const std::vector<char> packed = pack(message);
  Unpacker unpacker;
  for (int i = 0; i < 2; ++i) {
    for (const char byte : packed) {
      EXPECT_FALSE(unpacker.next());
      unpacker.add(&byte, 1);
    }
    const std::optional<Message> got = unpacker.next();
    ASSERT_TRUE(got);
    EXPECT_EQ(got->text, "line");
    EXPECT_THAT(got->bytes, ElementsAre(1, 2, 3));
  }
}

}  // namespace
}  // namespace spillway::nccl
