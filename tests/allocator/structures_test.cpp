// The small structures of the heap, each against a plain model.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "allocator/address_map.h"
#include "allocator/bitmap.h"
#include "allocator/fragments.h"
#include "allocator/mutex.h"
#include "allocator/sequence_predictor.h"
#include "allocator/size_classes.h"
#include "allocator/slab.h"
#include "allocator/timeline.h"

namespace spillway {
namespace {

// Seeded numbers; the high bits of a linear congruential generator.
struct Random {
  uint32_t state;
  explicit Random(uint32_t seed) : state(seed * 2654435761u + 1) {}
  uint32_t operator()() {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
  }
};

TEST(SizeClasses, EachRequestGetsTheSmallestClassThatHoldsIt) {
  for (uint64_t bytes = 1; bytes <= kLargestSmallBytes; ++bytes) {
    const uint32_t size_class = kClassOfQuanta[bytes_to_quanta(bytes)];
    ASSERT_GE(kClassBytes[size_class], bytes);
    if (size_class > 0) {
      ASSERT_LT(kClassBytes[size_class - 1], bytes);
    }
  }
}

TEST(Bitmap, AgreesWithASet) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    Bitmap bitmap(1000);
    std::set<PageId> model;
    for (int step = 0; step < 2000; ++step) {
      const PageId first = random() % 900;
      const uint32_t count = 1 + random() % 100;
      if (random() % 2 == 0) {
        bitmap.set(first, count);
        for (PageId id = first; id < first + count; ++id) model.insert(id);
      } else {
        bitmap.clear(first, count);
        for (PageId id = first; id < first + count; ++id) model.erase(id);
      }
      const PageId from = random() % 1000;
      bool all = true;
      for (PageId id = from; id < std::min<PageId>(1000, from + count); ++id)
        all = all && model.count(id) != 0;
      if (from + count <= 1000) {
        ASSERT_EQ(bitmap.all_set(from, count), all);
      }
      const auto next = model.lower_bound(from);
      ASSERT_EQ(bitmap.next_set(from), next == model.end() ? bitmap.end() : *next);
      PageId clear = from;
      while (model.count(clear) != 0) ++clear;
      ASSERT_EQ(bitmap.next_clear(from), std::min(clear, bitmap.end()));
    }
  }
}

TEST(FragmentIndex, FindsAFittingFragmentWheneverThereIsOne) {
  Random random(7);
  constexpr PageId kPages = 200;
  const auto pages = std::make_unique<Page[]>(kPages);
  FragmentIndex index(pages.get());
  std::vector<uint32_t> prefix(kPages, 0);
  for (int step = 0; step < 5000; ++step) {
    const PageId page = random() % kPages;
    QuantumSet& quanta = pages[page].free_quanta;
    quanta.reset();
    prefix[page] = random() % 3 == 0 ? 0 : random() % (kPageQuanta - 1);
    if (prefix[page] > 0) quanta.give(0, prefix[page]);
    index.update(page);
    const uint32_t wanted = 1 + random() % kPageQuanta;
    uint32_t smallest = ~0u;
    for (const uint32_t size : prefix) {
      if (size >= wanted) smallest = std::min(smallest, size);
    }
    const PageId found = index.find(kPrefix, wanted);
    if (smallest == ~0u) {
      ASSERT_EQ(found, kNoPage);
    } else {
      // Bins are 32 quanta wide and only their first pages are looked at: about the smallest, never too
      // small.
      ASSERT_NE(found, kNoPage);
      ASSERT_GE(prefix[found], wanted);
    }
    ASSERT_EQ(index.count(kSuffix), 0u);
  }
  for (PageId page = 0; page < kPages; ++page) pages[page].free_quanta.reset();
}

CachedRange* first_guess(SequencePredictor& sequence, uint32_t key) {
  if (CachedRange* range = sequence.guess(key)) return range;
  return sequence.search(key, nullptr);
}

TEST(SequencePredictor, ARepeatedSequenceIsPredictedFromItsSecondPass) {
  std::vector<CachedRange> ranges(500);
  SequencePredictor sequence;
  for (int pass = 0; pass < 3; ++pass) {
    int predicted = 0;
    for (uint32_t i = 0; i < ranges.size(); ++i) {
      const uint32_t key = 100 + i * i % 37;
      CachedRange* range = first_guess(sequence, key);
      if (range == &ranges[i]) ++predicted;
      sequence.append(key, &ranges[i], nullptr);
    }
    if (pass > 0) {
      EXPECT_GE(predicted, 490) << "pass " << pass;
    }
  }
}

TEST(SequencePredictor, AnInsertedRequestCostsFewPredictions) {
  std::vector<CachedRange> ranges(300);
  CachedRange extra;
  SequencePredictor sequence;
  for (int pass = 0; pass < 4; ++pass) {
    int wrong = 0;
    for (uint32_t i = 0; i < ranges.size(); ++i) {
      if (pass == 3 && i == 150) sequence.append(9999, &extra, nullptr);
      const uint32_t key = 1 + i;
      CachedRange* range = first_guess(sequence, key);
      wrong += range != &ranges[i];
      sequence.append(key, &ranges[i], nullptr);
    }
    if (pass == 3) {
      EXPECT_LE(wrong, 6);
    }
  }
}

TEST(SequencePredictor, ARecycledPlaceIsNotPredicted) {
  CachedRange range;
  SequencePredictor sequence;
  for (int i = 0; i < 10; ++i) first_guess(sequence, 5), sequence.append(5, &range, nullptr);
  ASSERT_EQ(sequence.guess(5), &range);
  ++range.generation;
  EXPECT_EQ(first_guess(sequence, 5), nullptr);
}

TEST(SequencePredictor, KeepsARingOfBoundedSize) {
  CachedRange range;
  SequencePredictor sequence;
  for (uint64_t i = 0; i < 3 * uint64_t{SequencePredictor::kMostEntries}; ++i) {
    sequence.append(static_cast<uint32_t>(i % 1000), &range, nullptr);
  }
  EXPECT_EQ(first_guess(sequence, (3 * SequencePredictor::kMostEntries) % 1000), &range);
  EXPECT_LE(sequence.metadata_bytes(), uint64_t{SequencePredictor::kMostEntries} * 32);
}

TEST(Timeline, AStreamThatTakesOverHasWaitedForNothing) {
  Timeline other;
  Timeline timeline;
  timeline.note_wait(&other, other.epoch() + 1);
  EXPECT_TRUE(timeline.has_waited(&other, other.epoch()));
  timeline.seal(false);
  timeline.end_wait(timeline.begin_wait());
  timeline.reopen();
  EXPECT_FALSE(timeline.has_waited(&other, other.epoch()));
}

TEST(Slab, EverySlotOnceAndFoundAgain) {
  for (uint32_t size_class = 0; size_class < kClassCount; ++size_class) {
    CachedRange range;
    range.va = uint64_t{1} << 32;
    Slab slab;
    slab.open(&range, size_class);
    std::set<uint32_t> slots;
    while (!slab.full()) {
      const uint32_t slot = slab.take_slot(1);
      ASSERT_TRUE(slots.insert(slot).second);
      ASSERT_EQ(slab.slot_at(slab.va_of(slot)), slot);
      ASSERT_EQ(slab.slot_at(slab.va_of(slot) + 1), kMostSlots);
      ASSERT_LE(slab.va_of(slot) + slab.slot_bytes(), range.va + kSlabBytes);
    }
    EXPECT_EQ(slots.size(), slots_of_class(size_class));
    EXPECT_EQ(slab.slot_at(range.va - kQuantumBytes), kMostSlots);
  }
}

TEST(AddressMap, AnswersNullForWhatWasNeverEntered) {
  const AddressMap& map = AddressMap::instance();
  EXPECT_EQ(map.find(0), nullptr);
  EXPECT_EQ(map.find(~uint64_t{0}), nullptr);
  EXPECT_EQ(map.find(uint64_t{1} << 47), nullptr);
}

TEST(AddressMap, EntersAndClearsUnits) {
  AddressMap& map = AddressMap::instance();
  CachedRange range;
  const uint64_t va = uint64_t{77} << 33;
  ASSERT_TRUE(map.set(va, 4, &range));
  EXPECT_EQ(map.find(va + 4 * kGranuleBytes - 1), &range);
  EXPECT_EQ(map.find(va + 4 * kGranuleBytes), nullptr);
  const CachedRange other;
  map.clear_if(va, &other);
  EXPECT_EQ(map.find(va), &range);
  for (uint64_t unit = 0; unit < 4; ++unit) map.clear_if(va + unit * kGranuleBytes, &range);
  EXPECT_EQ(map.find(va), nullptr);
}

// The nearest entry at or before an address, against a map that is searched; dense, sparse, and over the
// borders of words, groups and tables.
TEST(AddressMap, FindsWhatLiesBefore) {
  AddressMap& map = AddressMap::instance();
  std::mt19937_64 random(7);
  const uint64_t base = uint64_t{91} << 33;
  std::vector<CachedRange> ranges(400);
  std::map<uint64_t, CachedRange*> entered;
  const auto nearest = [&](uint64_t va, uint64_t most_bytes) {
    CachedRange* found = nullptr;
    map.find_before(va, most_bytes, [&](CachedRange& range) {
      found = &range;
      return true;
    });
    return found;
  };
  for (int step = 0; step < 20000; ++step) {
    const uint64_t spread =
        random() % 3 == 0 ? uint64_t{40} << 30 : (random() % 2 == 0 ? 80 * kGranuleBytes : kPageBytes * 64);
    const uint64_t va = base + random() % spread / kGranuleBytes * kGranuleBytes;
    if (entered.size() < ranges.size() / 2 || random() % 2 == 0) {
      CachedRange* range = &ranges[random() % ranges.size()];
      ASSERT_TRUE(map.set(va, 1, range));
      entered[va] = range;
    } else {
      const auto gone = std::next(entered.begin(), static_cast<ptrdiff_t>(random() % entered.size()));
      map.clear_if(gone->first, gone->second);
      entered.erase(gone);
    }
    const uint64_t asked = base + random() % (uint64_t{41} << 30);
    const auto after = entered.upper_bound(asked);
    CachedRange* expected = after == entered.begin() ? nullptr : std::prev(after)->second;
    ASSERT_EQ(nearest(asked, uint64_t{64} << 30), expected) << step;
  }
  // In order, and no further than asked for.
  std::vector<CachedRange*> all;
  map.find_before(base + (uint64_t{41} << 30), uint64_t{41} << 30, [&](CachedRange& range) {
    all.push_back(&range);
    return false;
  });
  std::vector<CachedRange*> backwards;
  for (auto entry = entered.rbegin(); entry != entered.rend(); ++entry) backwards.push_back(entry->second);
  EXPECT_EQ(all, backwards);
  for (const auto& [va, range] : entered) map.clear_if(va, range);
  EXPECT_EQ(nearest(base + (uint64_t{41} << 30), uint64_t{1} << 40), nullptr);
}

// 32 million entries lie between; one after the other they would take minutes.
TEST(AddressMap, FindsWhatLiesFarBefore) {
  AddressMap& map = AddressMap::instance();
  CachedRange range;
  const uint64_t va = uint64_t{101} << 33;
  ASSERT_TRUE(map.set(va, 1, &range));
  CachedRange guide;
  for (uint64_t gib = 4; gib <= 512; gib += 4) {  // tables that are there, with nothing in them
    ASSERT_TRUE(map.set(va + (gib << 30), 1, &guide));
    map.clear_if(va + (gib << 30), &guide);
  }
  int found = 0;
  for (int i = 0; i < 10000; ++i)
    map.find_before(va + (uint64_t{512} << 30), uint64_t{1} << 40,
                    [&](CachedRange& at) { return found += &at == &range, true; });
  EXPECT_EQ(found, 10000);
  map.clear_if(va, &range);
}

// Threads that take the lock in bursts, so that a bias is given and taken away again and again.
template <typename AnyMutex>
void expect_exclusion() {
  AnyMutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int burst = 0; burst < 20; ++burst) {
        for (int i = 0; i < 1000; ++i) {
          const Lock lock(mutex);
          ++count;
        }
        if (burst % 4 == t) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 80000);
}

TEST(Mutex, ExcludesUnderContention) {
  expect_exclusion<Mutex>();
}

TEST(BiasedMutex, ExcludesUnderContention) {
  // A thread that loses the bias at a bad moment is rare: many short fights under TSan, which sees every one
  // of them.
  for (int repeat = 0; repeat < 30; ++repeat) expect_exclusion<BiasedMutex>();
}

TEST(BiasedMutex, GoesBackAndForthBetweenTwoThreads) {
  // As a stream used by a forward pass on one thread and a backward pass on another.
  BiasedMutex mutex;
  int64_t count = 0;
  std::atomic<int> turn{0};
  const auto work = [&](int mine) {
    for (int pass = 0; pass < 20; ++pass) {
      while (turn.load() % 2 != mine) std::this_thread::yield();
      for (int i = 0; i < 5000; ++i) {
        const Lock lock(mutex);
        ++count;
      }
      turn.fetch_add(1);
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  EXPECT_EQ(count, 200000);
}

}  // namespace
}  // namespace spillway
