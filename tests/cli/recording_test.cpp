// Recorded runs in both formats: read, converted, and what is wrong with a file.
#include "cli/trace/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/plot/picture.h"
#include "cli/plot/timeline.h"
#include "cli/trace/file.h"
#include "stats/trace_file.h"
#include "tests/support/folder.h"
#include "tests/support/frames.h"
#include "tests/support/snapshot_writer.h"

namespace spillway {
namespace {

using test::packed;

constexpr uint64_t kBegin = 1'700'000'000'000'000'000;

TraceRecord record(TraceKind kind, uint64_t us, uint64_t address, uint64_t bytes, uint32_t stack = 0,
                   uint16_t tag = 0) {
  TraceRecord out;
  out.kind = kind;
  out.ticks = kBegin + us * 1000;
  out.address = address;
  out.requested_bytes = bytes;
  out.block_bytes = bytes;
  out.stream = 7;
  out.stack = stack;
  out.tag = tag;
  return out;
}

Recording sample() {
  Recording recording;
  recording.tags = {{1, "weights"}, {2, "activations"}};
  recording.frames = {
      {"Model.forward", "model.py", 12}, {"main", "train.py", 70}, {"at::empty", "libtorch.so", 4096}};
  recording.stacks = {{1, {2, 0, 1}}, {2, {1}}};
  recording.marks = {"step 1"};
  recording.events = {record(TraceKind::kLive, 0, 0x1000, 500),
                      record(TraceKind::kAllocate, 1, 0x2000, 1 << 20, 1, 1),
                      record(TraceKind::kMark, 2, 0, 6),
                      record(TraceKind::kAllocate, 3, 0x200000, 64 << 20, 2, 2),
                      record(TraceKind::kFree, 4, 0x2000, 1 << 20),
                      record(TraceKind::kFreeRequested, 5, 0x200000, 64 << 20),
                      record(TraceKind::kAllocate, 6, 0x2000, 300, 2, 2),
                      record(TraceKind::kOutOfMemory, 7, 0, 1 << 30),
                      record(TraceKind::kFreeCompleted, 8, 0x200000, 64 << 20),
                      record(TraceKind::kFreeRequested, 9, 0x2000, 300)};
  return recording;
}

class RecordingTest : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }

  Recording read(const std::string& name) const {
    Result<Recording> recording = read_recording(file(name));
    EXPECT_TRUE(recording.ok()) << recording.status().text();
    return recording.ok() ? std::move(recording.value()) : Recording{};
  }

  const test::Folder folder_;
};

std::vector<std::string> stack_of(const Recording& recording, const TraceRecord& event) {
  std::vector<std::string> out;
  const auto found = recording.stacks.find(event.stack);
  if (found == recording.stacks.end()) return out;
  for (const uint32_t number : found->second) {
    const RecordedFrame& frame = recording.frames[number];
    out.push_back(frame.function + " " + frame.file + ":" + std::to_string(frame.line));
  }
  return out;
}

std::string tag_of(const Recording& recording, const TraceRecord& event) {
  const auto found = recording.tags.find(event.tag);
  return found == recording.tags.end() ? "" : found->second;
}

// Compares what both formats have; a live block's own time is in neither.
void expect_same(const Recording& a, const Recording& b) {
  const auto shown = [](const Recording& recording) {
    std::vector<TraceRecord> events;
    for (const TraceRecord& event : recording.events) {
      if (event.kind != TraceKind::kMark) events.push_back(event);
    }
    return events;
  };
  const std::vector<TraceRecord> left = shown(a);
  const std::vector<TraceRecord> right = shown(b);
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].kind, right[i].kind) << i;
    EXPECT_EQ(left[i].address, right[i].address) << i;
    EXPECT_EQ(left[i].requested_bytes, right[i].requested_bytes) << i;
    EXPECT_EQ(left[i].stream, right[i].stream) << i;
    if (left[i].kind == TraceKind::kLive) continue;
    EXPECT_EQ(left[i].ticks, right[i].ticks) << i;
    EXPECT_EQ(stack_of(a, left[i]), stack_of(b, right[i])) << i;
    EXPECT_EQ(tag_of(a, left[i]), tag_of(b, right[i])) << i;
  }
}

TEST_F(RecordingTest, ATraceFileHoldsAll) {
  ASSERT_TRUE(write_trace_file(sample(), file("a.zst"), "0.0").ok());
  const Recording recording = read("a.zst");
  expect_same(recording, sample());
  EXPECT_EQ(recording.marks, sample().marks);
  EXPECT_TRUE(recording.ended);
  EXPECT_THAT(folder_.names(), testing::ElementsAre("a.zst"));
}

TEST_F(RecordingTest, ASnapshotAndBackIsTheSame) {
  const Result<Recording> back = parse_snapshot_recording(to_snapshot(sample()));
  ASSERT_TRUE(back.ok()) << back.status().text();
  expect_same(back.value(), sample());
}

// A record has 7 bits for its device.
TEST_F(RecordingTest, ManyDevicesOfASnapshotAreToldApart) {
  std::vector<std::vector<test::Event>> devices(128);
  devices.back() = {{"alloc", 0x7f0000000000, 512, 0}};
  const Result<Recording> recording = parse_snapshot_recording(test::snapshot(devices));
  ASSERT_TRUE(recording.ok()) << recording.status().text();
  ASSERT_EQ(recording.value().events.size(), 1u);
  EXPECT_EQ(recording.value().events.front().device, 127);
  devices.resize(129);
  const Result<Recording> too_many = parse_snapshot_recording(test::snapshot(devices));
  ASSERT_FALSE(too_many.ok());
  EXPECT_THAT(too_many.status().text(), testing::HasSubstr("128"));
}

bool same_trace(const Trace& a, const Trace& b) {
  return a.streams == b.streams && a.peak_live_bytes == b.peak_live_bytes &&
         std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end(),
                    [](const TraceBlock& x, const TraceBlock& y) {
                      return x.bytes == y.bytes && x.stream == y.stream &&
                             x.initially_live == y.initially_live;
                    }) &&
         std::equal(
             a.events.begin(), a.events.end(), b.events.begin(), b.events.end(),
             [](const TraceEvent& x, const TraceEvent& y) { return x.block == y.block && x.kind == y.kind; });
}

TEST_F(RecordingTest, ARecordedSnapshotReplaysTheSameAfterTwoConversions) {
  const Result<Trace> before = read_snapshot(SPILLWAY_EXAMPLE_TRACE);
  ASSERT_TRUE(before.ok()) << before.status().text();
  const Result<Recording> snapshot = read_recording(SPILLWAY_EXAMPLE_TRACE);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().text();
  ASSERT_TRUE(write_trace_file(snapshot.value(), file("a.zst"), "0.0").ok());
  const Result<Trace> as_trace = read_trace(file("a.zst"));
  ASSERT_TRUE(as_trace.ok()) << as_trace.status().text();
  EXPECT_TRUE(same_trace(before.value(), as_trace.value()));
  const Result<Trace> again = parse_snapshot(to_snapshot(read("a.zst")));
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_TRUE(same_trace(before.value(), again.value()));
}

TEST_F(RecordingTest, LostRecordsAreForgivenAndOthersNot) {
  Recording recording = sample();
  std::erase_if(recording.events, [](const TraceRecord& event) { return event.kind == TraceKind::kFree; });
  Result<Trace> trace = to_trace(recording);
  ASSERT_FALSE(trace.ok());
  EXPECT_THAT(trace.status().text(), testing::HasSubstr("allocates address 0x2000, which is live"));
  recording.dropped = 1;
  trace = to_trace(recording);
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  EXPECT_EQ(trace.value().blocks.size(), 4u);

  recording = sample();
  std::erase_if(recording.events, [](const TraceRecord& event) { return event.kind == TraceKind::kLive; });
  recording.events.push_back(record(TraceKind::kFree, 20, 0x1000, 500));
  trace = to_trace(recording);
  ASSERT_FALSE(trace.ok());
  EXPECT_THAT(trace.status().text(), testing::HasSubstr("frees address 0x1000, which is not live"));
  recording.dropped = 1;
  EXPECT_TRUE(to_trace(recording).ok());
}

TEST_F(RecordingTest, ATailKnowsOfRecordsThatWereLostBeforeIt) {
  TraceFileOptions options;
  options.path = file("tail.zst");
  options.most_bytes = 1;  // each flush begins a new file
  Result<std::unique_ptr<TraceFile>> tail = TraceFile::create(options);
  ASSERT_TRUE(tail.ok()) << tail.status().text();
  TraceRecord lost;
  lost.kind = TraceKind::kDropped;
  for (const uint64_t count : {5U, 0U, 0U, 2U}) {
    lost.block_bytes = count;
    if (count > 0) tail.value()->add(lost);
    tail.value()->add(record(TraceKind::kAllocate, 1, 0x1000, 500));
    ASSERT_TRUE(tail.value()->flush().ok());
    EXPECT_EQ(read("tail.zst").dropped, count == 2 ? 7u : 5u);
    EXPECT_EQ(read("tail.zst.1").dropped, count == 2 ? 7u : 5u);
  }
}

TEST_F(RecordingTest, BadFilesAreOneLine) {
  ASSERT_TRUE(write_trace_file(sample(), file("a.zst"), "0.0").ok());
  const std::string content = test::unpacked(folder_.read("a.zst"));
  std::string version = content;
  version.replace(version.find("\"version\":1"), 11, "\"version\":9");
  std::string unknown = content;
  unknown[unknown.size() - sizeof(TraceRecord) + offsetof(TraceRecord, kind)] = 99;
  const std::pair<std::string, std::string> files[] = {
      {packed(version), "version 9; allowed: 1"},
      {packed(unknown), "a record of unknown kind 99"},
      {packed(content.substr(0, content.size() - 1)), "half a record"},
      {packed(content.substr(sizeof(TraceRecord))), "it does not begin with a header"},
      {packed(""), "it does not begin with a header"},
      {packed(content).substr(0, 20), "nothing of it was written"}};
  for (const auto& [data, what] : files) {
    folder_.write("bad.zst", data);
    const Result<Recording> recording = read_recording(file("bad.zst"));
    ASSERT_FALSE(recording.ok()) << what;
    EXPECT_THAT(recording.status().text(), testing::StartsWith(file("bad.zst") + ": "));
    EXPECT_THAT(recording.status().text(), testing::HasSubstr(what));
    EXPECT_THAT(recording.status().text(), testing::Not(testing::HasSubstr("\n")));
  }
}

// A frame may claim any size: nothing is made ready for it.
TEST_F(RecordingTest, AFrameThatUnpacksToTooMuchIsRefused) {
  const std::string zeros(300 << 20, '\0');
  const Result<Recording> recording = parse_trace_file(packed(zeros));
  ASSERT_FALSE(recording.ok());
  EXPECT_THAT(recording.status().text(), testing::HasSubstr("bytes unpacked"));
}

TEST_F(RecordingTest, ATimelineHasThePeakAndItsLayersSumToIt) {
  const Result<PlotTimeline> timeline = make_timeline(sample(), 0, PlotBy::kTag, 9);
  ASSERT_TRUE(timeline.ok()) << timeline.status().text();
  EXPECT_EQ(timeline.value().peak_live_bytes, 500u + (1 << 20) + (64 << 20));
  uint64_t most = 0;
  for (size_t column = 0; column < 9; ++column) {
    uint64_t sum = 0;
    for (const auto& layer : timeline.value().bytes) sum += layer[column];
    most = std::max(most, sum);
  }
  EXPECT_EQ(most, timeline.value().peak_live_bytes);
  EXPECT_THAT(timeline.value().layers, testing::UnorderedElementsAre("weights", "activations", "no tag",
                                                                     "freed, other streams at work"));
  ASSERT_EQ(timeline.value().marks.size(), 2u);
  EXPECT_EQ(timeline.value().marks[0].text, "step 1");
}

TEST_F(RecordingTest, WhatIsEvictedLeavesTheDeviceUntilItIsBack) {
  Recording recording;
  recording.events = {
      record(TraceKind::kAllocate, 0, 0x400000, 1000), record(TraceKind::kAllocate, 1, 0x800000, 50),
      record(TraceKind::kEvict, 2, 0x400000, 2 << 20), record(TraceKind::kRestore, 3, 0x400000, 2 << 20),
      record(TraceKind::kFree, 4, 0x400000, 1000)};
  const Result<PlotTimeline> timeline = make_timeline(recording, 0, PlotBy::kSize, 5);
  ASSERT_TRUE(timeline.ok());
  ASSERT_EQ(timeline.value().layers, (std::vector<std::string>{"up to 1 MiB", "evicted"}));
  EXPECT_EQ(timeline.value().bytes[1][2], 1000u);
  EXPECT_EQ(timeline.value().bytes[0][2], 50u);
  EXPECT_EQ(timeline.value().bytes[1][4], 0u);
}

TEST_F(RecordingTest, PicturesAreOfTheirKind) {
  const Result<PlotTimeline> timeline = make_timeline(sample(), 0, PlotBy::kTag, 100);
  ASSERT_TRUE(timeline.ok());
  const Result<std::string> png = draw(timeline.value(), PictureFormat::kPng, {640, 400});
  ASSERT_TRUE(png.ok());
  EXPECT_TRUE(png.value().starts_with("\x89PNG\r\n"));
  const Result<std::string> svg = draw(timeline.value(), PictureFormat::kSvg, {640, 400});
  ASSERT_TRUE(svg.ok());
  EXPECT_THAT(svg.value(), testing::HasSubstr("</svg>"));
}

}  // namespace
}  // namespace spillway
