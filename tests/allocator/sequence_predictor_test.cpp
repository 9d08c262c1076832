#include "allocator/sequence_predictor.h"

#include <gtest/gtest.h>

#include <vector>

#include "allocator/cached_range.h"

namespace spillway::test {
namespace {

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

}  // namespace
}  // namespace spillway::test
