// The text of a configuration: what is read as which value, and what is said of a mistake.
#include "abi/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

TEST(ConfigText, ReadsSizesSharesAndFlags) {
  Config config;
  EXPECT_THAT(
      config.apply(" limit : 1.5GiB ,reserve:512M,, share_edges:false,backend:malloc,max_small_size:4K", "t"),
      IsEmpty());
  EXPECT_EQ(config.limit.of(0), kGiB * 3 / 2);
  EXPECT_EQ(config.reserve.of(0), 512 * kMiB);
  EXPECT_FALSE(config.share_edges);
  EXPECT_EQ(config.backend, Backend::kMalloc);
  EXPECT_EQ(config.max_small_size.bytes, 4096U);
  EXPECT_THAT(config.apply("limit:80%", "t"), IsEmpty());
  EXPECT_EQ(config.limit.of(10 * kGiB), 8 * kGiB);
  EXPECT_THAT(config.apply("limit:unlimited", "t"), IsEmpty());
  EXPECT_EQ(config.limit.of(10 * kGiB), UINT64_MAX);
}

TEST(ConfigText, EveryMistakeIsOneLineThatSaysWhatIsAllowed) {
  const std::vector<std::string> wrong = {"limit:12x",
                                          "limit:",
                                          "limit:-1",
                                          "limit:101%",
                                          "limit:1e9",
                                          "limit:1.2.3GiB",
                                          "limit:2000000TiB",
                                          "limit:%",
                                          "limit:GiB",
                                          "limit:nan",
                                          "limit:unlimited1",
                                          "reserve:unlimited",
                                          "backend:cuda",
                                          "share_edges:maybe",
                                          "max_small_size:100",
                                          "max_small_size:1MiB",
                                          "slack:101%",
                                          "slack:-1%",
                                          "slack:13",
                                          "slack:1MiB",
                                          "strict:2",
                                          "debug:on",
                                          "debug:guards",
                                          "limits:1GiB",
                                          "limit",
                                          ":5",
                                          "limit 1GiB"};
  for (const std::string& text : wrong) {
    Config config;
    const std::vector<std::string> complaints = config.apply(text, "HERE");
    ASSERT_EQ(complaints.size(), 1U) << text;
    EXPECT_THAT(complaints[0], StartsWith("HERE: "));
    EXPECT_EQ(complaints[0].find('\n'), std::string::npos);
    EXPECT_TRUE(complaints[0].find("allowed") != std::string::npos ||
                complaints[0].find("form") != std::string::npos)
        << complaints[0];
    EXPECT_THAT(config.values(), Config().values()) << text;
  }
}

TEST(ConfigText, WhatIsRightNextToAMistakeCounts) {
  Config config;
  EXPECT_EQ(config.apply("limit:1GiB,nonsense:1,reserve:1MiB", "t").size(), 1U);
  EXPECT_EQ(config.limit.of(0), kGiB);
  EXPECT_EQ(config.reserve.of(0), kMiB);
}

TEST(ConfigText, PrintedValuesReadBackTheSame) {
  for (const char* text :
       {"", "limit:3MiB,reserve:10%", "reserve:auto", "limit:12345,backend:malloc,strict:on", "limit:33.3%",
        "slack:0%,strict:off", "slack:7.5%"}) {
    Config config;
    ASSERT_THAT(config.apply(text, "t"), IsEmpty());
    std::string printed;
    for (const auto& [name, value] : config.values())
      printed.append(name).append(":").append(value).append(",");
    Config again;
    ASSERT_THAT(again.apply(printed, "t"), IsEmpty()) << printed;
    EXPECT_EQ(again.values(), config.values());
  }
}

TEST(ConfigText, EveryWordThatIsAllowedReadsAndPrintsAsItself) {
  struct Option {
    std::string name;
    std::string allowed;
    std::vector<std::string> words;
  };
  const Option options[] = {
      {"profile", "ordinary, careful or plain", {"ordinary", "careful", "plain"}},
      {"share_edges", "on or off", {"on", "off"}},
      {"backend", "vmm or malloc", {"vmm", "malloc"}},
      {"debug", "off or guard", {"off", "guard"}},
      {"overflow", "off or host", {"off", "host"}},
      {"overflow_memory", "auto, vmm or pinned", {"auto", "vmm", "pinned"}},
      {"trace_stacks", "off, python, cpp or all", {"off", "python", "cpp", "all"}},
      {"preload_ipc", "auto, plain or refuse", {"auto", "plain", "refuse"}},
      {"preload_free", "async or sync", {"async", "sync"}},
      {"spill_engine", "auto or threads", {"auto", "threads"}},
      {"spill_priority", "normal or idle", {"normal", "idle"}},
      {"spill_tuning", "off, kept or auto", {"off", "kept", "auto"}},
      {"spill_codec", "none, lz4 or zstd", {"none", "lz4", "zstd"}},
      {"dump_signal", "SIGUSR1, SIGUSR2 or off", {"SIGUSR1", "SIGUSR2", "off"}},
  };
  for (const Option& option : options) {
    Config config;
    for (const std::string& word : option.words) {
      EXPECT_THAT(config.apply(option.name + ":" + word, "t"), IsEmpty());
      EXPECT_EQ(config.value(option.name).value(), word);
    }
    const std::string said = "; allowed: " + option.allowed + "; it stays " + option.words.back();
    EXPECT_THAT(config.apply(option.name + ":nonsense", "t"), ElementsAre(HasSubstr(said)));
  }
}

// Values of the options that profiles change.
std::string changed_by_profile(const Config& config) {
  std::string text;
  for (const char* name : {"profile", "share_edges", "backend"}) text += config.value(name).value() + " ";
  return text;
}

TEST(ConfigText, AProfileChangesWhatNobodyNamed) {
  Config config;
  EXPECT_EQ(changed_by_profile(config), "ordinary on vmm ");
  EXPECT_THAT(config.apply("profile:careful", "t"), IsEmpty());
  EXPECT_EQ(changed_by_profile(config), "careful off vmm ");
  EXPECT_THAT(config.apply("profile:plain", "t"), IsEmpty());
  EXPECT_EQ(changed_by_profile(config), "plain on malloc ");
  EXPECT_THAT(config.apply("profile:ordinary", "t"), IsEmpty());
  EXPECT_EQ(config.values(), [] {
    Config named;
    named.apply("profile:ordinary", "t");
    return named.values();
  }());
  EXPECT_EQ(changed_by_profile(config), "ordinary on vmm ");
}

TEST(ConfigText, WhatTheUserNamesWinsOverTheProfile) {
  // Whichever comes first, in one text or in several.
  for (const char* text : {"profile:careful,share_edges:on", "share_edges:on,profile:careful"}) {
    Config config;
    EXPECT_THAT(config.apply(text, "t"), IsEmpty());
    EXPECT_EQ(changed_by_profile(config), "careful on vmm ");
  }
  Config config;
  EXPECT_THAT(config.apply("backend:vmm,limit:1GiB", "t"), IsEmpty());
  EXPECT_THAT(config.apply("profile:plain", "t"), IsEmpty());
  EXPECT_EQ(changed_by_profile(config), "plain on vmm ");
  EXPECT_EQ(config.limit.of(0), kGiB);
  // A mistake names nothing.
  Config mistaken;
  EXPECT_THAT(mistaken.apply("share_edges:maybe,profile:careful", "t"), SizeIs(1));
  EXPECT_EQ(changed_by_profile(mistaken), "careful off vmm ");
}

TEST(ConfigText, ACarefulProfileLeavesTwiceAsMuchFree) {
  const uint64_t total = 80 * kGiB;
  Config config;
  const uint64_t ordinary = config.headroom_of(total);
  EXPECT_GT(ordinary, 0U);
  for (const char* profile : {"profile:careful", "profile:plain"}) {
    EXPECT_THAT(config.apply(profile, "t"), IsEmpty());
    EXPECT_EQ(config.headroom_of(total), 2 * ordinary);
  }
  EXPECT_THAT(config.apply("reserve:1GiB", "t"), IsEmpty());
  EXPECT_EQ(config.headroom_of(total), 0U);
}

TEST(ConfigText, AFlagHasOtherSpellings) {
  Config config;
  for (const auto& [text, printed] : {std::pair{"true", "on"}, {"0", "off"}, {"1", "on"}, {"false", "off"}}) {
    EXPECT_THAT(config.apply(std::string("strict:") + text, "t"), IsEmpty());
    EXPECT_EQ(config.value("strict").value(), printed);
  }
}

TEST(ConfigText, RandomTextIsRefusedNotFollowed) {
  std::mt19937 random(3);
  const std::string alphabet = "limtresv:,.%0123456789GiBK#\n\t\\ \x01\xff";
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t length = random() % 40; text.size() < length;) text += alphabet[random() % alphabet.size()];
    Config config;
    config.apply(text, "t");
    EXPECT_EQ(config.values().size(), Config().values().size());
  }
}

}  // namespace
}  // namespace spillway::test
