// Dumps and out-of-memory reports say what the counters say, and files appear whole.
#include "stats/dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "stats/counters.h"
#include "stats/dump_prometheus.h"
#include "stats/oom_report.h"
#include "tests/support/sample_dump.h"

namespace spillway {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Dump, BeginsWithItsSchemaVersion) {
  EXPECT_THAT(dump_to_json(sample_dump()), StartsWith("{\n \"schema_version\": 1,"));
}

TEST(Dump, HasEveryCounterUnderItsName) {
  const Dump dump = sample_dump();
  const auto json = nlohmann::json::parse(dump_to_json(dump));
  const auto& stats = json["devices"][0]["stats"];
  EXPECT_EQ(stats["reserved_bytes"]["all"]["current"], 4 << 20);
  EXPECT_EQ(stats["requested_bytes"]["large_pool"]["peak"], 1000);
  EXPECT_EQ(stats["num_ooms"], 1);
  EXPECT_EQ(stats["rungs"]["new_pages"]["hits"], 1);
  EXPECT_EQ(stats["driver_calls"]["create"], 2);
  EXPECT_EQ(stats["max_split_size"], -1);
  EXPECT_EQ(json["config"]["limit"], "unlimited");
  EXPECT_EQ(json["devices"][0]["segments"][0]["blocks"][0]["state"], "active_allocated");
  EXPECT_EQ(json["devices"][0]["annotations"]["parameter_bytes"], 1000);
}

TEST(Dump, SurvivesNamesThatAreNotUtf8) {
  Dump dump = sample_dump();
  dump.devices[0].name = "GPU \xff\xfe";
  EXPECT_TRUE(nlohmann::json::accept(dump_to_json(dump)));
}

TEST(Dump, SaysWhatIsNotSpillways) {
  DumpDevice device = sample_dump().devices[0];
  EXPECT_EQ(device.other_bytes(), device.total_bytes - *device.free_bytes - (4U << 20));
  // Taken a moment later, more was free.
  device.free_bytes = device.total_bytes;
  EXPECT_EQ(device.other_bytes(), 0U);
  device.free_bytes.reset();
  EXPECT_FALSE(device.other_bytes().has_value());
}

TEST(Dump, FragmentationIsTheShareBesideTheLargestRange) {
  DumpDevice device;
  EXPECT_EQ(device.fragmentation(), 0);
  device.stats.cached_free_bytes = 600;
  device.stats.inactive_split_bytes.all.current = 400;
  device.stats.largest_free_bytes = 250;
  EXPECT_DOUBLE_EQ(device.fragmentation(), 0.75);
  device.stats.largest_free_bytes = 1000;
  EXPECT_EQ(device.fragmentation(), 0);
}

TEST(Prometheus, AnnouncesAFamilyOnceForAllProcesses) {
  std::vector<Dump> dumps{sample_dump(), sample_dump()};
  dumps[1].process_id = 2;
  dumps[1].devices[0].uuid = "GPU \"1\"\n\\";
  dumps[1].devices[0].tiers.reset();
  const std::string text = prometheus_text(dumps);
  const std::string type = "# TYPE spillway_reserved_bytes gauge\n";
  ASSERT_NE(text.find(type), std::string::npos);
  EXPECT_EQ(text.find(type), text.rfind(type));
  EXPECT_THAT(text, HasSubstr("spillway_allocated_bytes{pid=\"1\",rank=\"0\",device=\"0\","
                              "pool=\"large\"} 1024\n"));
  EXPECT_THAT(text, HasSubstr("spillway_ooms_total{pid=\"2\",rank=\"0\",device=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("uuid=\"GPU \\\"1\\\"\\n\\\\\""));
  EXPECT_THAT(text, HasSubstr("rung=\"new_pages\"} 1.5e-06\n"));
  EXPECT_THAT(text, HasSubstr("spillway_pinned_reserved_bytes{pid=\"2\",rank=\"0\"} 0\n"));
  EXPECT_EQ(prometheus_text({}), "");
}

TEST(Prometheus, HasEveryCounter) {
  // Each with a value of its own, so that none can stand for another.
  Dump dump;
  dump.devices.emplace_back();
  DeviceStats& stats = dump.devices[0].stats;
  int64_t next = 1'000'001;
  std::vector<int64_t> values;
  const auto number = [&](int64_t& value) { values.push_back(value = next++); };
#define SPW_STATS_MEMBER(name)           \
  number(stats.name.small_pool.current); \
  number(stats.name.large_pool.current); \
  number(stats.name.all.peak);
  SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
#define SPW_STATS_MEMBER(name) number(stats.name);
  SPW_STATS_VALUES(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  const std::string text = prometheus_text({dump});
  for (const int64_t value : values) {
    if (value == stats.max_split_size) continue;  // it is no measurement
    EXPECT_THAT(text, HasSubstr("} " + std::to_string(value) + "\n"));
  }
}

TEST(Rank, ComesFromTheLauncher) {
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}) unsetenv(name);
  EXPECT_EQ(process_rank(), 0);
  setenv("SLURM_PROCID", "7", 1);
  EXPECT_EQ(process_rank(), 7);
  setenv("RANK", "12", 1);
  EXPECT_EQ(process_rank(), 12);
  setenv("RANK", "-3", 1);
  EXPECT_EQ(process_rank(), 7);
  setenv("RANK", "4x", 1);
  EXPECT_EQ(process_rank(), 7);
  unsetenv("RANK");
  unsetenv("SLURM_PROCID");
}

// The exact bytes behind the words `what` in the report's line that begins with `line`.
int64_t figure(const std::string& report, const std::string& line, const std::string& what) {
  const size_t begin = report.find("\n  " + line);
  const size_t end = std::min(report.find('\n', begin + 1), report.size());
  const size_t at = begin == std::string::npos ? end : report.find(what + " ", begin);
  if (at >= end) {
    ADD_FAILURE() << "no '" << what << "' in the line '" << line << "' of:\n" << report;
    return 0;
  }
  return std::strtoll(report.c_str() + report.find('(', at) + 1, nullptr, 10);
}

TEST(OomReport, ItsLinesAddUpToTheCounters) {
  const DeviceStats stats = sample_dump().devices[0].stats;
  const std::string report = oom_report({uint64_t{3} << 30, 2, uint64_t{8} << 30}, stats);
  EXPECT_THAT(report,
              StartsWith("CUDA out of memory. Tried to allocate 3.00 GiB (3221225472 bytes) on device 2: "));
  EXPECT_EQ(figure(report, "reserved", "reserved"), stats.reserved_bytes.all.current);
  EXPECT_EQ(figure(report, "reserved", "reserved"), figure(report, "reserved", "= active") +
                                                        figure(report, "reserved", "+ inactive split") +
                                                        figure(report, "reserved", "+ cached"));
  EXPECT_EQ(figure(report, "active", "active"),
            figure(report, "active", "= requested") + figure(report, "active", "+ rounding"));
  EXPECT_EQ(figure(report, "reserved", "may reach"), int64_t{8} << 30);
  EXPECT_THAT(report, Not(HasSubstr("\n  device")));
  EXPECT_LE(std::count(report.begin(), report.end(), '\n'), 10);
}

TEST(OomReport, SaysWhatOthersHold) {
  DeviceStats stats;
  stats.reserved_bytes.all.current = 1000;
  const std::string report = oom_report({2000, 0, 5000, 8000, 1500}, stats);
  EXPECT_EQ(figure(report, "device", "device"), 8000);
  EXPECT_EQ(figure(report, "device", "other processes, contexts and libraries"), 5500);
  EXPECT_EQ(figure(report, "device", "= Spillway") + 5500 + figure(report, "device", "+ free"), 8000);
  EXPECT_THAT(report, HasSubstr("next: others hold 5.37 KiB of it"));
}

TEST(OomReport, ListsTheRungsThatWereTried) {
  DeviceStats stats;
  stats.rungs.view = {3, 1500};
  stats.rungs.evict = {0, 2'000'000};
  stats.rungs.out_of_memory = {1, 0};
  OomRequest request{500, 0, 1500};
  request.climb.note(Rung::kHostWait, false, 3'000'000);
  request.climb.note(Rung::kOutOfMemory, true, 0);
  const std::string report = oom_report(request, stats);
  EXPECT_THAT(report, HasSubstr("helped so far: view 3 (0.002 ms), evict 0 (2.000 ms); 0 host waits"));
  EXPECT_THAT(report, HasSubstr("tried for this request: host_wait 3.000 ms\n"));
}

TEST(OomReport, NamesTheLargestPools) {
  OomRequest request{500, 0, 1500};
  for (uint64_t i = 1; i <= 5; ++i) request.pools.push_back({i, 0, {static_cast<int64_t>(i * 100), 0, 0, 0}});
  request.pools.push_back({9, 0, {}});
  EXPECT_THAT(oom_report(request, DeviceStats()),
              HasSubstr("private pools: 5: (5, 0) 500 B (500), (4, 0) 400 B (400), (3, 0) 300 B (300)\n"));
}

TEST(OomReport, NamesTheLargestRegions) {
  DumpTiers tiers;
  tiers.stats.region_host_bytes = 7;
  for (const auto& [tag, bytes] : {std::pair{"cache", 300}, {"away", 0}, {"weights", 2048}}) {
    tiers.regions.push_back({tag, {}});
    tiers.regions.back().stats.device_bytes = static_cast<uint64_t>(bytes);
  }
  EXPECT_THAT(oom_tiers(tiers),
              AllOf(StartsWith("\n  regions on the device: 2: weights 2.00 KiB (2048), cache 300 B (300)\n"),
                    HasSubstr("outside the device: regions 7 bytes in host memory")));
  EXPECT_THAT(oom_tiers({}), StartsWith("\n  outside the device"));
}

TEST(SlowPathLog, KeepsTheLatestThatWereNotServedAtHome) {
  SlowPathLog log;
  for (uint64_t i = 0; i < 2 * SlowPathLog::kKept + 3; ++i) {
    SlowPath climb;
    climb.requested_bytes = i;
    climb.note(Rung::kNewPages, false, 10);
    // Every second one is served without help of others.
    climb.note(i % 2 == 0 ? Rung::kSteal : Rung::kView, true, 5);
    log.add(climb);
  }
  const std::vector<SlowPath> kept = log.list();
  ASSERT_EQ(kept.size(), SlowPathLog::kKept);
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(kept[i].requested_bytes, 4 + 2 * i);
    EXPECT_EQ(kept[i].outcome, Rung::kSteal);
    EXPECT_GT(kept[i].time_us, 0);
  }
}

TEST(OomReport, NamesTheReason) {
  DeviceStats stats;
  stats.reserved_bytes.all.current = 1000;
  stats.active_bytes.all.current = 1000;
  EXPECT_THAT(oom_report({2000, 0, 1500}, stats), HasSubstr("larger than all the memory"));
  EXPECT_THAT(oom_report({500, 0, 1500}, stats), HasSubstr("the device is full"));
  EXPECT_THAT(oom_report({500, 0, 1500, 8000, 499}, stats), HasSubstr("the device is full"));
  EXPECT_THAT(oom_report({500, 0, 1500, 8000, 500}, stats), HasSubstr("the limit, or the reserve"));
  stats.pending_bytes = 600;
  EXPECT_THAT(oom_report({500, 0, 1500}, stats), HasSubstr("still used by streams"));
  stats.pending_bytes = 0;
  stats.cached_free_bytes = 600;
  EXPECT_THAT(oom_report({500, 0, 1500}, stats), HasSubstr("in pieces"));
}

}  // namespace
}  // namespace spillway
