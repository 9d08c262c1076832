#include "cli/report/growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cli/report/fits.h"
#include "cli/report/rank_report.h"
#include "cli/report/text.h"
#include "tests/support/sizes.h"

namespace spillway {
namespace {

using Kind = MemoryEvent::Kind;
using test::kMiB;

constexpr uint32_t kLeak = 1;
constexpr uint32_t kLayer = 2;

// Steps of four layers whose blocks are freed at the end of the step; one small block of each step stays.
class Program {
 public:
  explicit Program(bool leaks) : leaks_(leaks) {
    view_.is_snapshot = true;
    view_.sites = {"unknown", "remember train.py:7", "forward model.py:20"};
  }

  void step() {
    view_.marks.push_back({"Optimizer.step#AdamW.step", true, time_ + 1});
    std::vector<uint64_t> blocks;
    for (uint64_t layer = 0; layer < 4; ++layer) blocks.push_back(allocate((3 + layer) * kMiB, kLayer));
    if (leaks_) allocate(100'000, kLeak);
    for (const uint64_t block : blocks) free(block);
  }

  MemoryView view() {
    for (const auto& [address, block] : live_)
      view_.segments.push_back({address, block.bytes, 0, 0, 0, false, false, {block}});
    view_.now = parts_of(view_.segments);
    return view_;
  }

 private:
  uint64_t allocate(uint64_t bytes, uint32_t site) {
    const uint64_t address = next_;
    next_ += 16 * kMiB;
    live_[address] = {address, (bytes + 511) / 512 * 512, bytes, BlockState::kLive, site};
    view_.events.push_back({Kind::kAllocate, false, site, address, bytes, 0, ++time_});
    return address;
  }
  void free(uint64_t address) {
    view_.events.push_back(
        {Kind::kFreeCompleted, false, 0, address, live_[address].requested_bytes, 0, ++time_});
    live_.erase(address);
  }

  const bool leaks_;
  MemoryView view_;
  std::map<uint64_t, BlockView> live_;
  uint64_t next_ = 0x7f0000000000;
  int64_t time_ = 0;
};

MemoryView steps_of(Program& program, int steps) {
  for (int i = 0; i < steps; ++i) program.step();
  return program.view();
}

TEST(Growth, NamesTheSiteThatKeepsABlockInEveryStep) {
  Program program(true);
  const RankReport report = rank_report(steps_of(program, 6));
  ASSERT_FALSE(report.growth.rows.empty());
  EXPECT_EQ(report.growth.steps.how, "marked by Optimizer.step#AdamW.step");
  EXPECT_EQ(report.growth.rows[0].name, "remember train.py:7");
  EXPECT_EQ(report.growth.rows[0].bytes_per_step, 100'000);
  for (const GrowingRow& row : report.growth.rows) EXPECT_NE(row.name, "forward model.py:20");
}

TEST(Growth, FindsStepsThatNobodyMarked) {
  Program program(true);
  MemoryView view = steps_of(program, 6);
  view.marks.clear();
  const Steps steps = find_steps(view);
  EXPECT_EQ(steps.how, "every 5 allocations");
  const RankReport report = rank_report(view);
  ASSERT_FALSE(report.growth.rows.empty());
  EXPECT_EQ(report.growth.rows[0].name, "remember train.py:7");
}

TEST(Growth, AProgramThatHoldsTheSameDoesNotGrow) {
  Program program(false);
  const RankReport report = rank_report(steps_of(program, 6));
  EXPECT_FALSE(report.growth.steps.how.empty());
  EXPECT_TRUE(report.growth.rows.empty());
}

TEST(Growth, ALongPathKeepsItsLine) {
  Program program(true);
  MemoryView view = steps_of(program, 6);
  view.sites[kLeak] = "remember /home/somebody/projects/" + std::string(60, 'x') + "/models/train.py:7";
  JobReport job;
  job.shown = rank_report(view);
  const std::string text = report_text(job, {});
  EXPECT_THAT(text, ::testing::HasSubstr(": remember .../models/train.py:7\n")) << text;
  view.sites[kLeak] = std::string(80, 'f') + " /a.py:7";
  job.shown = rank_report(view);
  EXPECT_THAT(report_text(job, {}), ::testing::HasSubstr(": " + std::string(59, 'f') + "...:7\n"));
}

TEST(Growth, TwoStepsSayNothing) {
  Program program(true);
  EXPECT_TRUE(rank_report(steps_of(program, 2)).growth.rows.empty());
}

// ---- Fits

MemoryView device_view() {
  MemoryView view;
  view.now = {100 * kMiB, 0, 0, 10 * kMiB, 40 * kMiB};
  view.device_bytes = 400 * kMiB;
  view.device_free_bytes = 50 * kMiB;
  view.largest_free_bytes = 8 * kMiB;
  view.tiers.regions = {{"weights", 30 * kMiB, 0, 0, 0}, {"pinned", 20 * kMiB, 0, 0, 1}};
  return view;
}

TEST(Fits, NativeMemoryNeedsOneRangeOrNewMemory) {
  const Fits fits = fits_of(device_view());
  EXPECT_EQ(fits.within, 8 * kMiB);
  EXPECT_EQ(fits.now, 50 * kMiB);
  EXPECT_EQ(fits.after_trim, 90 * kMiB);
  EXPECT_EQ(fits.after_evict, 120 * kMiB) << "a pinned region stays";
}

TEST(Fits, JoinedPagesServeWhereverTheyAre) {
  MemoryView view = device_view();
  view.joins_pages = true;
  const Fits fits = fits_of(view);
  EXPECT_EQ(fits.within, 40 * kMiB);
  EXPECT_EQ(fits.now, 90 * kMiB);
}

TEST(Fits, TheLimitBoundsNewMemory) {
  MemoryView view = device_view();
  view.limit_bytes = 160 * kMiB;
  const Fits fits = fits_of(view);
  EXPECT_EQ(fits.now, 10 * kMiB);
  EXPECT_EQ(fits.after_trim, 50 * kMiB);
}

TEST(Fits, AFileThatDoesNotSayWhatIsFreeGivesNoAnswer) {
  MemoryView view = device_view();
  view.device_free_bytes.reset();
  const Fits fits = fits_of(view);
  EXPECT_EQ(fits.within, 8 * kMiB);
  EXPECT_FALSE(fits.now.has_value());
  EXPECT_FALSE(fits.after_evict.has_value());
}

}  // namespace
}  // namespace spillway
