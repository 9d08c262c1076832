// The shadow of memory against a byte-by-byte model, on random accesses.
#include "sim/cuda/shadow.h"

#include <gtest/gtest.h>

#include <random>

namespace spillway::sim {
namespace {

constexpr size_t kBytes = 64;
constexpr TimelineId kTimelines = 3;

struct ModelByte {
  Access write;
  std::vector<Access> reads;
};

bool model_conflict(ModelByte& byte, bool write, const Access& by, const VectorClock& clock) {
  const auto conflicts = [&](const Access& earlier) {
    if (earlier.timeline == kNoTimeline) return false;
    if (earlier.same_grid(by)) return earlier.view != by.view;
    return !clock.reached(earlier.timeline, earlier.position);
  };
  bool found = conflicts(byte.write);
  if (write) {
    for (const Access& read : byte.reads) found = found || conflicts(read);
    byte.write = by;
    byte.reads.clear();
  } else {
    byte.reads.push_back(by);
  }
  return found;
}

TEST(Shadow, AgreesWithAModelOfEveryByte) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](size_t count) { return random() % count; };
    Shadow shadow;
    std::vector<ModelByte> model(kBytes);
    VectorClock clocks[kTimelines];
    uint64_t positions[kTimelines] = {};
    const VectorClock host;
    size_t conflicts = 0;
    for (int step = 0; step < 1000; ++step) {
      const auto timeline = static_cast<TimelineId>(draw(kTimelines));
      if (draw(4) == 0) clocks[timeline].join(clocks[draw(kTimelines)]);
      const Access by{timeline, ++positions[timeline], draw(2) * 4096};
      const size_t start = draw(kBytes);
      const size_t bytes = 1 + draw(kBytes - start);
      const bool write = draw(2) == 0;
      bool expected = false;
      for (size_t i = start; i < start + bytes; ++i) {
        expected = model_conflict(model[i], write, by, clocks[timeline]) || expected;
      }
      const Conflict found = shadow.access(start, bytes, write, by, clocks[timeline], host);
      ASSERT_EQ(found.kind != Conflict::Kind::kNone, expected) << "seed " << seed << " step " << step;
      conflicts += expected ? 1 : 0;
      clocks[timeline].raise(timeline, by.position);
    }
    ASSERT_GT(conflicts, 0u);
    ASSERT_LT(conflicts, 1000u);
  }
}

}  // namespace
}  // namespace spillway::sim
