// Dumps are written at exit, when memory runs out, on a signal, at intervals; and that a program never
// suffers from one that cannot be written.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/dump_path.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

using testing::ElementsAre;

nlohmann::json read_json(const Folder& folder, const std::string& name) {
  std::ifstream stream(folder.file(name));
  return nlohmann::json::parse(stream, nullptr, false);
}

void allocate(size_t bytes) {
  void* block = nullptr;
  SPW_CHECK(spw_alloc(bytes, 0, nullptr, &block) == SPW_OK);
}

// Another thread writes: it is waited for, for as long as a loaded machine may need.
void wait_for(const Folder& folder, const std::string& name) {
  for (int i = 0; i < 6000 && !folder.has(name); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  SPW_CHECK(folder.has(name));
}

TEST(Dumps, ComeWhenMemoryRunsOutOncePerMoment) {
  const Folder folder;
  in_child({{"SPILLWAY_STATS", folder.file("run.json")}, {"SPILLWAY_CONF", "limit:64MiB"}}, [&] {
    const auto driver = start_device();
    allocate(40 * kMiB);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(80 * kMiB, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY);
    SPW_CHECK(folder.has("run.oom.json"));
    folder.remove("run.oom.json");
    SPW_CHECK(spw_alloc(80 * kMiB, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY);
    SPW_CHECK(!folder.has("run.oom.json") && !folder.has("run.json"));
  });
  EXPECT_THAT(folder.names(), ElementsAre("run.json"));
  EXPECT_EQ(read_json(folder, "run.json")["reason"], "exit");
}

TEST(Dumps, OfMemoryThatRanOutSayWhatWasTried) {
  const Folder folder;
  in_child({{"SPILLWAY_STATS", folder.file("run.json")}, {"SPILLWAY_CONF", "limit:64MiB"}}, [&] {
    const auto driver = start_device();
    allocate(40 * kMiB);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(50 * kMiB, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY);
    SPW_CHECK(std::string(spw_last_error()).find("\n  next: ") != std::string::npos);
  });
  const auto dump = read_json(folder, "run.oom.json");
  EXPECT_EQ(dump["reason"], "oom");
  const auto& device = dump["devices"][0];
  const auto& climbs = device["climbs"];
  ASSERT_EQ(climbs.size(), 1U);
  EXPECT_EQ(climbs[0]["requested_bytes"], 50 * kMiB);
  EXPECT_EQ(climbs[0]["outcome"], "out_of_memory");
  const auto& reserved = device["stats"]["reserved_bytes"]["all"]["current"];
  EXPECT_EQ(
      device["free_bytes"].get<uint64_t>() + device["other_bytes"].get<uint64_t>() + reserved.get<uint64_t>(),
      device["total_bytes"].get<uint64_t>());
}

// The stacks of the blocks of a dump: of those that have one, with the names of their innermost frames'
// modules.
std::map<uint64_t, nlohmann::json> stacks_by_size(const nlohmann::json& dump) {
  std::map<uint64_t, nlohmann::json> out;
  for (const auto& segment : dump["devices"][0]["segments"]) {
    for (const auto& block : segment["blocks"]) {
      if (block.contains("stack"))
        out[block["requested_size"]] = dump["stacks"].at(block["stack"].get<size_t>());
    }
  }
  return out;
}

TEST(Dumps, SayWhereLargeBlocksWereAllocated) {
  const Folder folder;
  in_child({{"SPILLWAY_STATS", folder.file("run.json")}}, [&] {
    const auto driver = start_device();
    allocate(3 * kMiB);
    allocate(kMiB - 1);
    allocate(1000);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(5 * kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(spw_free(block) == SPW_OK);
    SPW_CHECK(spw_dump(folder.file("now.json").c_str(), "json") == SPW_OK);
  });
  const auto stacks = stacks_by_size(read_json(folder, "now.json"));
  ASSERT_EQ(stacks.size(), 1U);
  EXPECT_EQ(stacks.begin()->first, 3 * kMiB);
  const auto& frames = stacks.begin()->second;
  ASSERT_FALSE(frames.empty());
  for (const auto& frame : frames)
    EXPECT_NE(frame["filename"].get<std::string>().find('/'), std::string::npos);
}

TEST(Dumps, SayNothingOfStacksWhereNoneAreNoted) {
  const Folder folder;
  for (const auto& [path, options] : {std::pair("run.prom", ""), std::pair("run.json", "dump_stacks:off")}) {
    in_child({{"SPILLWAY_STATS", folder.file(path)}, {"SPILLWAY_CONF", options}}, [&] {
      const auto driver = start_device();
      allocate(3 * kMiB);
      SPW_CHECK(spw_dump(folder.file("now.json").c_str(), "json") == SPW_OK);
    });
    const auto dump = read_json(folder, "now.json");
    EXPECT_TRUE(dump["stacks"].empty());
    EXPECT_TRUE(stacks_by_size(dump).empty());
  }
}

TEST(Dumps, RedactedOnesKeepTheFilesNamesAlone) {
  const Folder folder;
  in_child({{"SPILLWAY_CONF", "dump_stacks:on,dump_redact:on"}}, [&] {
    const auto driver = start_device();
    allocate(3 * kMiB);
    SPW_CHECK(spw_dump(folder.file("now.json").c_str(), "json") == SPW_OK);
  });
  const auto stacks = stacks_by_size(read_json(folder, "now.json"));
  ASSERT_EQ(stacks.size(), 1U);
  for (const auto& frame : stacks.begin()->second)
    EXPECT_EQ(frame["filename"].get<std::string>().find('/'), std::string::npos);
}

TEST(Dumps, OfMemoryThatRanOutCanBeLeftOut) {
  const Folder folder;
  in_child({{"SPILLWAY_STATS", folder.file("run.json")}, {"SPILLWAY_CONF", "limit:64MiB,dump_on_oom:off"}},
           [&] {
             const auto driver = start_device();
             void* block = nullptr;
             SPW_CHECK(spw_alloc(80 * kMiB, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY);
           });
  EXPECT_THAT(folder.names(), ElementsAre("run.json"));
}

TEST(Dumps, ComeOnASignalWhileTheProgramRuns) {
  const Folder folder;
  in_child({{"SPILLWAY_STATS", folder.file("run-%p.json")}}, [&] {
    const auto driver = start_device();
    allocate(kMiB);
    const std::string name = "run-" + std::to_string(getpid()) + ".json";
    for (int i = 0; i < 3; ++i) {
      SPW_CHECK(raise(SIGUSR2) == 0);
      wait_for(folder, name);
      SPW_CHECK(read_json(folder, name)["reason"] == "signal");
      folder.remove(name);
    }
  });
  EXPECT_EQ(folder.names().size(), 1U);
}

volatile sig_atomic_t own_signals = 0;

TEST(Dumps, LeaveASignalToTheProgramThatHandlesIt) {
  const Folder folder;
  in_child({{"SPILLWAY_STATS", folder.file("run.json")}}, [&] {
    struct sigaction own {};
    own.sa_handler = [](int) { own_signals = own_signals + 1; };
    SPW_CHECK(sigaction(SIGUSR2, &own, nullptr) == 0);
    const auto driver = start_device();
    allocate(kMiB);
    SPW_CHECK(raise(SIGUSR2) == 0 && own_signals == 1);
    struct sigaction now {};
    SPW_CHECK(sigaction(SIGUSR2, nullptr, &now) == 0 && now.sa_handler == own.sa_handler);
  });
}

TEST(Dumps, TakeNoSignalWhereNoneIsAskedFor) {
  for (const Environment& environment :
       {Environment{},
        Environment{{"SPILLWAY_CONF", "dump_signal:off"}, {"SPILLWAY_STATS", "/nowhere/run.json"}}}) {
    in_child(environment, [] {
      const auto driver = start_device();
      allocate(kMiB);
      struct sigaction now {};
      SPW_CHECK(sigaction(SIGUSR2, nullptr, &now) == 0 && now.sa_handler == SIG_DFL);
      std::_Exit(0);
    });
  }
}

TEST(Dumps, ComeAtIntervals) {
  const Folder folder;
  const Environment environment{{"SPILLWAY_STATS", folder.file("run.prom")},
                                {"SPILLWAY_CONF", "dump_interval:100ms,dump_signal:off"}};
  in_child(environment, [&] {
    const auto driver = start_device();
    allocate(kMiB);
    for (int i = 0; i < 2; ++i) {
      wait_for(folder, "run.prom");
      folder.remove("run.prom");
    }
  });
  EXPECT_THAT(folder.names(), ElementsAre("run.prom"));
}

TEST(Dumps, ThatCannotBeWrittenDisturbNothing) {
  const Folder folder;
  const Environment environment{{"SPILLWAY_STATS", folder.file("missing/run.json")},
                                {"SPILLWAY_CONF", "limit:64MiB,dump_interval:100ms"}};
  // One line, however many dumps failed.
  EXPECT_EXIT(
      {
        for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
        const auto driver = start_device();
        void* block = nullptr;
        SPW_CHECK(spw_alloc(80 * kMiB, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        allocate(kMiB);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^spillway: SPILLWAY_STATS: [^\n]*missing[^\n]*cannot[^\n]*\n$");
}

// A full disk looks like this, and a limit of the process also sends a signal that would end it.
TEST(Dumps, ThatDoNotFitLeaveNothingBroken) {
  const Folder folder;
  const std::string path = folder.file("run.json");
  in_child(
      {{"SPILLWAY_STATS", path}},
      [&] {
        const auto driver = start_device();
        allocate(kMiB);
        SPW_CHECK(spw_dump(path.c_str(), nullptr) == SPW_OK);
        const rlimit small{4096, RLIM_INFINITY};
        SPW_CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
        SPW_CHECK(spw_dump(path.c_str(), nullptr) == SPW_ERROR_IO);
        sigset_t pending;
        SPW_CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0);
      },
      "run.json: cannot write it: File too large");
  EXPECT_THAT(folder.names(), ElementsAre("run.json"));
  EXPECT_EQ(read_json(folder, "run.json")["reason"], "call");
}

TEST(Dumps, AreNotAForkedChilds) {
  const Folder folder;
  in_child({{"SPILLWAY_STATS", folder.file("run-%p.json")}}, [] {
    const auto driver = start_device();
    allocate(kMiB);
    const pid_t child = fork();
    if (child == 0) std::exit(7);
    int status = 0;
    SPW_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  });
  EXPECT_EQ(folder.names().size(), 1U);
}

TEST(Dumps, MistakesInThePathCostOneLine) {
  for (const auto& [path, line] :
       {std::pair{"/tmp/run-%q.json",
                  "SPILLWAY_STATS: '%q' in '/tmp/run-%q.json' means nothing; allowed: %p"},
        std::pair{"/tmp/run%", "SPILLWAY_STATS: '%' in '/tmp/run%' means nothing"},
        std::pair{"/tmp/", "SPILLWAY_STATS: '/tmp/' names a folder"}}) {
    in_child(
        {{"SPILLWAY_STATS", path}},
        [] {
          const auto driver = start_device();
          allocate(kMiB);
        },
        line);
    in_child({{"SPILLWAY_STATS", path}, {"SPILLWAY_CONF", "strict:on"}}, [] {
      const auto driver = start_device();
      void* block = nullptr;
      SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_ERROR_CONFIG);
    });
  }
}

TEST(Dumps, MistakesInTheOptionsSayWhatIsAllowed) {
  for (const auto& [option, allowed] : {std::pair{"dump_interval:1ms", "a time from 100ms to 24h"},
                                        std::pair{"dump_interval:5", "a time from 100ms to 24h"},
                                        std::pair{"dump_interval:-3s", "a time from 100ms to 24h"},
                                        std::pair{"dump_signal:SIGKILL", "SIGUSR1, SIGUSR2 or off"}}) {
    in_child({}, [&option = option, &allowed = allowed] {
      SPW_CHECK(spw_conf_set(option) == SPW_ERROR_CONFIG);
      SPW_CHECK(std::string(spw_last_error()).find(allowed) != std::string::npos);
      SPW_CHECK(spw_conf_set("dump_interval:1.5min") == SPW_OK);
      char value[8];
      SPW_CHECK(spw_conf_get("dump_interval", value, sizeof value, nullptr) == SPW_OK &&
                std::string(value) == "90s");
    });
  }
}

TEST(Dumps, NameNobodyWhereTheyAreRedacted) {
  const Folder folder;
  const Environment environment{{"SPILLWAY_STATS", folder.file("run.json")},
                                {"USER", "ann"},
                                {"SPILLWAY_CONF", "dump_redact:on,spill_dir:/data/ann/spill"}};
  in_child(environment, [] {
    const auto driver = start_device();
    allocate(kMiB);
  });
  EXPECT_EQ(read_json(folder, "run.json")["config"]["spill_dir"], "spill");
}

TEST(DumpPath, HasItsPartsFilledIn) {
  setenv("RANK", "3", 1);
  const std::string path = expand_dump_path("a%%p-%p-%r-%d-%t.json", 5, 17);
  EXPECT_EQ(path, "a%p-" + std::to_string(getpid()) + "-3-5-17.json");
  unsetenv("RANK");
  EXPECT_TRUE(is_per_device("x%d") && !is_per_device("x%%d"));
}

TEST(DumpPath, EndsWithItsFormat) {
  EXPECT_EQ(format_of("a.prom"), DumpFormat::kPrometheus);
  EXPECT_EQ(format_of("a.pickle"), DumpFormat::kSnapshot);
  EXPECT_EQ(format_of("a.prom/b"), DumpFormat::kJson);
  EXPECT_EQ(with_word("/a.b/run.json", "oom"), "/a.b/run.oom.json");
  EXPECT_EQ(with_word("/a.b/run", "oom"), "/a.b/run.oom");
  EXPECT_EQ(with_word("/a.b/.run", "oom"), "/a.b/.run.oom");
}

}  // namespace
}  // namespace spillway::test
