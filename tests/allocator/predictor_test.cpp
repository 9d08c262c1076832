#include "allocator/predictor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "allocator/cached_range.h"
#include "allocator/request.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

constexpr uint32_t kLarge = 2 * kPageQuanta;
const auto kAnyRange = [](const CachedRange&) { return true; };
const auto kNoRange = [](const CachedRange&) { return false; };

// A program of one heap, whose requests are served by the ranges that the caller names.
class Program {
 public:
  explicit Program(std::atomic<const SequencePredictor*>& leader) : predictor(leader) {}

  // Returns what is expected for the request, as the heap asks: the guess, then a search.
  CachedRange* expected(const Request& request) {
    CachedRange* range = predictor.guess(request);
    return range != nullptr ? range : predictor.locate(request);
  }
  // Serves requests of so many different sizes, each by its range; answers how many of those were expected.
  int pass(std::vector<CachedRange>& ranges) {
    int hits = 0;
    for (uint32_t i = 0; i < ranges.size(); ++i) {
      const Request request{kLarge + i, 1};
      ranges[i].quanta = request.quanta;
      hits += expected(request) == &ranges[i];
      predictor.note(request, &ranges[i]);
    }
    return hits;
  }

  Predictor predictor;
};

TEST(Predictor, ExpectsTheRangesOfThePassBefore) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  std::vector<CachedRange> ranges(100);
  EXPECT_FALSE(program.predictor.repeats());
  EXPECT_EQ(program.pass(ranges), 0);
  EXPECT_GE(program.pass(ranges), 97);
  EXPECT_TRUE(program.predictor.repeats());
  EXPECT_EQ(program.pass(ranges), 100);
  EXPECT_EQ(program.predictor.now(), 300u);
}

TEST(Predictor, CountsWhatItLookedAt) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  std::vector<CachedRange> ranges(10);
  program.pass(ranges);
  EXPECT_EQ(program.predictor.looks().guessed, 0u);
  EXPECT_EQ(program.predictor.looks().searched, 10u);
  program.predictor.guess({kLarge, 1});
  EXPECT_EQ(program.predictor.looks().guessed, 0u) << "a guess at once is not counted";
  program.predictor.guess_again({kLarge, 1});
  EXPECT_EQ(program.predictor.looks().guessed, 1u);
  // The same search is not made twice.
  program.predictor.locate({kLarge, 1});
  program.predictor.locate({kLarge, 1});
  EXPECT_EQ(program.predictor.looks().searched, 11u);
}

TEST(Predictor, WhatALocationFoundIsExpectedUntilTheRequestIsServed) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  std::vector<CachedRange> ranges(20);
  program.pass(ranges);
  program.pass(ranges);
  // Something else comes between: the guess is of no use.
  CachedRange other;
  program.predictor.note({kLarge + 99, 1}, &other);
  for (uint32_t i = 5; i < 7; ++i) program.predictor.note({kLarge + i, 1}, &ranges[i]);
  program.predictor.note({kLarge + 77, 1}, &other);
  program.predictor.note({kLarge + 6, 1}, &ranges[6]);
  const Request next{kLarge + 7, 1};
  EXPECT_EQ(program.predictor.guess(next), nullptr);
  EXPECT_EQ(program.predictor.expected(next), nullptr);
  EXPECT_EQ(program.predictor.locate(next), nullptr) << "these three sizes never were in a row";
  program.predictor.note(next, &ranges[7]);
  const Request then{kLarge + 8, 1};
  EXPECT_EQ(program.predictor.locate(then), &ranges[8]);
  EXPECT_EQ(program.predictor.expected(then), &ranges[8]);
  EXPECT_EQ(program.predictor.expected({kLarge + 9, 1}), nullptr) << "it is of another size";
  program.predictor.note(then, &ranges[8]);
  EXPECT_EQ(program.predictor.guess({kLarge + 9, 1}), &ranges[9]);
}

TEST(Predictor, ASmallBlockIsExpectedOnlyWhereTheProgramSurelyIs) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Predictor predictor(leader);
  std::vector<CachedRange> ranges(30);
  const auto request = [](uint32_t i) { return Request{100 + i, 1}; };
  for (uint32_t i = 0; i < ranges.size(); ++i) predictor.note(request(i), &ranges[i]);
  CachedRange other;
  predictor.note({77, 1}, &other);
  // Eight requests in a row as they were before are more than a likeness by chance.
  for (uint32_t i = 5; i < 13; ++i) {
    EXPECT_EQ(predictor.locate(request(i)), nullptr) << i;
    predictor.note(request(i), &ranges[i]);
  }
  // From here on the guess, which needs no search, names it.
  predictor.note({78, 1}, &other);
  const uint32_t first = 13;
  for (uint32_t i = first; i < 21; ++i) predictor.note(request(i), &ranges[i]);
  EXPECT_EQ(predictor.locate(request(21)), &ranges[21]);
}

// ---- Where mappings are many

TEST(Predictor, KeepsTogetherWhatDoesNotRepeatItself) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  std::vector<CachedRange> ranges(100);
  program.pass(ranges);
  program.predictor.keep_together(true);
  EXPECT_FALSE(program.predictor.remembers());
  for (uint32_t i = 0; i < 64; ++i) {
    const Request request{kLarge + i, 1};
    EXPECT_EQ(program.expected(request), nullptr) << i;
    program.predictor.note(request, &ranges[i]);
  }
  // So many requests in a row were as remembered that the program is trusted again.
  EXPECT_TRUE(program.predictor.remembers());
  EXPECT_EQ(program.expected({kLarge + 64, 1}), &ranges[64]);
  CachedRange other;
  program.predictor.note({kLarge - 1, 1}, &other);
  EXPECT_FALSE(program.predictor.remembers());
  program.predictor.keep_together(false);
  EXPECT_TRUE(program.predictor.remembers());
}

// ---- Slabs

TEST(Predictor, ASlabIsReopenedWhereItWasInThePassBefore) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  std::vector<CachedRange> ranges(20);
  CachedRange slab;
  CachedRange another;
  const Request request = Request::for_slab(3);
  program.pass(ranges);
  program.predictor.note(request, &slab);
  program.pass(ranges);
  EXPECT_EQ(program.predictor.guess(request), &slab);
  EXPECT_EQ(program.predictor.expected(request), &slab);
  EXPECT_EQ(program.predictor.locate(request), nullptr) << "the histories are not searched";
  EXPECT_EQ(program.predictor.guess(Request::for_slab(4)), nullptr);
  // Another is not the one to be opened now, unless that one cannot be had.
  EXPECT_FALSE(program.predictor.reopens(3, &another, kAnyRange));
  EXPECT_TRUE(program.predictor.reopens(3, &slab, kAnyRange));
  EXPECT_TRUE(program.predictor.reopens(3, &slab, kNoRange)) << "again, before the next large request";
  program.pass(ranges);
  EXPECT_TRUE(program.predictor.reopens(3, &another, kNoRange));
  program.pass(ranges);
  EXPECT_EQ(program.predictor.guess(request), &another) << "from then on";
}

// ---- The leader

TEST(Predictor, TheBusiestHeapTellsIdlerOnesTheTime) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program busy(leader);
  Program idle(leader);
  std::vector<CachedRange> ranges(500);
  std::vector<CachedRange> own(10);
  for (int pass = 0; pass < 8; ++pass) {
    int hits = 0;
    for (uint32_t i = 0; i < ranges.size(); ++i) {
      const Request request{kLarge + i, 1};
      ranges[i].quanta = request.quanta;
      if (busy.predictor.guess(request) == nullptr) busy.predictor.locate(request);
      busy.predictor.note(request, &ranges[i]);
      if (i % 50 != 25) continue;
      // The idler one asks for one size alone, which says nothing; it gets another range each time.
      CachedRange& range = own[i / 50];
      range.quanta = kLarge;
      hits += idle.predictor.locate({kLarge, 1}) == &range;
      idle.predictor.note({kLarge, 1}, &range);
    }
    if (pass == 0) {
      EXPECT_EQ(hits, 0);
    }
    if (pass >= 2) {
      EXPECT_EQ(hits, 10) << "pass " << pass;
    }
  }
  EXPECT_NE(leader.load(), nullptr);
  EXPECT_EQ(leader.load()->now(), busy.predictor.now());
}

TEST(Predictor, AHeapFollowsOnlyALeaderThatIsMuchBusier) {
  for (const uint32_t times : {2u, 10u}) {
    std::atomic<const SequencePredictor*> leader{nullptr};
    Program busy(leader);
    Predictor other(leader);
    std::vector<CachedRange> ranges(100);
    for (int pass = 0; pass < 20; ++pass) busy.pass(ranges);
    for (uint32_t i = 0; i < 300; ++i) {
      for (uint32_t k = 0; k < times; ++k) busy.predictor.note({kLarge, 1}, &ranges[0]);
      const Request request{kLarge + i, 1};
      other.locate(request);
      other.note(request, &ranges[1]);
    }
    // It never repeats itself, so it is trusted only where another tells it the time.
    other.keep_together(true);
    EXPECT_EQ(other.remembers(), times == 10) << times;
  }
}

TEST(Predictor, OnlyAHeapThatIsFarAheadBecomesTheLeader) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program one(leader);
  Program two(leader);
  std::vector<CachedRange> ranges(700);
  std::vector<CachedRange> others(700);
  for (int pass = 0; pass < 3; ++pass) one.pass(ranges);
  const SequencePredictor* first = leader.load();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->now(), 2100u);
  for (int pass = 0; pass < 7; ++pass) {
    two.pass(others);
    EXPECT_EQ(leader.load(), first) << two.predictor.now();
  }
  for (int pass = 0; pass < 2; ++pass) two.pass(others);
  EXPECT_NE(leader.load(), first);
  EXPECT_EQ(leader.load()->now(), two.predictor.now());
}

TEST(Predictor, SleepsWhileNothingRepeatsAndWakesWhenSomethingDoes) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  CachedRange range;
  for (uint32_t i = 0; i < 1024; ++i) {
    EXPECT_FALSE(program.predictor.is_asleep()) << i;
    program.predictor.note({kLarge + 5000 + i, 1}, &range);
  }
  EXPECT_TRUE(program.predictor.is_asleep());
  // It is not looked at with every request.
  const uint64_t searched = program.predictor.looks().searched;
  for (uint32_t i = 0; i < 640; ++i) {
    const Request request{kLarge + 10'000 + i, 1};
    program.expected(request);
    program.predictor.note(request, &range);
  }
  EXPECT_EQ(program.predictor.looks().searched, searched + 10);
  std::vector<CachedRange> ranges(100);
  program.pass(ranges);
  EXPECT_TRUE(program.predictor.is_asleep());
  program.pass(ranges);
  EXPECT_FALSE(program.predictor.is_asleep());
  // Sizes that follow each other by chance are no repetition.
  Random random(17);
  for (int i = 0; i < 3000; ++i) {
    const Request request{kLarge + random() % 40, 1};
    program.expected(request);
    program.predictor.note(request, &range);
  }
  EXPECT_TRUE(program.predictor.is_asleep());
  // The longer it sleeps the more seldom it looks, down to one request in 1,024.
  uint32_t looks = 0;
  for (uint32_t i = 0; i < 400'000; ++i) {
    if (i >= 300'000) looks += program.predictor.is_time_to_look();
    program.predictor.note({kLarge + 100'000 + i, 1}, &range);
  }
  EXPECT_GE(looks, 97u);
  EXPECT_LE(looks, 98u);
}

// Where three quarters of the last 64 misses are for sizes that were not asked for before, 64 requests do.
TEST(Predictor, SleepsSoonWhereSizesAreEverNew) {
  const auto asleep_after = [](uint32_t sizes_of_four_that_are_new) {
    std::atomic<const SequencePredictor*> leader{nullptr};
    Program program(leader);
    CachedRange range;
    uint32_t requests = 0;
    while (!program.predictor.is_asleep()) {
      const bool is_new = requests % 4 < sizes_of_four_that_are_new;
      const uint32_t quanta = kLarge + (is_new ? 1000 + requests : requests * requests % 7);
      program.predictor.note_miss(quanta);
      program.predictor.note({quanta, 1}, &range);
      ++requests;
    }
    return requests;
  };
  EXPECT_EQ(asleep_after(4), 65u);
  EXPECT_EQ(asleep_after(3), 65u);
  EXPECT_EQ(asleep_after(2), 1024u);
}

// What it was like before a program repeated itself says nothing of what comes after that.
TEST(Predictor, SleepsSoonOnlyByWhatItMissedSinceItRepeatedItself) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  CachedRange range;
  uint32_t size = kLarge + 5000;
  const auto miss = [&] {
    program.predictor.note_miss(++size);
    program.predictor.note({size, 1}, &range);
  };
  for (int i = 0; i < 63; ++i) miss();
  std::vector<CachedRange> ranges(100);
  for (int i = 0; i < 4; ++i) program.pass(ranges);
  for (int i = 0; i < 63; ++i) {
    miss();
    EXPECT_FALSE(program.predictor.is_asleep()) << i;
  }
  miss();
  miss();
  EXPECT_TRUE(program.predictor.is_asleep());
  // Some known sizes among them do not wake it.
  for (uint32_t i = 0; i < 40; ++i) {
    program.predictor.note_miss(kLarge + 5001 + 7 * i % 60);
    program.predictor.note({kLarge + 5001 + 7 * i % 60, 1}, &range);
    EXPECT_TRUE(program.predictor.is_asleep()) << i;
  }
}

TEST(Predictor, SoonAsleepItWakesLikeAnyOther) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  CachedRange range;
  for (uint32_t i = 0; i < 100; ++i) {
    program.predictor.note_miss(kLarge + 5000 + i);
    program.predictor.note({kLarge + 5000 + i, 1}, &range);
  }
  ASSERT_TRUE(program.predictor.is_asleep());
  std::vector<CachedRange> ranges(100);
  for (int i = 0; i < 3; ++i) program.pass(ranges);
  EXPECT_FALSE(program.predictor.is_asleep());
}

TEST(Predictor, TellsThatMoreThanHalfOfTheRequestsMissForLong) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program program(leader);
  CachedRange range;
  uint32_t requests = 0;
  const auto run = [&](int misses, int hits_for_each) {
    for (int miss = 0; miss < misses; ++miss) {
      program.predictor.note_miss(1);
      for (int i = 0; i <= hits_for_each; ++i) program.predictor.note({kLarge + requests++ % 100, 1}, &range);
    }
  };
  run(16 * 1024 - 1, 0);
  EXPECT_FALSE(program.predictor.misses_often()) << "not yet for long";
  run(1, 0);
  EXPECT_TRUE(program.predictor.misses_often());
  // A phase without a miss ends it at once, and it takes as long again.
  for (int i = 0; i < 3000; ++i) program.predictor.note({kLarge, 1}, &range);
  EXPECT_FALSE(program.predictor.misses_often());
  run(16 * 1024 - 100, 0);
  EXPECT_FALSE(program.predictor.misses_often());
  run(1024, 0);
  EXPECT_TRUE(program.predictor.misses_often());
  run(2048, 2);
  EXPECT_FALSE(program.predictor.misses_often()) << "one of three";
  run(32 * 1024, 2);
  EXPECT_FALSE(program.predictor.misses_often());
}

TEST(Predictor, StaysAwakeWhileItsLeaderRepeatsItself) {
  std::atomic<const SequencePredictor*> leader{nullptr};
  Program busy(leader);
  Program led(leader);
  std::vector<CachedRange> ranges(100);
  CachedRange range;
  for (int pass = 0; pass < 20; ++pass) busy.pass(ranges);
  for (uint32_t i = 0; i < 1200; ++i) {
    if (i % 20 == 0) busy.pass(ranges);
    const Request request{kLarge + i, 1};
    led.expected(request);
    led.predictor.note(request, &range);
  }
  EXPECT_FALSE(led.predictor.is_asleep());
}

}  // namespace
}  // namespace spillway::test
