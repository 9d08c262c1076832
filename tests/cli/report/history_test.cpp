// The past is played as it was: a model of PyTorch's allocator records it and knows what it was made of.
#include "cli/report/history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "cli/report/rank_report.h"
#include "tests/support/sizes.h"

namespace spillway {
namespace {

using Kind = MemoryEvent::Kind;
using test::kMiB;

constexpr uint64_t kSegmentBytes = 20 * kMiB;

bool operator==(const Parts& a, const Parts& b) {
  return a.live == b.live && a.rounding == b.rounding && a.pending == b.pending &&
         a.inactive_split == b.inactive_split && a.cached == b.cached;
}

// The large pool of the native allocator: first fit in segments of 20 MiB, a remainder of more than 1 MiB is
// split off, neighbours that are free become one.
class NativeModel {
 public:
  void allocate(uint64_t requested, uint32_t site) {
    const uint64_t rounded = (requested + 511) / 512 * 512;
    auto hole = std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& entry) {
      return entry.second.state == BlockState::kInactive && entry.second.bytes >= rounded;
    });
    if (hole == blocks_.end()) hole = add_segment();
    const uint64_t address = hole->first;
    const uint64_t rest = hole->second.bytes - rounded;
    BlockView block{address, rest > kMiB ? rounded : hole->second.bytes, requested, BlockState::kLive, site};
    if (rest > kMiB) blocks_[address + rounded] = {address + rounded, rest, 0, BlockState::kInactive, 0};
    blocks_[address] = block;
    record({Kind::kAllocate, false, site, address, requested, 0, 0});
  }

  void request_free(uint64_t address) {
    blocks_[address].state = BlockState::kPending;
    record({Kind::kFreeRequested, false, 0, address, blocks_[address].requested_bytes, 0, 0});
  }

  void complete_free(uint64_t address) {
    const uint64_t requested = blocks_[address].requested_bytes;
    blocks_[address].state = BlockState::kInactive;
    blocks_[address].requested_bytes = 0;
    join(address);
    record({Kind::kFreeCompleted, false, 0, address, requested, 0, 0});
  }

  void trim() {
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      const auto [address, block] = *at++;
      if (block.state != BlockState::kInactive || block.bytes != kSegmentBytes) continue;
      blocks_.erase(address);
      segments_.erase(std::find(segments_.begin(), segments_.end(), address));
      record({Kind::kSegmentRemove, false, 0, address, kSegmentBytes, 0, 0});
    }
  }

  std::vector<uint64_t> in_state(BlockState state) const {
    std::vector<uint64_t> out;
    for (const auto& [address, block] : blocks_) {
      if (block.state == state) out.push_back(address);
    }
    return out;
  }

  std::vector<SegmentView> segments() const {
    std::vector<uint64_t> sorted = segments_;
    std::sort(sorted.begin(), sorted.end());
    std::vector<SegmentView> out;
    for (const uint64_t address : sorted) {
      SegmentView segment{address, kSegmentBytes, 0, 0, 0, false, false, {}};
      for (auto at = blocks_.lower_bound(address); at != blocks_.end() && at->first < address + kSegmentBytes;
           ++at)
        segment.blocks.push_back(at->second);
      out.push_back(segment);
    }
    return out;
  }

  // Forgets what was recorded: what comes is the trace.
  void start_recording() {
    events.clear();
    moments = {parts_of(segments())};
  }

  std::vector<MemoryEvent> events;
  std::vector<Parts> moments;  // at the start, then after every event

 private:
  std::map<uint64_t, BlockView>::iterator add_segment() {
    const uint64_t address = next_;
    next_ += 2 * kSegmentBytes;
    segments_.push_back(address);
    blocks_[address] = {address, kSegmentBytes, 0, BlockState::kInactive, 0};
    record({Kind::kSegmentAdd, false, 0, address, kSegmentBytes, 0, 0});
    return blocks_.find(address);
  }

  void join(uint64_t address) {
    auto at = blocks_.find(address);
    const auto joins = [](auto first, auto second) {
      return first->second.state == BlockState::kInactive && second->second.state == BlockState::kInactive &&
             first->first + first->second.bytes == second->first;
    };
    if (const auto next = std::next(at); next != blocks_.end() && joins(at, next)) {
      at->second.bytes += next->second.bytes;
      blocks_.erase(next);
    }
    if (at == blocks_.begin()) return;
    const auto before = std::prev(at);
    if (joins(before, at)) {
      before->second.bytes += at->second.bytes;
      blocks_.erase(at);
    }
  }

  void record(const MemoryEvent& event) {
    events.push_back(event);
    moments.push_back(parts_of(segments()));
  }

  std::map<uint64_t, BlockView> blocks_;
  std::vector<uint64_t> segments_;
  uint64_t next_ = 0x7f0000000000;
};

void run_randomly(NativeModel& model, std::mt19937& random, int steps) {
  const auto pick = [&](const std::vector<uint64_t>& from) { return from[random() % from.size()]; };
  for (int i = 0; i < steps; ++i) {
    const auto live = model.in_state(BlockState::kLive);
    const auto pending = model.in_state(BlockState::kPending);
    const auto choice = random() % 10;
    if (choice < 5 || (live.empty() && pending.empty())) {
      model.allocate(kMiB + 1 + random() % (9 * kMiB), static_cast<uint32_t>(random() % 3));
    } else if (choice < 7 && !live.empty()) {
      model.request_free(pick(live));
    } else if (choice < 9 && !pending.empty()) {
      model.complete_free(pick(pending));
    } else if (choice == 9) {
      model.trim();
    }
  }
}

MemoryView view_of(const NativeModel& model) {
  MemoryView view;
  view.is_snapshot = true;
  view.segments = model.segments();
  view.events = model.events;
  view.sites = {"unknown", "a", "b"};
  view.now = parts_of(view.segments);
  return view;
}

TEST(History, EveryMomentIsAsTheAllocatorKnewIt) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    NativeModel model;
    model.start_recording();
    run_randomly(model, random, 600);
    const MemoryView view = view_of(model);
    Result<History> history = History::build(view);
    ASSERT_TRUE(history.ok()) << history.status().text();
    const auto compare = [&](int64_t index, const Parts& parts) {
      EXPECT_TRUE(parts == model.moments[static_cast<size_t>(index + 1)]) << "after event " << index;
      EXPECT_TRUE(parts == parts_of(history->segments())) << "after event " << index;
    };
    ASSERT_TRUE(history->play(compare).ok());
  }
}

// What a block kept above its request is not known where the block was there before the first event.
TEST(History, ATraceThatBeginsInTheMiddleKnowsAllButTheRemaindersOfThen) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    NativeModel model;
    run_randomly(model, random, 200);
    const size_t first_blocks =
        model.in_state(BlockState::kLive).size() + model.in_state(BlockState::kPending).size();
    model.start_recording();
    run_randomly(model, random, 400);
    const MemoryView view = view_of(model);
    Result<History> history = History::build(view);
    ASSERT_TRUE(history.ok()) << history.status().text();
    const auto compare = [&](int64_t index, const Parts& parts) {
      const Parts& known = model.moments[static_cast<size_t>(index + 1)];
      EXPECT_EQ(parts.reserved(), known.reserved()) << "after event " << index;
      EXPECT_EQ(parts.live, known.live) << "after event " << index;
      EXPECT_EQ(parts.pending, known.pending) << "after event " << index;
      EXPECT_EQ(parts.cached, known.cached) << "after event " << index;
      EXPECT_LE(std::max(parts.rounding, known.rounding) - std::min(parts.rounding, known.rounding),
                first_blocks * kMiB)
          << "after event " << index;
    };
    ASSERT_TRUE(history->play(compare).ok());
    EXPECT_TRUE(history->segments().size() == view.segments.size());
    EXPECT_TRUE(parts_of(history->segments()) == model.moments.back());
  }
}

TEST(History, TheReportNamesTheHighestMoments) {
  std::mt19937 random(7);
  NativeModel model;
  model.start_recording();
  run_randomly(model, random, 600);
  const RankReport report = rank_report(view_of(model));
  uint64_t reserved = 0;
  uint64_t live = 0;
  for (const Parts& parts : model.moments) {
    reserved = std::max(reserved, parts.reserved());
    live = std::max(live, parts.live + parts.pending);
  }
  ASSERT_EQ(report.moments.size(), 3u);
  EXPECT_EQ(report.main().parts.reserved(), reserved);
  EXPECT_EQ(report.view.reserved_peak_bytes, reserved);
  EXPECT_EQ(report.live().parts.live + report.live().parts.pending, live);
  EXPECT_EQ(report.view.live_peak_bytes, live);
  EXPECT_TRUE(report.moments[2].parts == model.moments.back());
  for (const Moment& moment : report.moments) {
    EXPECT_TRUE(moment.parts == parts_of(moment.segments)) << moment.name;
    uint64_t by_site = 0;
    uint64_t by_class = 0;
    for (const SiteRow& row : moment.tables.sites) by_site += row.live_bytes;
    for (const ClassRow& row : moment.tables.classes) by_class += row.live_bytes;
    EXPECT_EQ(by_site, moment.parts.live + moment.parts.pending);
    EXPECT_EQ(by_class, by_site);
  }
  for (const Timeline& timeline : report.timelines) {
    uint64_t most = 0;
    for (const TimelinePoint& point : timeline.points) {
      uint64_t sum = 0;
      for (const uint64_t bytes : point.bytes) sum += bytes;
      most = std::max(most, sum);
    }
    EXPECT_EQ(most, reserved) << timeline.title << ": the picture shows the peak";
  }
}

TEST(History, RangesThatGrowAndShrinkAreFollowed) {
  MemoryView view;
  view.is_snapshot = true;
  constexpr uint64_t kBase = 0x7f0000000000;
  // Mapped in two parts, the first of which was unmapped in the end.
  view.segments = {{kBase + 2 * kMiB,
                    2 * kMiB,
                    0,
                    0,
                    0,
                    false,
                    true,
                    {{kBase + 2 * kMiB, 1024, 1000, BlockState::kLive, 0},
                     {kBase + 2 * kMiB + 1024, 2 * kMiB - 1024, 0, BlockState::kInactive, 0}}}};
  view.events = {{Kind::kSegmentAdd, true, 0, kBase, 2 * kMiB, 0, 0},
                 {Kind::kAllocate, false, 0, kBase, 700, 0, 0},
                 {Kind::kSegmentAdd, true, 0, kBase + 2 * kMiB, 2 * kMiB, 0, 0},
                 {Kind::kAllocate, false, 0, kBase + 2 * kMiB, 1000, 0, 0},
                 {Kind::kFreeCompleted, false, 0, kBase, 700, 0, 0},
                 {Kind::kSegmentRemove, true, 0, kBase, 2 * kMiB, 0, 0}};
  Result<History> history = History::build(view);
  ASSERT_TRUE(history.ok()) << history.status().text();
  std::vector<Parts> seen;
  ASSERT_TRUE(history->play([&](int64_t, const Parts& parts) { seen.push_back(parts); }).ok());
  EXPECT_EQ(seen[0].reserved(), 0u);
  EXPECT_EQ(seen[1].cached, 2 * kMiB);
  EXPECT_EQ(seen[4].live, 1700u);
  EXPECT_EQ(seen[4].rounding, 1024u + 1024u - 1700u);
  EXPECT_EQ(seen[4].reserved(), 4 * kMiB);
  EXPECT_EQ(seen[6].reserved(), 2 * kMiB);
  EXPECT_EQ(seen[6].inactive_split, 2 * kMiB - 1024);
}

TEST(History, EventsThatDoNotFitAreLeftOutAndNoted) {
  std::mt19937 random(3);
  NativeModel model;
  model.start_recording();
  run_randomly(model, random, 100);
  MemoryView view = view_of(model);
  const auto allocation = std::find_if(view.events.begin(), view.events.end(), [](const MemoryEvent& event) {
    return event.kind == Kind::kAllocate;
  });
  view.events.insert(allocation, *allocation);
  const RankReport report = rank_report(view);
  ASSERT_EQ(report.moments.size(), 1u);
  EXPECT_EQ(report.main().name, "now");
  EXPECT_EQ(report.view.notes.size(), 1u);
  EXPECT_TRUE(report.main().parts == model.moments.back());
}

}  // namespace
}  // namespace spillway
