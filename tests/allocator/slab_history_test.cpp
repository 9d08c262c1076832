#include "allocator/slab_history.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "allocator/cached_range.h"
#include "allocator/sequence_predictor.h"

namespace spillway::test {
namespace {

// A program that serves large requests in the same order in every pass, and opens slabs between them: as many
// before request i as the i-th figure says.
class Program {
 public:
  explicit Program(std::vector<int> openings) : openings_(std::move(openings)), large_(openings_.size()) {
    size_t slabs = 0;
    for (const int count : openings_) slabs += static_cast<size_t>(count);
    slabs_.resize(slabs);
  }

  // Answers for how many openings the guess was not the slab of the pass before.
  int pass() {
    int wrong = 0;
    size_t next_slab = 0;
    for (size_t i = 0; i < openings_.size(); ++i) {
      const auto key = static_cast<uint32_t>(i + 1);
      if (sequence.guess(key) == nullptr) sequence.search(key, nullptr);
      sequence.append(key, &large_[i], nullptr);
      for (int opened = 0; opened < openings_[i]; ++opened) {
        CachedRange* slab = &slabs_[next_slab++];
        wrong += history.guess(sequence) != slab;
        history.append(sequence, slab);
      }
    }
    return wrong;
  }
  CachedRange& slab(size_t at) { return slabs_[at]; }

  SequencePredictor sequence;
  SlabHistory history;

 private:
  std::vector<int> openings_;
  std::vector<CachedRange> large_;
  std::vector<CachedRange> slabs_;
};

TEST(SlabHistory, NothingIsKnownBeforeTheProgramRepeatsItself) {
  const SequencePredictor sequence;
  SlabHistory history;
  EXPECT_EQ(history.guess(sequence), nullptr);
  CachedRange range;
  EXPECT_FALSE(history.opened_now(sequence, &range));
  history.append(sequence, &range);
  EXPECT_EQ(history.guess(sequence), nullptr);
}

TEST(SlabHistory, ARepeatedPassOpensTheSameSlabs) {
  Program program({0, 0, 0, 1, 0, 0, 2, 0, 5, 0, 1, 1, 0, 0, 0, 3, 0});
  EXPECT_EQ(program.pass(), 13);
  for (int pass = 1; pass < 4; ++pass) EXPECT_EQ(program.pass(), 0) << pass;
}

TEST(SlabHistory, ARecycledRangeIsNotGuessed) {
  Program program({0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0});
  program.pass();
  ++program.slab(0).generation;
  EXPECT_EQ(program.pass(), 1);
}

TEST(SlabHistory, TellsWhetherASlabWasOpenedSinceTheLastLargeRequest) {
  SequencePredictor sequence;
  SlabHistory history;
  CachedRange large;
  CachedRange first;
  CachedRange second;
  sequence.append(7, &large, nullptr);
  history.append(sequence, &first);
  EXPECT_TRUE(history.opened_now(sequence, &first));
  EXPECT_FALSE(history.opened_now(sequence, &second));
  EXPECT_EQ(first.last_use, sequence.now());
  history.append(sequence, &second);
  EXPECT_FALSE(history.opened_now(sequence, &first));
  sequence.append(7, &large, nullptr);
  EXPECT_FALSE(history.opened_now(sequence, &second));
}

TEST(SlabHistory, ForgetsAllButTheLastOpenings) {
  constexpr int kLarge = 64;
  constexpr int kOpeningsKept = static_cast<int>(SlabHistory::kMost) / kLarge;
  // A pass opens twice as many slabs as the history keeps, so the one to be opened next is always forgotten.
  Program program(std::vector<int>(kLarge, 2 * kOpeningsKept));
  EXPECT_EQ(program.pass(), kLarge * 2 * kOpeningsKept);
  const uint64_t full = program.history.metadata_bytes();
  EXPECT_EQ(program.pass(), kLarge * 2 * kOpeningsKept);
  EXPECT_EQ(program.history.metadata_bytes(), full);

  // Where two passes fit, all of a pass is guessed, once three sizes in a row tell where the program is.
  Program smaller(std::vector<int>(kLarge, kOpeningsKept / 2));
  smaller.pass();
  for (int pass = 1; pass < 6; ++pass) {
    EXPECT_LE(smaller.pass(), pass == 1 ? 2 * (kOpeningsKept / 2) : 0) << pass;
  }
}

}  // namespace
}  // namespace spillway::test
