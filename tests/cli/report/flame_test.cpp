#include "cli/report/flame.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/support/sizes.h"

namespace spillway {
namespace {

using test::kMiB;

// A report of blocks that live now, each with its stack, outermost frame first as a person writes them down.
class Live {
 public:
  void hold(uint64_t bytes, const std::vector<ListedFrame>& outermost_first,
            BlockState state = BlockState::kLive) {
    std::vector<uint32_t> frames;
    for (size_t i = outermost_first.size(); i-- > 0;) {
      const ListedFrame& frame = outermost_first[i];
      frames.push_back(stacks_->frame(frame.function, frame.file, frame.line));
    }
    segment_.blocks.push_back(
        {next_, bytes, state == BlockState::kInactive ? 0 : bytes, state, 0, stacks_->stack(frames)});
    next_ += bytes;
    segment_.bytes += bytes;
  }

  RankReport report() const {
    RankReport out;
    out.view.stacks = stacks_;
    out.moments.push_back({"now", -1, 0, {}, {}, {segment_}});
    return out;
  }

 private:
  std::shared_ptr<Stacks> stacks_ = std::make_shared<Stacks>();
  SegmentView segment_;
  uint64_t next_ = 0;
};

const ListedFrame kMain{"main", "/me/train.py", 7};
const ListedFrame kForward{"forward", "/me/model.py", 20};
const ListedFrame kBackward{"backward", "/venv/site-packages/torch/autograd/graph.py", 5};
const ListedFrame kAllocator{"c10::Allocator::allocate", "", 0};

// Every node holds what its children hold and itself; nobody holds more than the caller.
void sums(const FlameNode& node) {
  uint64_t bytes = 0, before = 0, blocks = 0;
  for (const FlameNode& child : node.children) {
    sums(child);
    bytes += child.bytes;
    before += child.before;
    blocks += child.blocks;
  }
  EXPECT_LE(bytes, node.bytes) << node.name;
  EXPECT_LE(before, node.before) << node.name;
  EXPECT_LE(blocks, node.blocks) << node.name;
}

TEST(Flame, BytesLieBelowWhoCalled) {
  Live live;
  live.hold(3 * kMiB, {kMain, kForward, kAllocator});
  live.hold(1 * kMiB, {kMain, kForward, kAllocator});
  live.hold(6 * kMiB, {kMain, kBackward});
  live.hold(2 * kMiB, {kMain});
  const FlameNode root = flame_of(live.report(), FlameBy::kStack);
  sums(root);
  EXPECT_EQ(root.name, "all that is live");
  EXPECT_EQ(root.bytes, 12 * kMiB);
  EXPECT_EQ(root.blocks, 4u);
  ASSERT_EQ(root.children.size(), 1u);
  const FlameNode& main = root.children[0];
  EXPECT_EQ(main.name, "main (train.py:7)");
  EXPECT_EQ(main.bytes, 12 * kMiB);
  // The most first; what is no function of the program's is left out.
  ASSERT_EQ(main.children.size(), 2u);
  EXPECT_EQ(main.children[0].name, "backward (graph.py:5)");
  EXPECT_EQ(main.children[1].name, "forward (model.py:20)");
  EXPECT_EQ(main.children[1].bytes, 4 * kMiB);
  EXPECT_EQ(main.children[1].blocks, 2u);
  EXPECT_TRUE(main.children[1].children.empty());
}

TEST(Flame, ModulesThatCallThemselvesAreOne) {
  Live live;
  live.hold(4 * kMiB, {kMain, {"step", "/me/train.py", 30}, kForward, {"layer", "/me/model.py", 44}});
  const FlameNode root = flame_of(live.report(), FlameBy::kModule);
  ASSERT_EQ(root.children.size(), 1u);
  EXPECT_EQ(root.children[0].name, "train");
  ASSERT_EQ(root.children[0].children.size(), 1u);
  EXPECT_EQ(root.children[0].children[0].name, "model");
  EXPECT_TRUE(root.children[0].children[0].children.empty());
}

// What waits for a stream is held; what is free is not.
TEST(Flame, CountsWhatIsHeld) {
  Live live;
  live.hold(1 * kMiB, {kMain});
  live.hold(2 * kMiB, {kMain}, BlockState::kPending);
  live.hold(4 * kMiB, {kMain}, BlockState::kInactive);
  EXPECT_EQ(flame_of(live.report(), FlameBy::kStack).bytes, 3 * kMiB);
}

TEST(Flame, WhatNoStackWasRecordedOfIsSaid) {
  Live live;
  live.hold(1 * kMiB, {});
  live.hold(2 * kMiB, {kAllocator});
  RankReport report = live.report();
  for (const bool has_stacks : {true, false}) {
    if (!has_stacks) report.view.stacks = nullptr;
    const FlameNode root = flame_of(report, FlameBy::kStack);
    ASSERT_EQ(root.children.size(), 1u);
    EXPECT_EQ(root.children[0].name, "unknown: no stack was recorded");
    EXPECT_EQ(root.children[0].bytes, 3 * kMiB);
  }
}

// Of a recursion that went on and on the innermost calls are shown, which say where memory was allocated.
TEST(Flame, ADeepStackIsCutAtItsOuterEnd) {
  Live live;
  std::vector<ListedFrame> frames{kMain};
  for (int i = 0; i < 1000; ++i) frames.push_back({"deeper", "/me/tree.py", i});
  frames.push_back(kForward);
  live.hold(kMiB, frames);
  const FlameNode root = flame_of(live.report(), FlameBy::kStack);
  const FlameNode* at = &root;
  size_t depth = 0;
  for (; !at->children.empty(); at = at->children.data()) ++depth;
  EXPECT_EQ(at->name, "forward (model.py:20)");
  EXPECT_EQ(depth, 200u);
  EXPECT_NE(root.children[0].name, "main (train.py:7)");
}

// A caller's line moves whenever something is written above it: the change lies where the bytes changed.
TEST(Flame, ALineThatMovedIsTheSameCaller) {
  Live before;
  before.hold(4 * kMiB, {kMain, kForward});
  Live after;
  after.hold(5 * kMiB, {{"main", "/me/train.py", 9}, {"forward", "/me/model.py", 31}});
  const FlameNode root =
      flame_of_change(flame_of(before.report(), FlameBy::kStack), flame_of(after.report(), FlameBy::kStack));
  ASSERT_EQ(root.children.size(), 1u);
  const FlameNode& main = root.children[0];
  EXPECT_EQ(main.name, "main (train.py:9)");
  EXPECT_EQ(main.before, 4 * kMiB);
  EXPECT_EQ(main.bytes, 5 * kMiB);
  ASSERT_EQ(main.children.size(), 1u);
  EXPECT_EQ(main.children[0].name, "forward (model.py:31)");
  EXPECT_EQ(main.children[0].before, 4 * kMiB);
}

TEST(Flame, TwoFilesAreOneTree) {
  Live before;
  before.hold(4 * kMiB, {kMain, kForward});
  before.hold(1 * kMiB, {kMain, kBackward});
  Live after;
  after.hold(6 * kMiB, {kMain, kForward});
  after.hold(2 * kMiB, {{"load", "/me/data.py", 3}});
  const FlameNode root =
      flame_of_change(flame_of(before.report(), FlameBy::kStack), flame_of(after.report(), FlameBy::kStack));
  sums(root);
  EXPECT_EQ(root.before, 5 * kMiB);
  EXPECT_EQ(root.bytes, 8 * kMiB);
  EXPECT_EQ(root.blocks, 2u);  // of the second file
  ASSERT_EQ(root.children.size(), 2u);
  const FlameNode& main = root.children[0];
  EXPECT_EQ(main.before, 5 * kMiB);
  EXPECT_EQ(main.bytes, 6 * kMiB);
  EXPECT_EQ(main.children[1].name, "backward (graph.py:5)");  // gone
  EXPECT_EQ(main.children[1].bytes, 0u);
  EXPECT_EQ(root.children[1].before, 0u);  // new
}

TEST(Flame, NarrowOnesAreTakenTogetherAndNothingIsLost) {
  Live live;
  for (int i = 0; i < 10'000; ++i) live.hold(1 * kMiB, {kMain, {"f", "/me/many.py", i}});
  live.hold(10'000 * kMiB, {kMain, kForward});
  const nlohmann::ordered_json json = flame_json(flame_of(live.report(), FlameBy::kStack));
  EXPECT_EQ(json["bytes"], 20'000 * kMiB);
  const auto& callees = json["children"][0]["children"];
  ASSERT_EQ(callees.size(), 2u);
  EXPECT_EQ(callees[0]["name"], "forward (model.py:20)");
  EXPECT_EQ(callees[1]["name"], "10000 narrow ones");
  EXPECT_EQ(callees[1]["bytes"], 10'000 * kMiB);
  EXPECT_EQ(callees[1]["blocks"], 10'000);
}

TEST(Flame, NothingLiveIsAnEmptyTree) {
  const nlohmann::ordered_json json = flame_json(flame_of(Live().report(), FlameBy::kStack));
  EXPECT_EQ(json["bytes"], 0);
  EXPECT_TRUE(json["children"].empty());
}

}  // namespace
}  // namespace spillway
