// The configuration of a process: what is read from where, and that a mistake never takes a program down
// unless it asked for that.
#include "abi/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "abi/machine_limits.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string value_of(const char* name) {
  char buffer[1024];
  SPW_CHECK(spw_conf_get(name, buffer, sizeof buffer, nullptr) == SPW_OK);
  return buffer;
}

TEST(Conf, AMistakeInTheEnvironmentCostsOneLine) {
  in_child(
      {{"SPILLWAY_CONF", "limit:much,reserve:1MiB"}},
      [] {
        const auto driver = start_device();
        for (int i = 0; i < 3; ++i) {
          void* block = nullptr;
          SPW_CHECK(spw_alloc(1000, 0, nullptr, &block) == SPW_OK);
        }
        SPW_CHECK(value_of("limit") == "unlimited" && value_of("reserve") == "1MiB");
        std::fflush(stderr);
        std::fprintf(stderr, "END\n");
      },
      "spillway: SPILLWAY_CONF: limit: 'much' is not allowed; allowed: a size, a share of the device, or "
      "unlimited; it stays unlimited\nEND\n");
}

TEST(Conf, ALimitBeyondTheMachineIsAMistake) {
  const Folder folder;
  const std::string disk = "spill_dir:" + folder.path() + ",spill_ram_backed:on,";
  const std::pair<std::string, std::string> limits[] = {
      {"pinned_limit", "the host's memory ("},
      {"pinned_ahead", "the host's memory ("},
      {"overflow_limit", "the host's memory ("},
      {"spill_limit", "the file system of " + folder.path() + " has ("},
  };
  for (const auto& [name, owner] : limits) {
    const std::string entry = name + ":1000TiB";
    const std::string text = fmt::format("{}: 1024000GiB is more than {}", name, owner);
    const std::string fallback = Config().value(name).value();
    in_child(
        {{"SPILLWAY_CONF", fmt::format("{},{}", entry, disk)}},
        [&, name = name] {
          SPW_CHECK(value_of(name.c_str()) == fallback);
          SPW_CHECK(spw_conf_set(entry.c_str()) == SPW_ERROR_CONFIG);
          SPW_CHECK(std::string(spw_last_error()).find("spw_conf_set: " + text) == 0);
          SPW_CHECK(value_of(name.c_str()) == fallback);
          const auto driver = start_device();
          void* block = nullptr;
          SPW_CHECK(spw_alloc(1000, 0, nullptr, &block) == SPW_OK);
        },
        "spillway: SPILLWAY_CONF: " + text);
    in_child({{"SPILLWAY_CONF", fmt::format("{},strict:on,{}", entry, disk)}}, [] {
      const auto driver = start_device();
      void* block = nullptr;
      SPW_CHECK(spw_alloc(1000, 0, nullptr, &block) == SPW_ERROR_CONFIG);
    });
  }
}

TEST(Conf, ADefaultThatIsBeyondTheMachineIsNone) {
  Config config;
  Config changed;
  changed.overflow_limit.bytes = uint64_t{1} << 55;
  const Config as_it_is = changed;
  EXPECT_THAT(refuse_beyond_machine(as_it_is, changed), IsEmpty()) << "it was so before";
  EXPECT_THAT(refuse_beyond_machine(config, changed), ElementsAre(HasSubstr("it stays 32GiB")));
  EXPECT_EQ(changed.overflow_limit.bytes, config.overflow_limit.bytes);
}

TEST(Conf, ADirectoryThatComesLaterIsLookedAtThen) {
  const Folder folder;
  Config config;
  EXPECT_THAT(config.apply("spill_limit:1000TiB", "t"), IsEmpty()) << "nothing is known to be less";
  EXPECT_THAT(config.apply("spill_dir:" + folder.path(), "t"), ElementsAre(HasSubstr("it stays unlimited")));
  EXPECT_EQ(config.spill_dir, folder.path());
  EXPECT_EQ(config.spill_limit.bytes, LimitSize::kUnlimited);
}

TEST(Conf, ALimitBeyondADeviceIsAMistake) {
  in_child(
      {{"SPILLWAY_CONF", "limit:1000TiB"}},
      [] {
        const auto driver = start_device();
        void* block = nullptr;
        SPW_CHECK(spw_alloc(1000, 0, nullptr, &block) == SPW_OK);
        SPW_CHECK(spw_conf_set("soft_limit:50%") == SPW_OK);
        SPW_CHECK(spw_conf_set("limit:1GiB") == SPW_OK);
        for (const char* name : {"limit", "soft_limit"}) {
          const std::string before = value_of(name);
          SPW_CHECK(spw_conf_set((std::string(name) + ":1000TiB").c_str()) == SPW_ERROR_CONFIG);
          const std::string said =
              std::string("spw_conf_set: ") + name + ": 1024000GiB is more than any device has (";
          SPW_CHECK(std::string(spw_last_error()).find(said) == 0);
          SPW_CHECK(value_of(name) == before);
        }
      },
      "spillway: limit: 1024000GiB is more than any device has (");
  in_child({{"SPILLWAY_CONF", "soft_limit:1000TiB,strict:on"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(1000, 0, nullptr, &block) == SPW_ERROR_CONFIG);
  });
}

TEST(Conf, StrictMakesItAnErrorOfEveryCallThatNeedsMemory) {
  in_child({{"SPILLWAY_CONF", "strict:true,limit:much"}}, [] {
    const auto driver = start_device();
    for (int i = 0; i < 2; ++i) {
      void* block = nullptr;
      SPW_CHECK(spw_alloc(1000, 0, nullptr, &block) == SPW_ERROR_CONFIG && block == nullptr);
      SPW_CHECK(std::string(spw_last_error()).find("'much'") != std::string::npos);
    }
  });
}

TEST(Conf, FileThenEnvironmentThenCall) {
  const Folder folder;
  const std::string file = folder.write(
      "spillway.conf", "# comment: not an option\nlimit:1GiB  # one\n\nreserve:2MiB,share_edges:off\n");
  in_child({{"SPILLWAY_CONF_FILE", file}, {"SPILLWAY_CONF", "reserve:3MiB"}}, [] {
    SPW_CHECK(value_of("limit") == "1GiB" && value_of("reserve") == "3MiB" &&
              value_of("share_edges") == "off");
    SPW_CHECK(spw_conf_set("reserve:4MiB") == SPW_OK);
    SPW_CHECK(value_of("reserve") == "4MiB");
    SPW_CHECK(
        value_of(nullptr) ==
        "profile:ordinary,limit:1GiB,soft_limit:unlimited,reserve:4MiB,slack:12%,backend:vmm,share_edges:off,"
        "ipc:on,preload_"
        "ipc:auto,"
        "preload_free:async,check_streams:off,"
        "max_small_size:16KiB,pinned_memory:off,pinned_limit:50%,pinned_ahead:0,pinned_threads:8,"
        "overflow:off,overflow_memory:auto,overflow_limit:32GiB,"
        "overflow_min:16MiB,spill_dir:,spill_limit:unlimited,spill_daily_writes:unlimited,"
        "spill_ram_backed:off,spill_block:1MiB,spill_depth:32,spill_threads:4,spill_engine:auto,"
        "spill_direct:on,spill_buffers:8,spill_pinned:on,spill_priority:normal,spill_tuning:kept,spill_codec:"
        "none,evict_above:unlimited,evict_below:unlimited,"
        "idle_after:off,"
        "dump_on_oom:on,dump_signal:SIGUSR2,dump_interval:off,dump_stacks:auto,dump_redact:off,"
        "trace:,trace_tail:unlimited,trace_stacks:off,"
        "live:on,live_interval:1000,live_dir:,strict:off,debug:off");
    SPW_CHECK(spw_conf_set(value_of(nullptr).c_str()) == SPW_OK);
  });
}

// Serves a request from free pages that lie apart, on a device that is full; returns the waits of the host.
int64_t waits_for_a_view() {
  std::vector<void*> blocks(6);
  for (void*& block : blocks) SPW_CHECK(spw_alloc(10 * kMiB, 0, nullptr, &block) == SPW_OK);
  for (const size_t freed : {1u, 3u}) SPW_CHECK(spw_free(blocks[freed]) == SPW_OK);
  void* view = nullptr;
  SPW_CHECK(spw_alloc(20 * kMiB, 0, nullptr, &view) == SPW_OK);
  return stats_of(0).host_waits;
}

TEST(Conf, ACarefulProfileWaitsBeforeAViewIsMapped) {
  in_child({{"SPILLWAY_SIM", "capacity:64MiB"}}, [] {
    const auto driver = start_device();
    SPW_CHECK(waits_for_a_view() == 0);
  });
  in_child({{"SPILLWAY_SIM", "capacity:64MiB"}, {"SPILLWAY_CONF", "profile:careful"}}, [] {
    const auto driver = start_device();
    SPW_CHECK(waits_for_a_view() == 1);
    SPW_CHECK(spw_conf_set("profile:ordinary") == SPW_ERROR_INVALID_STATE);
  });
}

TEST(Conf, AFileThatCannotBeReadIsAMistake) {
  const Folder folder;
  for (const std::string& path : {folder.file("missing"), folder.file("")}) {
    in_child(
        {{"SPILLWAY_CONF_FILE", path}}, [] { SPW_CHECK(value_of("limit") == "unlimited"); },
        "spillway: SPILLWAY_CONF_FILE: '" + path + "'");
  }
  in_child({{"SPILLWAY_CONF_FILE", folder.file("missing")}, {"SPILLWAY_CONF", "strict:on"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(1000, 0, nullptr, &block) == SPW_ERROR_CONFIG);
  });
}

TEST(Conf, SetTakesAllOrNothing) {
  in_child({}, [] {
    SPW_CHECK(spw_conf_set("limit:1GiB,reserve:nothing") == SPW_ERROR_CONFIG);
    SPW_CHECK(std::string(spw_last_error()).find("spw_conf_set: reserve: 'nothing'") == 0);
    SPW_CHECK(value_of("limit") == "unlimited");
    SPW_CHECK(spw_conf_set("unknown:1") == SPW_ERROR_CONFIG);
    SPW_CHECK(spw_conf_set("") == SPW_OK);
  });
}

TEST(Conf, LimitsAndTheReserveAreInWhatIsFree) {
  for (const char* restriction : {"reserve:1000MiB", "limit:24MiB"}) {
    in_child({{"SPILLWAY_SIM", "capacity:1GiB"}, {"SPILLWAY_CONF", restriction}}, [] {
      const auto driver = start_device();
      if (driver->find("spwSimConfigure") == nullptr) return;  // the size of a real device is its own affair
      const auto free_is = [](uint64_t available, uint64_t untaken) {
        uint64_t free_bytes[2] = {};
        uint64_t total_bytes = 0;
        SPW_CHECK(spw_memory_info(0, &free_bytes[0], nullptr) == SPW_OK && free_bytes[0] == available);
        SPW_CHECK(spw_untaken_memory_info(0, &free_bytes[1], &total_bytes) == SPW_OK);
        SPW_CHECK(free_bytes[1] == untaken && total_bytes == 1024 * kMiB);
      };
      // Before the device is used, too.
      free_is(24 * kMiB, 24 * kMiB);
      void* block = nullptr;
      SPW_CHECK(spw_alloc(10 * kMiB, 0, nullptr, &block) == SPW_OK);
      free_is(14 * kMiB, 14 * kMiB);
      SPW_CHECK(spw_free(block) == SPW_OK);
      free_is(24 * kMiB, 14 * kMiB);
      void* more = nullptr;
      SPW_CHECK(spw_alloc(14 * kMiB, 0, nullptr, &block) == SPW_OK);
      SPW_CHECK(spw_alloc(12 * kMiB, 0, nullptr, &more) == SPW_ERROR_OUT_OF_MEMORY);
      // What is cached beyond a lower one goes back at once.
      SPW_CHECK(spw_free(block) == SPW_OK && spw_conf_set("limit:4MiB") == SPW_OK);
      SPW_CHECK(stats_of(0).reserved_bytes.all.current == static_cast<int64_t>(4 * kMiB));
    });
  }
}

TEST(Conf, LimitsAndTheReserveTakeEffectAtOnce) {
  in_child({{"SPILLWAY_SIM", "capacity:1GiB"}}, [] {
    const auto driver = start_device();
    if (driver->find("spwSimConfigure") == nullptr) return;  // the size of a real device is its own affair
    void* held = nullptr;
    void* block = nullptr;
    SPW_CHECK(spw_alloc(100 * kMiB, 0, nullptr, &held) == SPW_OK);
    for (const char* restriction : {"reserve:1000MiB", "limit:24MiB"}) {
      SPW_CHECK(spw_conf_set(restriction) == SPW_OK);
      SPW_CHECK(spw_alloc(4 * kMiB, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY && block == nullptr);
      SPW_CHECK(std::string(spw_last_error()).find("the limit, or the reserve") != std::string::npos);
      uint64_t free_bytes = 1;
      SPW_CHECK(spw_memory_info(0, &free_bytes, nullptr) == SPW_OK && free_bytes == 0);
      SPW_CHECK(stats_of(0).reserved_bytes.all.current == static_cast<int64_t>(100 * kMiB));
      SPW_CHECK(spw_conf_set("reserve:0,limit:unlimited") == SPW_OK);
      SPW_CHECK(spw_alloc(4 * kMiB, 0, nullptr, &block) == SPW_OK && spw_free(block) == SPW_OK);
      SPW_CHECK(spw_trim(0) == SPW_OK && spw_validate(0) == SPW_OK);
    }
  });
}

TEST(Conf, SlackCanBeSetWhileMemoryIsInUse) {
  in_child({}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(spw_conf_set("slack:40%") == SPW_OK && value_of("slack") == "40%");
    SPW_CHECK(spw_conf_set("slack:140%") == SPW_ERROR_CONFIG && value_of("slack") == "40%");
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

TEST(Conf, ASoftLimitTakesEffectAtOnce) {
  for (const auto& [limit, reserved] : {std::pair{"soft_limit:40MiB", 40}, {"soft_limit:unlimited", 80}}) {
    in_child({}, [&, limit = limit, bytes = reserved * static_cast<int64_t>(kMiB)] {
      const auto driver = start_device();
      // A real device may be done with the stream's work.
      if (driver->find("spwSimConfigure") == nullptr) return;
      CUstream streams[2] = {};
      for (CUstream& stream : streams)
        SPW_CHECK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
      void* block = nullptr;
      SPW_CHECK(spw_alloc(40 * kMiB, 0, streams[0], &block) == SPW_OK && spw_conf_set(limit) == SPW_OK);
      // The other stream has it after a wait of the device, or memory of its own.
      const auto address = reinterpret_cast<CUdeviceptr>(block);
      SPW_CHECK(driver->cuMemsetD8Async(address, 1, 40 * kMiB, streams[0]) == CUDA_SUCCESS);
      SPW_CHECK(spw_free(block) == SPW_OK);
      SPW_CHECK(spw_alloc(40 * kMiB, 0, streams[1], &block) == SPW_OK);
      SPW_CHECK(stats_of(0).reserved_bytes.all.current == bytes);
    });
  }
}

// The page's rows: "| `name` | allowed | `default` | since | changeable later | ...".
std::vector<std::pair<std::string, bool>> options_and_whether_they_change() {
  std::vector<std::pair<std::string, bool>> out;
  std::istringstream page(spw_conf_describe());
  for (std::string line; std::getline(page, line);) {
    std::istringstream cells(line);
    std::vector<std::string> row;
    for (std::string cell; std::getline(cells, cell, '|');) row.push_back(cell);
    if (row.size() < 7 || row[1].find('`') == std::string::npos) continue;
    out.emplace_back(row[1].substr(2, row[1].size() - 4), row[5] == " yes ");
  }
  return out;
}

TEST(Conf, OnlyWhatMayChangeDoesSoOnceADeviceIsUsed) {
  const auto options = options_and_whether_they_change();
  ASSERT_EQ(options.size(), Config().values().size());
  in_child({}, [&] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(4096, 0, nullptr, &block) == SPW_OK);
    const char* const values[] = {"1%",    "4KiB",    "64KiB",   "7",      "all", "malloc", "careful",
                                  "guard", "host",    "refuse",  "on",     "off", "1s",     "idle",
                                  "lz4",   "SIGUSR1", "threads", "pinned", "sync"};
    for (const auto& [name, may_change] : options) {
      const std::string before = value_of(name.c_str());
      spw_status status = SPW_ERROR_CONFIG;
      std::string tried;
      for (const char* const value : values) {
        if (status != SPW_ERROR_CONFIG || value == before) continue;
        tried = value;
        status = spw_conf_set((name + ":" + value).c_str());
      }
      std::fprintf(stderr, "%s:%s\n", name.c_str(), tried.c_str());
      SPW_CHECK(status == (may_change ? SPW_OK : SPW_ERROR_INVALID_STATE));
      SPW_CHECK(value_of(name.c_str()) == (may_change ? tried : before));
    }
  });
}

TEST(Conf, SomeOptionsAreFixedOnceADeviceIsUsed) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_conf_set("max_small_size:2KiB") == SPW_OK);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(4096, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(stats_of(0).allocation.small_pool.current == 0);
    SPW_CHECK(spw_conf_set("limit:1GiB,max_small_size:4KiB") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(std::string(spw_last_error()).find("max_small_size") != std::string::npos);
    SPW_CHECK(value_of("limit") == "unlimited");
    SPW_CHECK(spw_conf_set("max_small_size:2KiB,limit:1GiB") == SPW_OK);
    uint64_t limit = 0;
    SPW_CHECK(spw_get_limit(0, &limit) == SPW_OK && limit == kGiB);
  });
}

TEST(Conf, LimitMayBeAShareOfTheDevice) {
  in_child({{"SPILLWAY_CONF", "limit:50%"}}, [] {
    const auto driver = start_device();
    uint64_t limit = 0;
    uint64_t total = 0;
    SPW_CHECK(spw_memory_info(0, nullptr, &total) == SPW_OK);
    SPW_CHECK(spw_get_limit(0, &limit) == SPW_OK);
    // The driver's two answers about the size of a device differ by what it keeps for itself.
    SPW_CHECK(limit > total / 2 - total / 20 && limit < total / 2 + total / 20);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(total / 2 + total / 10, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY);
  });
}

TEST(Conf, BackendMallocServesToo) {
  in_child({{"SPILLWAY_CONF", "backend:malloc"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(3 * kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(stats_of(0).driver_calls.mem_alloc > 0 && stats_of(0).driver_calls.create == 0);
    SPW_CHECK(spw_free(block) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

TEST(Conf, GetNeverWritesBeyondTheBuffer) {
  in_child({}, [] {
    char buffer[8];
    std::memset(buffer, 'x', sizeof buffer);
    size_t needed = 0;
    SPW_CHECK(spw_conf_get("limit", buffer, 5, &needed) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(needed == sizeof "unlimited");
    for (const char letter : buffer) SPW_CHECK(letter == 'x');
    SPW_CHECK(spw_conf_get("backend", buffer, 4, nullptr) == SPW_OK);
    SPW_CHECK(std::string(buffer) == "vmm" && buffer[4] == 'x');
    SPW_CHECK(spw_conf_get(nullptr, nullptr, 0, &needed) == SPW_OK && needed > 20);
    SPW_CHECK(spw_conf_get("nonsense", buffer, sizeof buffer, nullptr) == SPW_ERROR_CONFIG);
  });
}

TEST(Conf, ThePageNamesEveryOption) {
  const std::string page = spw_conf_describe();
  for (const auto& [name, value] : Config().values()) {
    EXPECT_THAT(page, HasSubstr("| `" + name + "` |"));
    EXPECT_THAT(page, HasSubstr("`" + value + "`"));
  }
}

}  // namespace
}  // namespace spillway::test
