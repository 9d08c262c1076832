// spillway tiers and spillway bench-tiers on the simulated device, as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/command_folder.h"

namespace spillway::test {
namespace {

using nlohmann::json;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;  // in alphabetical order
}

class TiersCommandTest : public CommandFolder {
 protected:
  // On two small devices, with what is kept between runs in the test's folder.
  CommandResult run(std::vector<std::string> arguments, const std::string& driver = {},
                    const std::string& configuration = {}) const {
    CommandOptions options;
    options.environment = {{"SPILLWAY_SIM", "devices:2,capacity:64MiB"}, {"XDG_CACHE_HOME", path("cache")}};
    if (!driver.empty()) options.environment.emplace_back("SPILLWAY_LIBCUDA", driver);
    if (!configuration.empty()) options.environment.emplace_back("SPILLWAY_CONF", configuration);
    return run_command(std::move(arguments), options);
  }
  json answer(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--json", "--bytes", "4MiB", "--dir", folder_.path()});
    const CommandResult result = run(std::move(arguments));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, IsEmpty());
    return json::parse(result.out);
  }
  void expect_disk(const json& disk, bool is_spilled_there) const {
    EXPECT_THAT(keys(disk), ElementsAre("block_bytes", "bytes", "depth", "direct", "directory", "engine",
                                        "limit", "read_bytes_per_s", "read_cpu_s_per_gib", "spilled_there",
                                        "warning", "write_bytes_per_s", "write_cpu_s_per_gib"));
    EXPECT_EQ(disk["directory"], folder_.path());
    EXPECT_EQ(disk["spilled_there"], is_spilled_there);
    EXPECT_EQ(disk["limit"], "unlimited");
    EXPECT_EQ(disk["bytes"], 4 << 20);
    EXPECT_THAT(disk["engine"], AnyOf("io_uring", "threads"));
    for (const char* name : {"block_bytes", "depth", "read_bytes_per_s", "write_bytes_per_s"})
      EXPECT_GT(disk[name], 0) << name;
    for (const char* name : {"read_cpu_s_per_gib", "write_cpu_s_per_gib"}) EXPECT_GE(disk[name], 0) << name;
  }
};

TEST_F(TiersCommandTest, TiersSaysWhatThereIs) {
  const json found = answer({"tiers", "--device", "1"});
  EXPECT_THAT(keys(found), ElementsAre("device", "disk", "host", "schema_version"));
  EXPECT_THAT(keys(found["device"]),
              ElementsAre("available", "copies_reason", "copy_in_bytes_per_s", "copy_out_bytes_per_s",
                          "driver", "host_memory_mapped", "name", "numa_node", "total_bytes", "vmm"));
  EXPECT_EQ(found["device"]["copies_reason"], "");
  EXPECT_GT(found["device"]["copy_out_bytes_per_s"], 0);
  EXPECT_GT(found["device"]["copy_in_bytes_per_s"], 0);
  EXPECT_EQ(found["device"]["available"], true);
  EXPECT_EQ(found["device"]["name"], "Spillway simulated device");
  EXPECT_EQ(found["device"]["total_bytes"], 64 << 20);
  EXPECT_THAT(keys(found["host"]), ElementsAre("free_bytes", "pinned_limit", "total_bytes"));
  EXPECT_EQ(found["host"]["pinned_limit"], "50%");
  EXPECT_GT(found["host"]["free_bytes"], 0);
  EXPECT_GE(found["host"]["total_bytes"], found["host"]["free_bytes"]);
  expect_disk(found["disk"], false);

  const CommandResult text = run({"tiers", "--bytes", "4MiB", "--dir", folder_.path()});
  EXPECT_EQ(text.code, 0) << text.err;
  for (const std::string& part : {std::string("device  Spillway simulated device, 64.000 MiB: regions yes"),
                                  std::string("        copies to pinned memory "), std::string("host    "),
                                  "disk    " + folder_.path() + ": write ",
                                  std::string("nothing is spilled there: spill_dir is not set to it")}) {
    EXPECT_THAT(text.out, HasSubstr(part));
  }
}

TEST_F(TiersCommandTest, ALimitBeyondTheMachineIsSaidOnceAndNotUsed) {
  const std::string conf =
      "pinned_limit:1000TiB,spill_limit:1000TiB,spill_ram_backed:on,spill_dir:" + folder_.path();
  const CommandResult result = run({"tiers", "--json", "--bytes", "1MiB"}, {}, conf);
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out);
  EXPECT_EQ(found["host"]["pinned_limit"], "50%");
  EXPECT_EQ(found["disk"]["limit"], "unlimited");
  for (const std::string& text :
       {std::string("pinned_limit: 1024000GiB is more than the host's memory ("),
        "spill_limit: 1024000GiB is more than the file system of " + folder_.path()}) {
    const size_t at = result.err.find(text);
    EXPECT_NE(at, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find(text, at + 1), std::string::npos) << result.err;
  }
}

TEST_F(TiersCommandTest, TiersSaysWhyThereIsNoDevice) {
  const CommandResult result =
      run({"tiers", "--json", "--bytes", "1MiB", "--dir", folder_.path()}, "/no/driver");
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out);
  EXPECT_THAT(keys(found["device"]), ElementsAre("available", "reason"));
  EXPECT_EQ(found["device"]["available"], false);
  EXPECT_THAT(found["device"]["reason"], HasSubstr("/no/driver: the CUDA driver could not be opened"));
  EXPECT_GT(found["disk"]["write_bytes_per_s"], 0);
}

TEST_F(TiersCommandTest, TuneKeepsWhatItFinds) {
  const CommandResult result = run({"tiers", "--tune", "--bytes", "4MiB", "--dir", folder_.path()});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("best here: SPILLWAY_CONF=spill_block:"));
  EXPECT_TRUE(folder_.has("cache/spillway/disks.json"));
}

TEST_F(TiersCommandTest, ADiskIsTunedTheFirstTimeAlone) {
  const std::string file = "cache/spillway/disks.json";
  const std::vector<std::string> tiers{"tiers", "--bytes", "4MiB", "--dir", folder_.path()};
  ASSERT_EQ(run(tiers, {}, "spill_block:2MiB").code, 0);
  EXPECT_FALSE(folder_.has(file));  // the user has chosen
  ASSERT_EQ(run(tiers).code, 0);
  ASSERT_TRUE(folder_.has(file));
  // As no search would find.
  std::string text = folder_.read(file);
  const size_t at = text.find("\"depth\":");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, text.find(',', at) - at, "\"depth\": 7");
  folder_.write(file, text);
  EXPECT_EQ(answer({"tiers"})["disk"]["depth"], 7);
  EXPECT_EQ(folder_.read(file), text);
}

TEST_F(TiersCommandTest, BenchMeasuresEachDevice) {
  for (const char* device : {"0", "1"}) {
    const json found = answer({"bench-tiers", "--device", device});
    EXPECT_THAT(keys(found), ElementsAre("device", "disk", "schema_version"));
    EXPECT_THAT(keys(found["device"]),
                ElementsAre("bytes", "copy_in_bytes_per_s", "copy_out_bytes_per_s", "evict_disk_bytes_per_s",
                            "evict_first_bytes_per_s", "evict_host_bytes_per_s", "managed_in_bytes_per_s",
                            "managed_out_bytes_per_s", "managed_reason", "name", "restore_disk_bytes_per_s",
                            "restore_first_bytes_per_s", "restore_host_bytes_per_s"));
    EXPECT_EQ(found["device"]["managed_reason"], "");
    EXPECT_EQ(found["device"]["bytes"], 4 << 20);
    for (const auto& [name, value] : found["device"].items()) {
      if (value.is_string()) continue;
      EXPECT_GT(value, 0) << name;
    }
    expect_disk(found["disk"], true);
  }
  const CommandResult text = run({"bench-tiers", "--bytes", "4MiB", "--dir", folder_.path()});
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* row : {"plain copies, pinned memory", "region, host, first time (pins)", "region, host  ",
                          "region, disk", "managed memory, prefetched"}) {
    EXPECT_THAT(text.out, HasSubstr(row));
  }
}

TEST_F(TiersCommandTest, MistakesAreOneLineAndExitCodeOne) {
  for (const char* command : {"tiers", "bench-tiers"}) {
    for (const char* bytes : {"much", "0", "-1"}) {
      expect_complaint({command, std::string("--bytes=") + bytes, "--dir", folder_.path()}, "--bytes");
    }
    expect_complaint({command, "--bytes", "1MiB", "--dir", path("missing")}, "there is no such folder");
    expect_complaint({command, "--device", "first"}, "--device");
    expect_complaint({command, "--frobnicate"}, "--frobnicate");
  }
  expect_complaint({"tiers", "--bytes", "1000TiB", "--dir", folder_.path()}, "no room for");
  expect_complaint({"bench-tiers", "--tune"}, "--tune");
  for (const char* command : {"tiers", "bench-tiers"}) {
    for (const char* device : {"2", "-1"}) {
      const CommandResult result =
          run({command, "--bytes", "1MiB", "--dir", folder_.path(), "--device", device});
      EXPECT_EQ(result.code, 1);
      EXPECT_THAT(result.out, IsEmpty());
      EXPECT_EQ(result.err,
                std::string("spillway: device ") + device + ": there is no such device; allowed: 0 to 1\n");
    }
  }
  // A region that the device has no room for is the allocator's whole report.
  const CommandResult result = run({"bench-tiers", "--bytes", "1GiB", "--dir", folder_.path()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("out of memory"));
  EXPECT_THAT(result.out, IsEmpty());
}

}  // namespace
}  // namespace spillway::test
