// Damaged dumps, snapshots, traces and live pages: every reader answers with what sums up, or with one line.
// Under ASan and UBSan, where a crash, a leak or an overflow fails, each reader is tried for four
// seconds, or a minute; elsewhere with as many seeds as SPILLWAY_TEST_SEEDS says. A failure names its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cli/plot/timeline.h"
#include "cli/report/rank_report.h"
#include "cli/report/read.h"
#include "cli/trace/file.h"
#include "cli/trace/recording.h"
#include "cli/trace/snapshot.h"
#include "estimator/estimate.h"
#include "estimator/inputs/diffusers.h"
#include "stats/dump.h"
#include "stats/live_page.h"
#include "stats/live_reader.h"
#include "stats/snapshot.h"
#include "tests/support/folder.h"
#include "tests/support/frames.h"
#include "tests/support/sample_dump.h"
#include "tests/support/snapshot_writer.h"
#include "tests/support/thorough.h"

namespace spillway {
namespace {

using test::Folder;
using test::packed;

constexpr int kRounds = 1500;  // of each seed
// It takes longer where the address sanitizer looks on: a minute where everything is gone through.
#if defined(__SANITIZE_ADDRESS__)
const std::chrono::seconds kLeastTime{test::is_thorough() ? 60 : 4};
#else
constexpr std::chrono::seconds kLeastTime{0};
#endif

uint64_t seeds() {
  return std::max(uint64_t{1}, test::from_environment("SPILLWAY_TEST_SEEDS", 1));
}

// Bits flipped, bytes overwritten with edges of ranges, pieces cut out, doubled or moved, numbers replaced.
class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  std::string operator()(std::string data) {
    for (size_t times = 1 + pick(4); times > 0 && !data.empty(); --times) once(data);
    return data;
  }

 private:
  size_t pick(size_t below) { return random_() % below; }

  void once(std::string& data) {
    const size_t at = pick(data.size());
    const size_t length = 1 + pick(std::min<size_t>(64, data.size() - at));
    switch (pick(7)) {
      case 0:
        data[at] = static_cast<char>(data[at] ^ (1 << pick(8)));
        break;
      case 1:
        data[at] = "\x00\xff\x7f\x80"[pick(4)];
        break;
      case 2:
        data.resize(at);
        break;
      case 3:
        data.erase(at, length);
        break;
      case 4:
        data.insert(at, data.substr(at, length));
        break;
      case 5:
        data.replace(at, length, data.substr(pick(data.size()), length));
        break;
      default:
        replace_number(data, at);
    }
  }

  // The digits at or after a place, in text; as bytes in a pickle.
  void replace_number(std::string& data, size_t at) {
    constexpr std::string_view kNumbers[] = {
        "0",  "-1",   "18446744073709551615", "9223372036854775808", "281474976710656", "1e300", "null",
        "[]", "\"x\""};
    const size_t first = data.find_first_of("0123456789", at);
    if (first == std::string::npos) return;
    const size_t end = std::min(data.find_first_not_of("0123456789", first), data.size());
    data.replace(first, end - first, kNumbers[pick(std::size(kNumbers))]);
  }

  std::mt19937 random_;
};

void expect_sound(const Result<std::vector<MemoryView>>& views) {
  if (!views.ok()) {
    EXPECT_FALSE(views.status().text().empty());
    EXPECT_EQ(views.status().text().find('\n'), std::string::npos);
    return;
  }
  for (const MemoryView& view : views.value()) {
    const RankReport report = rank_report(view);
    for (const Moment& moment : report.moments) {
      uint64_t by_site = 0;
      for (const SiteRow& row : moment.tables.sites) by_site += row.live_bytes;
      if (moment.name != "now") {
        ASSERT_EQ(by_site, moment.parts.live + moment.parts.pending);
        ASSERT_EQ(moment.parts.reserved(), parts_of(moment.segments).reserved());
      }
    }
  }
}

template <typename Check>
void fuzz(const std::vector<std::string>& corpus, Check check) {
  const auto end = std::chrono::steady_clock::now() + kLeastTime;
  for (unsigned seed = 1; seed <= seeds() || std::chrono::steady_clock::now() < end; ++seed) {
    SCOPED_TRACE(seed);
    Damage damage(seed);
    for (int round = 0; round < kRounds; ++round) {
      SCOPED_TRACE(round);
      check(damage(corpus[static_cast<size_t>(round) % corpus.size()]));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

std::vector<std::string> snapshots() {
  constexpr uint64_t kBase = 0x7f0000000000;
  constexpr int64_t kMiB = 1 << 20;
  std::vector<test::Event> events = {{"segment_alloc", kBase, 20 * kMiB, 0},
                                     {"alloc", kBase, 3 * kMiB, 0},
                                     {"alloc", kBase + 3 * kMiB, 4 * kMiB, 0},
                                     {"oom", 0, kMiB, 0}};
  test::add_free(events, kBase, 3 * kMiB);
  events.push_back({"segment_map", kBase + 64 * kMiB, 2 * kMiB, 0});
  events.push_back({"segment_unmap", kBase + 64 * kMiB, 2 * kMiB, 0});
  std::vector<test::Event> loose = {{"alloc", kBase, 512, 0}};
  test::add_free(loose, kBase, 512);
  return {test::snapshot({events}, {{kBase + 3 * kMiB, 4 * kMiB}}), test::snapshot({loose, events}),
          snapshot_pickle(sample_dump())};
}

TEST(ReadersFuzz, DamagedDumps) {
  ASSERT_TRUE(parse_views(dump_to_json(sample_dump())).ok());
  fuzz({dump_to_json(sample_dump())}, [](const std::string& data) { expect_sound(parse_views(data)); });
}

// Denoisers as strangers' files have them: an estimate, or one line.
TEST(ReadersFuzz, DamagedDenoisers) {
  const std::vector<std::string> corpus = {
      R"({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.42.1", "sample_size": 64,
          "block_out_channels": [32, 64], "layers_per_block": 1, "cross_attention_dim": [64, 64],
          "attention_head_dim": [2, 4], "transformer_layers_per_block": [1, 1], "norm_num_groups": 32,
          "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "encoder_hid_dim": 48,
          "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "time_cond_proj_dim": 16})",
      R"({"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.42.1", "num_layers": 1,
          "num_single_layers": 1, "num_attention_heads": 2, "attention_head_dim": 32, "in_channels": 64,
          "joint_attention_dim": 64, "pooled_projection_dim": 32, "guidance_embeds": true, "patch_size": 1})",
      R"({"_class_name": "SD3Transformer2DModel", "_diffusers_version": "0.42.1", "num_layers": 2,
          "num_attention_heads": 2, "attention_head_dim": 32, "caption_projection_dim": 64, "in_channels": 16,
          "joint_attention_dim": 64, "pooled_projection_dim": 32, "pos_embed_max_size": 96, "patch_size": 2,
          "dual_attention_layers": [0], "qk_norm": "rms_norm", "out_channels": null, "sample_size": 128})"};
  const auto answer = [](const std::string& text) -> Status {
    Result<estimator::RunKeys> keys = estimator::read_diffusers_json(text, "");
    if (!keys.ok()) return keys.take_status();
    Result<estimator::TrainingRun> run = estimator::read_run(keys.value());
    if (!run.ok()) return run.take_status();
    Result<estimator::Estimate> found = estimator::estimate(run.value());
    if (!found.ok()) return found.take_status();
    EXPECT_GT(found.value().peak().peak_bytes, 0);
    return {};
  };
  for (const std::string& text : corpus) ASSERT_TRUE(answer(text).ok()) << answer(text).text();
  fuzz(corpus, [&](const std::string& text) {
    const Status status = answer(text);
    if (!status.ok()) {
      EXPECT_FALSE(status.text().empty());
    }
  });
}

TEST(ReadersFuzz, DamagedSnapshots) {
  for (const std::string& snapshot : snapshots()) {
    const auto views = parse_views(snapshot);
    EXPECT_TRUE(views.ok()) << views.status().text();
  }
  fuzz(snapshots(), [](const std::string& data) { expect_sound(parse_views(data)); });
}

TEST(ReadersFuzz, DamagedTraces) {
  fuzz(snapshots(), [](const std::string& data) {
    const Result<Trace> trace = parse_snapshot(data);
    if (trace.ok()) {
      ASSERT_EQ(trace.value().peak_live_bytes, peak_live_bytes(trace.value()));
    } else {
      EXPECT_FALSE(trace.status().text().empty());
    }
  });
}

// Returns what a trace file with every kind of record holds once it is unpacked.
std::string trace_records(const Folder& folder) {
  Recording recording = parse_snapshot_recording(snapshots().front()).value();
  recording.tags = {{1, "weights"}, {2, "activations"}};
  recording.frames = {{"Model.forward", "model.py", 12}, {"main", "train.py", 70}};
  recording.stacks = {{1, {0, 1}}, {2, {1}}};
  recording.marks = {"step 1"};
  for (auto kind = static_cast<uint8_t>(TraceKind::kAllocate);
       kind <= static_cast<uint8_t>(TraceKind::kLimit); ++kind) {
    if (has_payload(static_cast<TraceKind>(kind))) continue;
    TraceRecord record{};
    record.kind = static_cast<TraceKind>(kind);
    record.ticks = 1'000'000 + kind;
    record.address = 0x200000;
    record.requested_bytes = record.block_bytes = 2 << 20;
    record.stack = 1;
    record.tag = 1;
    recording.events.push_back(record);
  }
  EXPECT_TRUE(write_trace_file(recording, folder.file("trace.zst"), "0.0").ok());
  return test::unpacked(folder.read("trace.zst"));
}

void expect_sound_trace(const std::string& data) {
  const Result<Recording> recording = parse_trace_file(data);
  if (!recording.ok()) {
    EXPECT_EQ(recording.status().text().find('\n'), std::string::npos);
    return;
  }
  (void)to_trace(recording.value());
  (void)to_snapshot(recording.value());
  (void)make_timeline(recording.value(), 0, PlotBy::kTag, 50);
}

TEST(ReadersFuzz, DamagedTraceFiles) {
  const Folder folder;
  const std::string records = trace_records(folder);
  const Result<Recording> sound = parse_trace_file(packed(records));
  ASSERT_TRUE(sound.ok()) << sound.status().text();
  fuzz({records}, [](const std::string& data) { expect_sound_trace(packed(data)); });
}

TEST(ReadersFuzz, DamagedFramesOfTraceFiles) {
  const Folder folder;
  fuzz({packed(trace_records(folder))}, [](const std::string& data) { expect_sound_trace(data); });
}

TEST(ReadersFuzz, DamagedLivePages) {
  const Folder folder;
  LivePage page;
  ASSERT_TRUE(page.open(folder.path(), {"train", "0.1.0", 3, 1'000'000'000}).ok());
  const auto state = std::make_unique<LiveState>();
  for (int64_t number = 1; number <= 2; ++number) {
    state->time_ns = state->steady_ns = 1'000'000'000 * number;
    state->devices = 1;
    page.write(*state);
  }
  const std::filesystem::path damaged = std::filesystem::path(page.path()).parent_path() / "damaged.page";
  std::filesystem::copy_file(page.path(), damaged);
  ASSERT_TRUE(read_live_page(damaged).ok());
  // Most of a page is room for more devices: what is damaged is the header, and each slot's first device.
  constexpr size_t kSlotBytes = offsetof(LiveFile::Slot, state) + LiveState::bytes_with(1);
  constexpr size_t kFirstBytes = offsetof(LiveFile, slots) + kSlotBytes;
  constexpr size_t kSecond = offsetof(LiveFile, slots) + sizeof(LiveFile::Slot);
  std::string all = read_file(damaged).value();
  const std::string in_use = all.substr(0, kFirstBytes) + all.substr(kSecond, kSlotBytes);
  int read_anyway = 0;
  fuzz({in_use}, [&](std::string data) {
    data.resize(in_use.size());  // of another size it would be refused unread
    all.replace(0, kFirstBytes, data, 0, kFirstBytes).replace(kSecond, kSlotBytes, data, kFirstBytes);
    std::ofstream(damaged, std::ios::binary) << all;  // keeps its permissions
    const Result<LiveReading> reading = read_live_page(damaged);
    if (reading.ok()) {
      ++read_anyway;
      ASSERT_LE(reading.value().devices.size(), LiveState::kMostDevices);
    } else {
      ASSERT_EQ(reading.status().text().find('\n'), std::string::npos);
    }
  });
  EXPECT_GT(read_anyway, 0);
  std::filesystem::resize_file(damaged, all.size() / 2);
  EXPECT_FALSE(read_live_page(damaged).ok());
}

}  // namespace
}  // namespace spillway
