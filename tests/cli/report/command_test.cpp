// `spillway report` and `spillway diff` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "stats/dump.h"
#include "tests/support/command_folder.h"
#include "tests/support/snapshot_writer.h"

namespace spillway::test {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;

void set(spw_pool_stat& stat, int64_t current, int64_t peak) {
  stat.all.current = current, stat.all.peak = peak;
}

// One live block of `live` bytes in 64 MiB, 1 GiB of which the device has.
Dump dump_of(int64_t rank, int64_t live) {
  Dump dump;
  dump.rank = rank;
  dump.process_id = 100 + rank;
  dump.time_seconds = 1'700'000'000;
  dump.reason = "exit";
  dump.config = {{"limit", "unlimited"}, {"spill_dir", "/home/ann/spill"}};
  DumpDevice device;
  device.name = "a device";
  device.total_bytes = 1024 * kMiB;
  device.free_bytes = 900 * kMiB;
  DeviceStats& stats = device.stats;
  const int64_t active = (live + 511) / 512 * 512;
  set(stats.requested_bytes, live, live);
  set(stats.allocated_bytes, active, active);
  set(stats.active_bytes, active, active);
  set(stats.reserved_bytes, 64 * kMiB, 64 * kMiB);
  set(stats.inactive_split_bytes, kMiB, kMiB);
  stats.cached_free_bytes = 64 * kMiB - active - kMiB;
  stats.largest_free_bytes = 4 * kMiB;
  stats.rungs.host_wait = {3, 5'000'000};
  SegmentRow segment;
  segment.address = 0x7f0000000000;
  segment.total_bytes = 64 * kMiB;
  segment.blocks = {{segment.address, static_cast<uint64_t>(active), static_cast<uint64_t>(live),
                     BlockKind::kActiveAllocated}};
  device.segments.push_back(segment);
  dump.devices.push_back(device);
  return dump;
}

std::vector<Event> some_events() {
  std::vector<Event> events = {{"segment_alloc", 0x7f0000000000, 20 * kMiB, 0},
                               {"alloc", 0x7f0000000000, 5 * kMiB + 1, 0}};
  add_free(events, 0x7f0000000000, 5 * kMiB + 1);
  events.push_back({"segment_free", 0x7f0000000000, 20 * kMiB, 0});
  return events;
}

class ReportCommand : public CommandFolder {
 protected:
  std::string write_dump(const std::string& name, int64_t rank, int64_t live) const {
    return write(name, dump_to_json(dump_of(rank, live)));
  }
  Json json_of(std::vector<std::string> arguments, int code = 0) const {
    arguments.push_back("--json");
    const CommandResult result = run_command(arguments);
    EXPECT_EQ(result.code, code) << result.err;
    return Json::parse(result.out);
  }
};

// Adds up what the text writes with + and =, and says how many sums there were. A line is a sign, a name
// without digits, and a number.
size_t check_sums(const std::string& text) {
  constexpr const char* kDigits = "0123456789";
  size_t sums = 0;
  uint64_t sum = 0;
  std::istringstream lines(text);
  for (std::string each; std::getline(lines, each);) {
    if (each.find_first_of(" +=") != 0 || each.find(' ', 1) != 1) continue;
    const size_t begin = each.find_first_of(kDigits);
    if (begin == std::string::npos) continue;
    each.erase(std::remove(each.begin() + static_cast<std::ptrdiff_t>(begin), each.end(), ','), each.end());
    const size_t end = each.find_first_not_of(kDigits, begin);
    if (end == std::string::npos || each[end] != ' ') continue;
    const uint64_t bytes = std::stoull(each.substr(begin));
    if (each[0] == ' ') sum = bytes;
    if (each[0] == '+') sum += bytes;
    if (each[0] != '=') continue;
    EXPECT_EQ(bytes, sum) << each;
    ++sums;
  }
  return sums;
}

TEST_F(ReportCommand, LinesSumToTheDevice) {
  const CommandResult result = run_command({"report", write_dump("a.json", 3, 40 * kMiB + 100)});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("rank 3, device 0 (a device)"));
  const std::string parts = result.out.substr(0, result.out.find("By size of request"));
  EXPECT_EQ(check_sums(parts), 2u) << parts;
  EXPECT_THAT(parts, HasSubstr("= device                                       1,073,741,824"));
  EXPECT_THAT(result.out, HasSubstr("host_wait          served          3 times,          5.000 ms"));
}

TEST_F(ReportCommand, AnnotationsAreListed) {
  Dump dump = dump_of(0, kMiB);
  EXPECT_THAT(run_command({"report", write("a.json", dump_to_json(dump))}).out,
              Not(HasSubstr("As annotated")));
  dump.devices[0].annotations = {
      {"parameters", 3 * kMiB}, {"preload_managed_bytes", 5}, {"preload_plain_bytes", 0}};
  const std::string file = write("b.json", dump_to_json(dump));
  const std::string text = run_command({"report", file}).out;
  EXPECT_THAT(text, HasSubstr("As annotated\n  parameters                                       3,145,728"));
  EXPECT_THAT(text, HasSubstr("  preload_managed_bytes                                    5"));
  EXPECT_THAT(text, Not(HasSubstr("preload_plain_bytes")));
  EXPECT_EQ(json_of({"report", file})["shown"]["annotations"]["preload_managed_bytes"], 5);
  for (const char* wrong : {"1e300", "-5", "18446744073709551615", "1.5", "\"many\""}) {
    std::string changed = dump_to_json(dump);
    const std::string was = "\"preload_managed_bytes\": 5";
    ASSERT_NE(changed.find(was), std::string::npos);
    changed.replace(changed.find(was), was.size(), std::string("\"preload_managed_bytes\": ") + wrong);
    const CommandResult result = run_command({"report", write("c.json", changed)});
    EXPECT_EQ(result.code, 1) << wrong;
    EXPECT_THAT(result.err, HasSubstr("device 0: preload_managed_bytes: '"));
    EXPECT_THAT(result.err, HasSubstr("is not allowed; allowed: "));
  }
}

TEST_F(ReportCommand, AnErrorSinceWhichNothingIsMovedIsSaid) {
  Dump dump = dump_of(0, kMiB);
  dump.devices[0].tiers.emplace();
  EXPECT_THAT(run_command({"report", write("a.json", dump_to_json(dump))}).out,
              Not(HasSubstr("Beside the device")));
  dump.devices[0].tiers->stats.lasting_error = 719;
  const std::string file = write("b.json", dump_to_json(dump));
  EXPECT_THAT(run_command({"report", file}).out,
              HasSubstr("nothing is moved any more since error 719 of the driver, which lasts"));
  EXPECT_EQ(json_of({"report", file})["shown"]["tiers"]["lasting_error"], 719);
}

TEST_F(ReportCommand, AnswersWhetherARequestFits) {
  const std::string file = write_dump("a.json", 0, 40 * kMiB);
  EXPECT_EQ(run_command({"report", file, "--fits", "800MiB"}).code, 0);
  const CommandResult no = run_command({"report", file, "--fits", "1GiB"});
  EXPECT_EQ(no.code, 2);
  EXPECT_THAT(no.out, HasSubstr(": no"));
  // A native snapshot does not say what the device has free: no answer is not no.
  EXPECT_EQ(run_command({"report", write("b.pickle", snapshot({some_events()})), "--fits", "1GiB"}).code, 0);
}

TEST_F(ReportCommand, OutliersImbalanceAndConfigurationOfRanks) {
  std::vector<std::string> arguments = {"report"};
  for (int64_t rank = 0; rank < 20; ++rank) {
    Dump dump = dump_of(rank, 10 * kMiB);
    if (rank == 7) set(dump.devices[0].stats.reserved_bytes, 64 * kMiB, 640 * kMiB);
    if (rank == 9) dump.config[0].second = "70GiB";
    arguments.push_back(write("rank" + std::to_string(rank) + ".json", dump_to_json(dump)));
  }
  const Json report = json_of(arguments);
  EXPECT_EQ(report["ranks"].size(), 20u);
  ASSERT_EQ(report["outliers"], Json::array({7}));
  EXPECT_EQ(report["total"]["live_bytes"], 200 * kMiB);
  ASSERT_EQ(report["differences"].size(), 1u);
  EXPECT_EQ(report["differences"][0]["option"], "limit");
  EXPECT_EQ(report["differences"][0]["ranks"], Json::array({"rank 9, device 0"}));
  EXPECT_EQ(report["spread"]["reserved_peak_bytes"]["most"], 640 * kMiB);
  EXPECT_EQ(report["shown"]["rank"], 7) << "the worst is reported in full";
  arguments.insert(arguments.end(), {"--rank", "3"});
  EXPECT_EQ(json_of(arguments)["shown"]["rank"], 3);
  arguments.back() = "33";
  expect_complaint(arguments, "--rank 33");
}

TEST_F(ReportCommand, SeveralDumpsOfOneProcessAreOneRankOverTime) {
  Dump early = dump_of(0, 10 * kMiB);
  Dump late = dump_of(0, 30 * kMiB);
  late.time_seconds += 60;
  const std::string second = write("second.json", dump_to_json(late));
  const std::string page = path("page.html");
  const Json report = json_of({"report", second, write("first.json", dump_to_json(early)), "--html", page});
  ASSERT_EQ(report["ranks"].size(), 1u);
  EXPECT_EQ(report["earlier_dumps"], 1);
  EXPECT_EQ(report["shown"]["source"], second);
  EXPECT_EQ(report["shown"]["moments"][0]["parts"]["live_bytes"], 30 * kMiB);
  EXPECT_THAT(read("page.html"), HasSubstr("\"by tier\""));
}

TEST_F(ReportCommand, EachFileThatCannotBeReadGetsOneLineAndTheRestIsReported) {
  const std::string good = dump_to_json(dump_of(0, kMiB));
  std::string newer = good;
  newer.replace(newer.find("\"schema_version\": 1"), 19, "\"schema_version\": 9");
  Dump broken = dump_of(0, kMiB);
  set(broken.devices[0].stats.active_bytes, 65 * kMiB, 65 * kMiB);
  Dump outside = dump_of(0, kMiB);
  outside.devices[0].segments[0].blocks[0].bytes = 65 * kMiB;
  Dump elsewhere = dump_of(0, kMiB);
  elsewhere.stacks = {{{0, "main", "/train.py", 7}}};
  elsewhere.devices[0].segments[0].blocks[0].stack = 2;
  std::string no_list = good;
  no_list.replace(no_list.find("\"stacks\": []"), 12, "\"stacks\": 7");
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"empty", ""},
      {"elsewhere", dump_to_json(elsewhere)},
      {"no_list", no_list},
      {"text", "hello"},
      {"truncated", good.substr(0, good.size() / 2)},
      {"newer", newer},
      {"other", "{\"a\": 1}"},
      {"contradicts", dump_to_json(broken)},
      {"outside", dump_to_json(outside)},
      {"huge_number", "{\"schema_version\": 1, \"devices\": [1e999]}"},
      {"cut.pickle", snapshot({some_events()}).substr(0, 100)},
      {"code.pickle",
       "\x80\x02"
       "cos\nsystem\n."}};
  std::vector<std::string> arguments = {"report", write("good.json", good)};
  for (const auto& [name, text] : bad) arguments.push_back(write(name, text));
  arguments.push_back(path("missing.json"));
  arguments.push_back(folder_.path());
  const CommandResult result = run_command(arguments);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.error_lines(), static_cast<long>(bad.size()) + 2) << result.err;
  for (const auto& [name, text] : bad) EXPECT_THAT(result.err, HasSubstr(path(name)));
  EXPECT_THAT(result.err, HasSubstr("schema_version: '9' is not allowed; allowed: 1"));
  EXPECT_THAT(result.err, HasSubstr("truncated?"));
  EXPECT_THAT(result.err, HasSubstr("stack: '1' is not allowed; allowed: an index into stacks"));
  EXPECT_THAT(result.err, HasSubstr("stacks: '7' is not allowed; allowed: a list of stacks"));
  EXPECT_THAT(result.out, HasSubstr("good.json"));
  expect_complaint({"report", path("text")}, path("text"));
  expect_complaint({"report", path("good.json"), "--html", "/no/such/folder/page.html"},
                   "/no/such/folder/page.html");
  expect_complaint({"report", path("good.json"), "--fits", "much"}, "'much' is not a size");
}

TEST_F(ReportCommand, SharedFilesDoNotTellFoldersOrUsersUnlessAskedTo) {
  const std::string file = write_dump("a.json", 0, kMiB);
  const std::string page = path("page.html");
  const std::string trace = path("trace.json");
  ASSERT_EQ(run_command({"report", file, "--html", page, "--perfetto", trace}).code, 0);
  EXPECT_THAT(read("page.html"), Not(HasSubstr(folder_.path())));
  EXPECT_THAT(read("page.html"), HasSubstr("a.json"));
  EXPECT_THAT(read("trace.json"), Not(HasSubstr(folder_.path())));
  ASSERT_EQ(run_command({"report", file, "--html", page, "--no-redact"}).code, 0);
  EXPECT_THAT(read("page.html"), HasSubstr(folder_.path()));
  EXPECT_THAT(run_command({"report", file}).out, HasSubstr(folder_.path()));
  EXPECT_THAT(run_command({"report", file, "--redact"}).out, Not(HasSubstr(folder_.path())));
  EXPECT_THAT(run_command({"report", file, "--redact", "--json"}).out, Not(HasSubstr(folder_.path())));
}

TEST_F(ReportCommand, APageCannotBeBrokenByNames) {
  Dump dump = dump_of(0, kMiB);
  dump.devices[0].name = "</script><script>alert(1)</script>";
  const std::string page = path("page.html");
  ASSERT_EQ(run_command({"report", write("a.json", dump_to_json(dump)), "--html", page}).code, 0);
  EXPECT_THAT(read("page.html"), Not(HasSubstr("alert(1)</script>")));
}

TEST_F(ReportCommand, ThePerfettoTraceHasCountersThatSumToWhatIsReserved) {
  const std::string trace = path("trace.json");
  ASSERT_EQ(run_command({"report", write("a.pickle", snapshot({some_events()})), "--perfetto", trace}).code,
            0);
  const Json events = Json::parse(read("trace.json"))["traceEvents"];
  int64_t most = 0;
  int begins = 0;
  int ends = 0;
  for (const Json& event : events) {
    EXPECT_TRUE(event.contains("ph") && event.contains("pid") && event.contains("name")) << event;
    if (event["ph"] != "M") {
      EXPECT_GE(event["ts"], 0) << event;
    }
    begins += event["ph"] == "b";
    ends += event["ph"] == "e";
    if (event["ph"] != "C" || event["name"] != "memory by state") continue;
    int64_t sum = 0;
    for (const Json& bytes : event["args"]) sum += bytes.get<int64_t>();
    most = std::max(most, sum);
  }
  EXPECT_EQ(most, 20 * kMiB);
  EXPECT_EQ(begins, 1);
  EXPECT_EQ(ends, 1);
}

TEST_F(ReportCommand, DiffHoldsAPeakToBounds) {
  const std::string before = write_dump("before.json", 0, 10 * kMiB);
  Dump bigger = dump_of(0, 20 * kMiB);
  set(bigger.devices[0].stats.reserved_bytes, 64 * kMiB, 80 * kMiB);
  const std::string after = write("after.json", dump_to_json(bigger));
  EXPECT_EQ(run_command({"diff", before, after}).code, 0);
  EXPECT_EQ(run_command({"diff", before, after, "--max-peak", "80MiB", "--max-ratio", "1.25"}).code, 0);
  const CommandResult above = run_command({"diff", before, after, "--max-peak", "79MiB"});
  EXPECT_EQ(above.code, 2);
  EXPECT_THAT(above.out, HasSubstr("reserved peak 80.000 MiB is above --max-peak 79.000 MiB"));
  EXPECT_EQ(run_command({"diff", before, after, "--max-ratio", "1.2"}).code, 2);
  EXPECT_EQ(run_command({"diff", before, after, "--max-ratio", "1.9", "--of", "live"}).code, 2);
  const Json changed = json_of({"diff", before, after});
  EXPECT_EQ(changed["parts"][0]["change_bytes"], 10 * kMiB);
  EXPECT_EQ(changed["parts"].back()["change_bytes"], 0) << "as much is reserved";
  EXPECT_EQ(changed["classes"][0]["after_bytes"], 20 * kMiB);
  expect_complaint({"diff", before, path("missing")}, path("missing"));
  expect_complaint({"diff", before, after, "--of", "nothing"}, "--of");
}

}  // namespace
}  // namespace spillway::test
