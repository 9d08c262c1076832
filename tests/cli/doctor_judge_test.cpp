// Reports of the driver's probe say something about the driver: each finding that is wrong gives up what
// rests on it, and what was not found out is never taken for well.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/doctor/probe.h"

namespace spillway::test {
namespace {

using Json = nlohmann::ordered_json;

Json good() {
  return Json::parse(R"({
    "simulated": false,
    "aliasing": {"wrong_words_next_launch_same_stream": 0, "wrong_words_across_streams_by_event": 0,
                 "wrong_words_shared_edge": 0},
    "aliasing_resident": {"checks_can_fail": true, "wrong_words_controls": 0, "wrong_words_dependent": 0,
                          "wrong_words_beside": 0, "cases": {"edge_512": {"wrong_words": 0}}},
    "captured_streams": {"memory_is_made_and_mapped": {"capture_survives": true}},
    "remap_to_host": {"wrong_words_after_swap": 0}})");
}

std::string judged(const Json& report) {
  std::vector<Check> checks;
  return judge(report.dump(), 0, checks).value_or("not known");
}

std::string with(const char* field, const Json& value) {
  Json report = good();
  report[Json::json_pointer(field)] = value;
  return judged(report);
}

// GPUs answered so (docs/hardware-proof.md).
TEST(DoctorJudge, DriversThatWereProbedDeserveTheOrdinaryProfile) {
  int runs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SPILLWAY_HARDWARE_RUNS)) {
    const Json run = Json::parse(std::ifstream(entry.path()));
    EXPECT_EQ(judged(run.at("stages").at("probe").at("found")), "ordinary") << entry.path();
    ++runs;
  }
  EXPECT_GT(runs, 0);
}

TEST(DoctorJudge, ADriverThatDoesAllDeservesTheOrdinaryProfile) {
  std::vector<Check> checks;
  EXPECT_EQ(judge(good().dump(), 3, checks), "ordinary");
  ASSERT_FALSE(checks.empty());
  for (const Check& check : checks) {
    EXPECT_EQ(check.answer, CheckAnswer::kYes) << check.name << ": " << check.detail;
    EXPECT_EQ(check.device, 3);
  }
}

TEST(DoctorJudge, EachWrongWordGivesUpWhatRestsOnIt) {
  EXPECT_EQ(with("/aliasing/wrong_words_next_launch_same_stream", 1), "plain");
  EXPECT_EQ(with("/aliasing/wrong_words_across_streams_by_event", 1), "plain");
  EXPECT_EQ(with("/remap_to_host/wrong_words_after_swap", 1), "plain");
  EXPECT_EQ(with("/aliasing/wrong_words_shared_edge", 1), "careful");
  EXPECT_EQ(with("/aliasing_resident/wrong_words_dependent", 1), "careful");
  EXPECT_EQ(with("/aliasing_resident/wrong_words_beside", 1), "careful");
  EXPECT_EQ(with("/aliasing_resident/cases/edge_512/wrong_words", 1), "careful");
  EXPECT_EQ(with("/captured_streams/memory_is_made_and_mapped/capture_survives", false), "ordinary");
}

TEST(DoctorJudge, ACrashIsAWrongAnswer) {
  EXPECT_EQ(with("/aliasing", {{"crashed", "Segmentation fault"}}), "plain");
  EXPECT_EQ(with("/aliasing_resident", {{"crashed", "Aborted"}}), "careful");
}

TEST(DoctorJudge, WhatWasNotFoundOutIsNotWell) {
  for (const char* section : {"/aliasing", "/aliasing_resident"}) {
    EXPECT_EQ(with(section, {{"ended_after_seconds", 8}}), "not known");
    EXPECT_EQ(with(section, {{"error", "out of memory"}}), "not known");
    EXPECT_EQ(with(section, Json::object()), "not known");
    EXPECT_EQ(with(section, 7), "not known");
  }
  EXPECT_EQ(with("/aliasing_resident/says_nothing", {"cases", "wrong_words_beside"}), "not known");
  EXPECT_EQ(with("/aliasing_resident/checks_can_fail", false), "not known");
  EXPECT_EQ(with("/aliasing_resident/wrong_words_controls", 1), "not known");
  EXPECT_EQ(with("/simulated", true), "not known");
  std::vector<Check> checks;
  EXPECT_EQ(judge("no report", 0, checks), std::nullopt);
  EXPECT_EQ(judge("[]", 0, checks), std::nullopt);
  EXPECT_EQ(judge("{\"simulated\": false}", 0, checks), std::nullopt);
}

TEST(DoctorJudge, WhatADeviceMayLackIsNotMissed) {
  EXPECT_EQ(with("/remap_to_host", {{"error", "no memory of the host"}}), "ordinary");
  Json report = good();
  report["aliasing_resident"].erase("wrong_words_dependent");
  EXPECT_EQ(judged(report), "ordinary");
}

TEST(DoctorJudge, WhatIsWrongCountsWhateverElseIsMissing) {
  Json report = good();
  report["aliasing"]["wrong_words_shared_edge"] = 9;
  report["aliasing_resident"] = {{"ended_after_seconds", 8}};
  EXPECT_EQ(judged(report), "careful");
}

}  // namespace
}  // namespace spillway::test
