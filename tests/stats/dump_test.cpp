// Dumps and out-of-memory reports say what the counters say, and files appear whole.
#include "stats/dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "stats/counters.h"
#include "stats/oom_report.h"
#include "stats/whole_file.h"
#include "tests/stats/sample_dump.h"

namespace spillway {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "spillway-dump-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for files");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  size_t count() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

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

TEST(WholeFile, ReplacesTheOldOneAndLeavesNothingElse) {
  const Folder folder;
  const std::string path = folder.file("dump.json");
  ASSERT_TRUE(write_whole_file(path, "old").ok());
  ASSERT_TRUE(write_whole_file(path, "new and longer").ok());
  EXPECT_EQ(text_of(path), "new and longer");
  EXPECT_EQ(folder.count(), 1U);
}

TEST(WholeFile, FailsInOneLineAndLeavesNothing) {
  const Folder folder;
  const Status status = write_whole_file(folder.file("missing/dump.json"), "text");
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_THAT(status.text(), HasSubstr("missing/dump.json"));
  EXPECT_EQ(status.text().find('\n'), std::string::npos);
  EXPECT_EQ(folder.count(), 0U);

  // A folder cannot be replaced by a file: the text is written, then cannot be put in its place.
  std::filesystem::create_directories(folder.file("taken/inside"));
  EXPECT_EQ(write_whole_file(folder.file("taken"), "text").code(), SPW_ERROR_IO);
  EXPECT_EQ(folder.count(), 1U);
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

// The exact bytes of the report's line that begins so.
int64_t figure(const std::string& report, const std::string& what) {
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find_first_not_of(' ');
    if (at == std::string::npos || line.compare(at, what.size(), what) != 0) continue;
    return std::strtoll(line.c_str() + at + what.size(), nullptr, 10);
  }
  ADD_FAILURE() << "no line '" << what << "' in:\n" << report;
  return 0;
}

TEST(OomReport, ItsLinesAddUpToTheCounters) {
  const DeviceStats stats = sample_dump().devices[0].stats;
  const std::string report = oom_report({uint64_t{3} << 30, 2, uint64_t{8} << 30}, stats);
  EXPECT_THAT(report,
              StartsWith("CUDA out of memory. Tried to allocate 3.00 GiB (3221225472 bytes) on device 2: "));
  EXPECT_EQ(figure(report, "holds (reserved)"), stats.reserved_bytes.all.current);
  EXPECT_EQ(figure(report, "holds (reserved)"), figure(report, "= in use (active)") +
                                                    figure(report, "+ unused parts of pages in use") +
                                                    figure(report, "+ pages wholly unused (cached)"));
  EXPECT_EQ(figure(report, "= in use (active)"),
            figure(report, "in use = asked for by the program") + figure(report, "+ rounding"));
  EXPECT_EQ(figure(report, "may hold at most"), int64_t{8} << 30);
  EXPECT_THAT(report, Not(HasSubstr("the device has")));
}

TEST(OomReport, SaysWhatOthersHold) {
  DeviceStats stats;
  stats.reserved_bytes.all.current = 1000;
  const std::string report = oom_report({2000, 0, 5000, 8000, 1500}, stats);
  EXPECT_EQ(figure(report, "the device has"), 8000);
  EXPECT_EQ(figure(report, "the device has"), figure(report, "= held by Spillway") +
                                                  figure(report, "+ held by others and by the driver") +
                                                  figure(report, "+ free"));
  EXPECT_EQ(figure(report, "+ held by others and by the driver"), 5500);
}

TEST(OomReport, ListsTheRungsThatWereTried) {
  DeviceStats stats;
  stats.rungs.view = {3, 1500};
  stats.rungs.evict = {0, 2'000'000};
  stats.rungs.out_of_memory = {1, 0};
  EXPECT_THAT(oom_report({500, 0, 1500}, stats),
              HasSubstr("the time they took: view 3 (0.002 ms), evict 0 (2.000 ms)"));
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
