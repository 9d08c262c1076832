// The exposition text says what the counters say, by Prometheus' rules. (cli/exporter is tested with
// Prometheus itself.)
#include "stats/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

#include "tests/support/sample_dump.h"

namespace spillway {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

std::string sample_text() {
  const DeviceStats stats = sample_dump().devices.front().stats;
  PrometheusText text;
  add_device_stats(text, {{{{"pid", "7"}, {"device", "0"}}, stats}, {{{"pid", "8"}, {"device", "0"}}, {}}});
  return text.text();
}

TEST(Prometheus, TellsCountersInBaseUnits) {
  const std::string text = sample_text();
  EXPECT_THAT(text, HasSubstr("spillway_allocated_bytes{pid=\"7\",device=\"0\",pool=\"large\"} 1024\n"));
  EXPECT_THAT(text, HasSubstr("spillway_reserved_peak_bytes{pid=\"7\",device=\"0\"} 4194304\n"));
  EXPECT_THAT(text, HasSubstr("spillway_allocated_added_bytes_total{pid=\"7\",device=\"0\"} 1024\n"));
  EXPECT_THAT(text,
              HasSubstr("spillway_rung_seconds_total{pid=\"7\",device=\"0\",rung=\"new_pages\"} 1.5e-06\n"));
  EXPECT_THAT(text, HasSubstr("spillway_driver_calls_total{pid=\"7\",device=\"0\",call=\"create\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("spillway_ooms_total{pid=\"7\",device=\"0\"} 1\n"));
}

TEST(Prometheus, NoLimitIsInfinity) {
  EXPECT_THAT(sample_text(), HasSubstr("spillway_limit_bytes{pid=\"8\",device=\"0\"} +Inf\n"));
}

// A family that appears twice, or whose samples are scattered, makes Prometheus refuse the whole page.
TEST(Prometheus, KeepsEachFamilyTogether) {
  std::istringstream lines(sample_text());
  std::set<std::string> families;
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
    } else if (line.starts_with("# TYPE ")) {
      EXPECT_THAT(line, HasSubstr(" " + family + " "));
      EXPECT_EQ(line.ends_with(" counter"), family.ends_with("_total")) << line;
    } else {
      EXPECT_EQ(line.substr(0, line.find('{')), family);
    }
  }
  EXPECT_GT(families.size(), 50U);
}

TEST(Prometheus, EscapesLabels) {
  PrometheusText text;
  text.family("spillway_up", PrometheusText::Type::kGauge, "Whether");
  text.sample({{"name", "a \"b\" \\ c\nd\xff"}}, int64_t{1});
  EXPECT_THAT(text.text(), EndsWith("spillway_up{name=\"a \\\"b\\\" \\\\ c\\nd?\"} 1\n"));
}

TEST(Prometheus, NothingButNamesWithoutDevices) {
  PrometheusText text;
  add_device_stats(text, {});
  EXPECT_THAT(text.text(), Not(HasSubstr("{")));
}

}  // namespace
}  // namespace spillway
