// Damaged dumps, snapshots and archives: every reader answers with views that sum up, or with one line. Run
// under ASan and UBSan, a crash, a leak or an overflow fails. The damage is drawn from a seed: a failure
// names it, and SPILLWAY_TEST_SEEDS runs more of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cli/report/rank_report.h"
#include "cli/report/read.h"
#include "cli/trace/file.h"
#include "cli/trace/snapshot.h"
#include "stats/dump.h"
#include "stats/snapshot.h"
#include "tests/cli/snapshot_writer.h"
#include "tests/stats/sample_dump.h"

namespace spillway {
namespace {

constexpr int kRounds = 1500;  // of each seed

unsigned seeds() {
  const char* text = std::getenv("SPILLWAY_TEST_SEEDS");
  return text != nullptr ? static_cast<unsigned>(std::max(1, std::atoi(text))) : 1;
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
  for (unsigned seed = 1; seed <= seeds(); ++seed) {
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

}  // namespace
}  // namespace spillway
