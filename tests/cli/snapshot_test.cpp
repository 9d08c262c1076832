#include "cli/trace/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/snapshot_writer.h"

namespace spillway {
namespace {

using test::add_free;
using test::Event;
using test::snapshot;
using ::testing::HasSubstr;
using Kind = TraceEvent::Kind;

std::vector<Kind> kinds(const Trace& trace) {
  std::vector<Kind> out;
  for (const TraceEvent& event : trace.events) out.push_back(event.kind);
  return out;
}

std::string error_of(const std::string& data) {
  const auto trace = parse_snapshot(data);
  return trace.ok() ? "" : trace.status().text();
}

TEST(Snapshot, AFreeThatCompletesAtOnceIsOneEvent) {
  std::vector<Event> events = {{"alloc", 4096, 100}, {"alloc", 8192, 200}};
  add_free(events, 4096, 100);
  add_free(events, 8192, 200);
  const auto trace = parse_snapshot(snapshot({events}));
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  EXPECT_EQ(kinds(trace.value()),
            (std::vector<Kind>{Kind::kAllocate, Kind::kAllocate, Kind::kFree, Kind::kFree}));
  EXPECT_EQ(trace.value().peak_live_bytes, 300u);
}

TEST(Snapshot, ABlockIsLiveUntilItsFreeCompleted) {
  const std::vector<Event> events = {{"alloc", 4096, 100, 0},
                                     {"free_requested", 4096, 100, 0},
                                     {"alloc", 8192, 50, 3},
                                     {"free_completed", 4096, 100, 0},
                                     {"alloc", 4096, 60, 0}};
  const auto trace = parse_snapshot(snapshot({events}, {{8192, 50, 3}, {4096, 60, 0}}));
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  EXPECT_EQ(kinds(trace.value()), (std::vector<Kind>{Kind::kAllocate, Kind::kFreeRequested, Kind::kAllocate,
                                                     Kind::kFreeCompleted, Kind::kAllocate}));
  EXPECT_EQ(trace.value().peak_live_bytes, 150u);
  EXPECT_EQ(trace.value().streams, (std::vector<uint64_t>{0, 3}));
  EXPECT_EQ(trace.value().blocks[1].stream, 1u);
}

TEST(Snapshot, WhatIsLiveAtTheStartFollowsFromTheEnd) {
  // At the start: 1000 (never freed, so only the segments know it), 2000 (freed). 3000 comes and stays.
  std::vector<Event> events = {{"alloc", 3000, 7, 0}};
  add_free(events, 2000, 20, 5);
  const auto trace = parse_snapshot(snapshot({events}, {{1000, 10, 4}, {3000, 7, 0}}));
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  const Trace& t = trace.value();
  ASSERT_EQ(t.blocks.size(), 3u);
  EXPECT_TRUE(t.blocks[0].initially_live && t.blocks[1].initially_live && !t.blocks[2].initially_live);
  EXPECT_EQ(t.blocks[0].bytes, 10u);
  EXPECT_EQ(t.streams[t.blocks[0].stream], 4u);
  EXPECT_EQ(t.blocks[1].bytes, 20u);
  EXPECT_EQ(t.streams[t.blocks[1].stream], 5u);
  EXPECT_EQ(t.peak_live_bytes, 37u);
}

TEST(Snapshot, ReusedAddressesAreDifferentBlocks) {
  std::vector<Event> events;
  add_free(events, 512, 1);
  events.push_back({"alloc", 512, 2});
  add_free(events, 512, 2);
  events.push_back({"alloc", 512, 3});
  const auto trace = parse_snapshot(snapshot({events}, {{512, 3}}));
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  ASSERT_EQ(trace.value().blocks.size(), 3u);
  EXPECT_TRUE(trace.value().blocks[0].initially_live);
  EXPECT_FALSE(trace.value().blocks[2].initially_live);
  EXPECT_EQ(trace.value().peak_live_bytes, 3u);
}

TEST(Snapshot, FreesThatWerePendingBeforeTheFirstEventAndAfterTheLast) {
  const std::vector<Event> events = {
      {"free_completed", 512, 8, 0}, {"alloc", 1024, 9, 0}, {"free_requested", 1024, 9, 0}};
  const auto trace = parse_snapshot(snapshot({events}, {{1024, 9, 0, "active_pending_free"}}));
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  EXPECT_TRUE(trace.value().blocks[0].initially_pending);
  EXPECT_EQ(kinds(trace.value()),
            (std::vector<Kind>{Kind::kFreeCompleted, Kind::kAllocate, Kind::kFreeRequested}));
}

TEST(Snapshot, SegmentEventsAndUnknownActionsAreNotTheProgramsBusiness) {
  const std::vector<Event> events = {
      {"segment_alloc", 512, 2097152}, {"alloc", 512, 1},          {"snapshot", 0, 0},
      {"segment_free", 4096, 2097152}, {"something_new", 512, -5}, {"free_requested", 512, 1},
      {"free_completed", 512, 1}};
  const auto trace = parse_snapshot(snapshot({events}));
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  EXPECT_EQ(kinds(trace.value()), (std::vector<Kind>{Kind::kAllocate, Kind::kFree}));
}

TEST(Snapshot, TheBusiestDeviceIsChosenUnlessToldOtherwise) {
  const std::vector<Event> few = {{"alloc", 512, 1}};
  const std::vector<Event> many = {{"alloc", 512, 2}, {"alloc", 1024, 2}};
  const std::string data = snapshot({{}, few, many, {}});
  const auto trace = parse_snapshot(data);
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  EXPECT_EQ(trace.value().device, 2);
  EXPECT_EQ(trace.value().devices_with_events, 2);
  EXPECT_EQ(parse_snapshot(data, {1}).value().peak_live_bytes, 1u);
  EXPECT_THAT(parse_snapshot(data, {0}).status().text(), HasSubstr("device_traces[0] is empty"));
  EXPECT_THAT(parse_snapshot(data, {9}).status().text(),
              HasSubstr("device 9 is not in the snapshot; allowed: 0 to 3"));
}

TEST(Snapshot, RefusesWhatIsNotASnapshotWithATrace) {
  EXPECT_THAT(error_of(test::PickleWriter().begin_list().end_list().finish()), HasSubstr("_dump_snapshot"));
  EXPECT_THAT(error_of(test::PickleWriter().integer(1).finish()), HasSubstr("not a dictionary"));
  EXPECT_THAT(error_of(test::PickleWriter().begin_dict().end_dict().finish()),
              HasSubstr("no list 'device_traces'"));
  EXPECT_THAT(error_of(snapshot({})), HasSubstr("history was not recorded"));
  EXPECT_THAT(error_of(snapshot({{}})), HasSubstr("history was not recorded"));
  EXPECT_THAT(error_of(snapshot({{{"segment_alloc", 1, 1}}})), HasSubstr("no allocation and no free"));
}

TEST(Snapshot, RefusesImpossibleEvents) {
  EXPECT_THAT(error_of(snapshot({{{"alloc", 512, -1}}})), HasSubstr("event 0: 'size' is -1; allowed: 0 to"));
  EXPECT_THAT(error_of(snapshot({{{"alloc", 512, int64_t{1} << 60}}})), HasSubstr("'size' is"));
  EXPECT_THAT(error_of(snapshot({{{"alloc", 512, 1}, {"alloc", 512, 1}}})),
              HasSubstr("address 0x200, which is live"));
  std::vector<Event> twice = {{"alloc", 512, 1}, {"free_requested", 512, 1}, {"free_requested", 512, 1}};
  EXPECT_THAT(error_of(snapshot({twice})), HasSubstr("which is not live"));
  std::vector<Event> streams;
  for (int i = 0; i < 2000; ++i) streams.push_back({"alloc", 512u * static_cast<unsigned>(i + 1), 1, i});
  EXPECT_THAT(error_of(snapshot({streams})), HasSubstr("more than 1024 streams"));
  std::vector<Event> huge;
  for (unsigned i = 0; i < 3; ++i) huge.push_back({"alloc", 512 * (i + 1), int64_t{1} << 48});
  EXPECT_THAT(error_of(snapshot({huge})), HasSubstr("are live at once"));
}

TEST(Snapshot, ObjectsSharedOverAndOverAreNotSpelledOut) {
  // 20,000 references to one segment of 20,000 references to one block.
  test::PickleWriter pickle;
  pickle.begin_dict().text("device_traces").begin_list().begin_list();
  test::write_event(pickle, {"alloc", 512, 1, 0});
  pickle.end_list().end_list().text("segments").raw("]q\x01(");
  pickle.begin_dict().text("blocks").begin_list().begin_dict().text("size").integer(512).text("state").text(
      "inactive");
  pickle.end_dict().raw("q\x02");
  for (int i = 0; i < 20000; ++i) pickle.raw("h\x02");
  pickle.end_list().end_dict().raw("q\x03");
  for (int i = 0; i < 20000; ++i) pickle.raw("h\x03");
  const std::string data = pickle.raw("e").end_dict().finish();
  EXPECT_THAT(error_of(data), HasSubstr("refers to the same objects too often"));
}

TEST(Snapshot, NoDamageCrashesIt) {
  std::vector<Event> events = {{"alloc", 3000, 7, 0}, {"alloc", 4000, 9, 1}};
  add_free(events, 2000, 20, 5);
  const std::string data = snapshot({events}, {{1000, 10, 4}, {3000, 7, 0}});
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = data;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    const auto trace = parse_snapshot(damaged);
    if (!trace.ok()) {
      EXPECT_FALSE(trace.status().text().empty());
    }
  }
}

// The snapshots and traces of the shared folder, where the checkout has one, against the figures that came
// with them.
#ifdef SPILLWAY_SHARED_TRACES
struct Known {
  const char* path;
  uint64_t peak_live_bytes;
  size_t streams;
};

TEST(SharedTraces, PeakLiveBytesAreThoseOfTheirTable) {
  constexpr double kGiB = 1 << 30;
  const Known exact[] = {{"snapshots/lm_2p7b_ctx128_forward.pickle", 17602723840, 1},
                         {"snapshots/lm_2p7b_ctx128_train_step.pickle", 54802667524, 1},
                         {"snapshots/lm_2p7b_ctx512_train_step.pickle", 54868051972, 1},
                         {"snapshots/tinyllama_qlora_finetune.pickle", 5876132840, 1}};
  for (const Known& known : exact) {
    const auto trace = read_snapshot(std::string(SPILLWAY_SHARED_TRACES "/") + known.path);
    ASSERT_TRUE(trace.ok()) << trace.status().text();
    EXPECT_EQ(trace.value().peak_live_bytes, known.peak_live_bytes) << known.path;
    EXPECT_EQ(trace.value().streams.size(), known.streams);
  }
  const std::pair<const char*, double> rounded[] = {{"traces/llama_1b_fixed.pickle.gz", 46.59},
                                                    {"traces/moe_random_routing.pickle.gz", 22.94},
                                                    {"traces/resnet50_multires.pickle.gz", 11.02},
                                                    {"traces/gather_free_prefetch.pickle.gz", 4.73}};
  for (const auto& [path, gib] : rounded) {
    const auto trace = read_snapshot(std::string(SPILLWAY_SHARED_TRACES "/") + path);
    ASSERT_TRUE(trace.ok()) << trace.status().text();
    EXPECT_NEAR(static_cast<double>(trace.value().peak_live_bytes) / kGiB, gib, 0.005) << path;
  }
}
#endif

}  // namespace
}  // namespace spillway
