// Dumps of what is there: files that hold it whole or are not there, when asked for and at exit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

using testing::ElementsAre;

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

TEST(DumpFile, SumsToTheCounters) {
  const Folder folder;
  const std::string path = folder.file("dump.json");
  in_child({}, [&] {
    const auto driver = start_device();
    std::vector<void*> blocks(20);
    for (size_t i = 0; i < blocks.size(); ++i)
      SPW_CHECK(spw_alloc(1 + i * 300000, 0, nullptr, &blocks[i]) == SPW_OK);
    for (size_t i = 0; i < blocks.size(); i += 3) SPW_CHECK(spw_free(blocks[i]) == SPW_OK);
    SPW_CHECK(spw_dump(path.c_str(), "json") == SPW_OK);
    SPW_CHECK(spw_dump(path.c_str(), "xml") == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_dump((path + "%q").c_str(), nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_dump((path + "/").c_str(), nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_dump((path + "/inside").c_str(), nullptr) == SPW_ERROR_IO);
  });
  EXPECT_THAT(folder.names(), ElementsAre("dump.json"));
  const auto dump = read_json(path);
  ASSERT_EQ(dump["devices"].size(), 1U);
  const auto& device = dump["devices"][0];
  int64_t total = 0;
  int64_t active = 0;
  int64_t requested = 0;
  for (const auto& segment : device["segments"]) {
    int64_t blocks = 0;
    for (const auto& block : segment["blocks"]) blocks += block["size"].get<int64_t>();
    EXPECT_EQ(blocks, segment["total_size"].get<int64_t>());
    total += segment["total_size"].get<int64_t>();
    active += segment["active_size"].get<int64_t>();
    requested += segment["requested_size"].get<int64_t>();
  }
  const auto& stats = device["stats"];
  EXPECT_EQ(total, stats["reserved_bytes"]["all"]["current"].get<int64_t>());
  EXPECT_EQ(active, stats["active_bytes"]["all"]["current"].get<int64_t>());
  EXPECT_EQ(requested, stats["requested_bytes"]["all"]["current"].get<int64_t>());
  EXPECT_EQ(dump["config"]["backend"], "vmm");
}

TEST(DumpFile, ComesAtExitWhereTheEnvironmentAsksForIt) {
  const Folder folder;
  in_child({{"SPILLWAY_STATS", folder.file("r%r-d%d.%%.json")}, {"RANK", "3"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
  });
  ASSERT_THAT(folder.names(), ElementsAre("r3-d0.%.json"));
  const auto dump = read_json(folder.file("r3-d0.%.json"));
  EXPECT_EQ(dump["rank"], 3);
  EXPECT_EQ(dump["devices"][0]["stats"]["allocation"]["all"]["current"], 1);
}

TEST(DumpFile, ThatCannotBeWrittenAtExitCostsOneLine) {
  in_child(
      {{"SPILLWAY_STATS", "/nowhere/at/all.json"}},
      [] {
        const auto driver = start_device();
        void* block = nullptr;
        SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
      },
      "spillway: SPILLWAY_STATS: /nowhere/at/all.json: cannot");
}

}  // namespace
}  // namespace spillway::test
