#include "abi/idle_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

namespace spillway {
namespace {

constexpr std::chrono::milliseconds kAfter{32};

template <typename Is>
void wait_until(Is is) {
  for (int i = 0; i < 6000 && !is(); ++i) usleep(5000);
  EXPECT_TRUE(is()) << "for 30 seconds";
}

// A device whose program does nothing.
struct Watched {
  // The watch keeps them for good.
  static Watched& add(int ordinal) {
    Watched& watched = *new Watched;
    IdleWatch::instance().add(kAfter, {.ordinal = ordinal,
                                       .calls = [&watched] { return watched.calls.load(); },
                                       .is_quiet =
                                           [&watched] {
                                             ++watched.looks;
                                             return true;
                                           },
                                       .relieve =
                                           [&watched](const auto& goes_on) {
                                             ++watched.spells;
                                             while (watched.is_long && goes_on()) usleep(1000);
                                             return watched.succeeds.load();
                                           }});
    return watched;
  }
  std::atomic<uint64_t> calls{1};
  std::atomic<int> looks{0};
  std::atomic<int> spells{0};
  std::atomic<bool> is_long{false};
  std::atomic<bool> succeeds{true};
};

TEST(QuietSpell, IsToldWhenItHasLasted) {
  QuietSpell spell;
  const auto quiet = [] { return true; };
  const auto busy = [] { return false; };
  const auto looks_until_told = [&](uint64_t calls) {
    for (int looks = 1; looks <= 100; ++looks) {
      if (spell.look(calls, quiet)) return looks;
    }
    return 0;
  };
  EXPECT_EQ(looks_until_told(5), QuietSpell::kLooks + 1);
  EXPECT_EQ(looks_until_told(5), 0);
  for (int looks = 0; looks < 5; ++looks) EXPECT_FALSE(spell.look(6, quiet));
  // Work on the device begins it anew, and while the program allocates the device is not asked.
  EXPECT_FALSE(spell.look(6, busy));
  EXPECT_EQ(looks_until_told(6), QuietSpell::kLooks);
  EXPECT_FALSE(spell.look(7, [] {
    ADD_FAILURE() << "asked";
    return true;
  }));
}

TEST(IdleWatch, ASpellThatFailedBeginsAnew) {
  Watched& watched = Watched::add(1);
  watched.succeeds = false;
  wait_until([&] { return watched.spells >= 3; });
  IdleWatch::instance().remove(1);
}

TEST(IdleWatch, WhatIsRemovedIsLookedAtNoMore) {
  Watched& removed = Watched::add(2);
  Watched& other = Watched::add(3);
  wait_until([&] { return removed.spells == 1; });
  IdleWatch::instance().remove(2);
  const int looks = removed.looks;
  ++removed.calls;
  const int others = other.looks;
  wait_until([&] { return other.looks >= others + 2 * QuietSpell::kLooks; });
  EXPECT_EQ(removed.looks, looks);
  EXPECT_EQ(removed.spells, 1);
  IdleWatch::instance().remove(3);
}

TEST(IdleWatch, RemovingEndsWhatIsUnderWay) {
  Watched& watched = Watched::add(4);
  watched.is_long = true;
  wait_until([&] { return watched.spells == 1; });
  IdleWatch::instance().remove(4);
}

TEST(IdleWatch, AChildOfForkIsNotWatched) {
  Watched::add(5);
  const pid_t child = fork();
  if (child == 0) {
    Watched& mine = Watched::add(6);
    IdleWatch::instance().remove(5);
    usleep(200'000);
    std::_Exit(mine.looks == 0 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  IdleWatch::instance().remove(5);
}

}  // namespace
}  // namespace spillway
