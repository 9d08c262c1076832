#include "cli/replay/program.h"

#include <gtest/gtest.h>

#include "cli/trace/snapshot.h"
#include "tests/support/snapshot_writer.h"

namespace spillway {
namespace {

using test::add_free;
using test::Event;
using Kind = ReplayOperation::Kind;

ReplayProgram compiled(const std::vector<Event>& events, const std::vector<test::Live>& live = {}) {
  const auto trace = parse_snapshot(test::snapshot({events}, live));
  EXPECT_TRUE(trace.ok()) << trace.status().text();
  return compile(trace.value());
}

std::string text(const std::vector<ReplayOperation>& operations) {
  std::string out;
  for (const ReplayOperation& operation : operations) {
    constexpr char kLetters[] = {'a', 'f', 'p', 'c'};
    out += kLetters[static_cast<size_t>(operation.kind)] + std::to_string(operation.block);
    if (operation.kind == Kind::kFreePending || operation.kind == Kind::kComplete) {
      out += "@" + std::to_string(operation.helper);
    }
    out += ' ';
  }
  return out;
}

TEST(Program, TheWrapBringsTheStartBack) {
  // Block 0 stays throughout, 1 is there at the start and freed, 2 stays, 3 comes and goes, 4 stays.
  std::vector<Event> events;
  add_free(events, 2000, 20);
  events.push_back({"alloc", 3000, 30});
  events.push_back({"alloc", 4000, 40});
  add_free(events, 4000, 40);
  events.push_back({"alloc", 5000, 50});
  const ReplayProgram program = compiled(events, {{1000, 10}, {3000, 30}, {5000, 50}});
  EXPECT_EQ(text(program.start), "a0 a1 ");
  EXPECT_EQ(text(program.pass), "f1 a2 a3 f3 a4 ");
  EXPECT_EQ(text(program.wrap), "f2 f4 a1 ");
  EXPECT_EQ(program.calls_per_pass, 5u);
  EXPECT_EQ(program.calls_per_wrap, 3u);
  EXPECT_EQ(program.helpers, 0u);
}

TEST(Program, PendingFreesInOrderShareAHelper) {
  const ReplayProgram program = compiled({{"alloc", 512, 1},
                                          {"alloc", 1024, 1},
                                          {"free_requested", 512, 1},
                                          {"free_requested", 1024, 1},
                                          {"free_completed", 512, 1},
                                          {"free_completed", 1024, 1}});
  EXPECT_EQ(text(program.pass), "a0 a1 p0@0 p1@0 c0@0 c1@0 ");
  EXPECT_EQ(program.helpers, 1u);
  EXPECT_EQ(program.calls_per_pass, 4u);
}

TEST(Program, PendingFreesOutOfOrderDoNot) {
  const ReplayProgram program = compiled({{"alloc", 512, 1},
                                          {"alloc", 1024, 1},
                                          {"free_requested", 512, 1},
                                          {"free_requested", 1024, 1},
                                          {"alloc", 2048, 1},
                                          {"free_completed", 1024, 1},
                                          {"free_completed", 512, 1}});
  EXPECT_EQ(text(program.pass), "a0 a1 p0@0 p1@1 a2 c1@1 c0@0 ");
  EXPECT_EQ(program.helpers, 2u);
}

TEST(Program, PastTheLastHelperABlockIsHeldLongerNeverShorter) {
  constexpr uint64_t kBlocks = ReplayProgram::kMaxHelpers + 10;
  std::vector<Event> events;
  for (uint64_t i = 1; i <= kBlocks; ++i) events.push_back({"alloc", 512 * i, 1});
  for (uint64_t i = 1; i <= kBlocks; ++i) events.push_back({"free_requested", 512 * i, 1});
  for (uint64_t i = kBlocks; i >= 1; --i) events.push_back({"free_completed", 512 * i, 1});
  const ReplayProgram program = compiled(events);
  EXPECT_EQ(program.helpers, ReplayProgram::kMaxHelpers);
  // Completing a block completes what was freed on its helper before it: none of that may be still pending in
  // the trace.
  std::vector<std::vector<uint32_t>> on_helper(program.helpers);
  std::vector<bool> may_complete(program.blocks.size(), false);
  size_t completions = 0;
  for (const ReplayOperation& operation : program.pass) {
    if (operation.kind == Kind::kFreePending) on_helper[operation.helper].push_back(operation.block);
    if (operation.kind != Kind::kComplete) continue;
    ++completions;
    // Blocks complete in descending order here, so all with a higher number are complete in the trace.
    for (const uint32_t block : on_helper[operation.helper]) {
      if (block == operation.block) break;
      EXPECT_GE(block, operation.block);
    }
  }
  EXPECT_EQ(completions, ReplayProgram::kMaxHelpers);
}

TEST(Program, AFreePendingBeforeTheFirstEventIsPendingAgainInEveryPass) {
  const ReplayProgram program =
      compiled({{"alloc", 1024, 9}, {"free_completed", 512, 8}, {"free_requested", 1024, 9}},
               {{1024, 9, 0, "active_pending_free"}});
  EXPECT_EQ(text(program.start), "a0 p0@0 ");
  EXPECT_EQ(text(program.pass), "a1 c0@0 p1@0 ");
  EXPECT_EQ(text(program.wrap), "a0 p0@0 ");
}

}  // namespace
}  // namespace spillway
