#include "allocator/known_streams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

CUcontext context(uint64_t number) {
  return reinterpret_cast<CUcontext>(number * 0x100);
}
CUstream handle(uint64_t number) {
  return reinterpret_cast<CUstream>(number * 0x10);
}

std::vector<CUstream> non_blocking(const KnownStreams& streams, CUcontext in) {
  std::vector<CUstream> found = streams.non_blocking(in);
  std::sort(found.begin(), found.end());
  return found;
}

TEST(KnownStreams, AreOfTheContextTheyWereMadeIn) {
  KnownStreams streams;
  EXPECT_EQ(streams.context_of(handle(1)), nullptr);
  EXPECT_FALSE(streams.add(context(1), handle(1), CU_STREAM_DEFAULT));
  EXPECT_FALSE(streams.add(context(2), handle(2), CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(streams.context_of(handle(1)), context(1));
  EXPECT_EQ(streams.context_of(handle(2)), context(2));
  streams.remove(handle(1));
  EXPECT_EQ(streams.context_of(handle(1)), nullptr);
  EXPECT_EQ(streams.context_of(handle(2)), context(2));
  streams.remove(handle(1));  // a second time is fine
}

TEST(KnownStreams, OnlyThoseThatTheLegacyStreamDoesNotWaitForAreListed) {
  KnownStreams streams;
  streams.add(context(1), handle(1), CU_STREAM_DEFAULT);
  streams.add(context(1), handle(2), CU_STREAM_NON_BLOCKING);
  streams.add(context(1), handle(3), CU_STREAM_NON_BLOCKING);
  streams.add(context(2), handle(4), CU_STREAM_NON_BLOCKING);
  EXPECT_EQ(non_blocking(streams, context(1)), (std::vector<CUstream>{handle(2), handle(3)}));
  EXPECT_EQ(non_blocking(streams, context(2)), std::vector<CUstream>{handle(4)});
  EXPECT_TRUE(non_blocking(streams, context(3)).empty());
}

TEST(KnownStreams, OfAContextAllGoWithIt) {
  KnownStreams streams;
  streams.add(context(1), handle(1), CU_STREAM_NON_BLOCKING);
  streams.add(context(2), handle(2), CU_STREAM_NON_BLOCKING);
  streams.add(context(1), handle(3), CU_STREAM_DEFAULT);
  streams.remove_all(context(1));
  EXPECT_EQ(streams.context_of(handle(1)), nullptr);
  EXPECT_EQ(streams.context_of(handle(3)), nullptr);
  EXPECT_EQ(streams.context_of(handle(2)), context(2));
  EXPECT_FALSE(streams.add(context(2), handle(1), 0)) << "its end was seen";
}

TEST(KnownStreams, AHandleThatComesAgainUnseenIsTold) {
  KnownStreams streams;
  streams.add(context(1), handle(1), CU_STREAM_NON_BLOCKING);
  EXPECT_TRUE(streams.add(context(2), handle(1), CU_STREAM_DEFAULT));
  EXPECT_EQ(streams.context_of(handle(1)), context(2)) << "as the newer one is";
  EXPECT_TRUE(non_blocking(streams, context(1)).empty());
  streams.remove(handle(1));
  EXPECT_FALSE(streams.add(context(1), handle(1), CU_STREAM_NON_BLOCKING));
}

TEST(KnownStreams, AgreeWithAModel) {
  struct Row {
    CUcontext context;
    unsigned flags;
  };
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    KnownStreams streams;
    std::map<CUstream, Row> model;
    Random random(seed);
    for (int step = 0; step < 2000; ++step) {
      const CUstream stream = handle(1 + random() % 8);
      const CUcontext in = context(1 + random() % 3);
      const uint32_t what = random() % 10;
      if (what < 5) {
        const unsigned flags = random() % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
        ASSERT_EQ(streams.add(in, stream, flags), model.count(stream) > 0);
        model[stream] = {in, flags};
      } else if (what < 8) {
        streams.remove(stream);
        model.erase(stream);
      } else {
        streams.remove_all(in);
        std::erase_if(model, [&](const auto& entry) { return entry.second.context == in; });
      }
      std::vector<CUstream> expected;
      for (const auto& [known, row] : model) {
        ASSERT_EQ(streams.context_of(known), row.context);
        if (row.context == in && row.flags == CU_STREAM_NON_BLOCKING) expected.push_back(known);
      }
      ASSERT_EQ(non_blocking(streams, in), expected) << "seed " << seed << ", step " << step;
    }
  }
}

TEST(KnownStreams, ThreadsMayTellOfTheirsAtATime) {
  KnownStreams streams;
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; i <= 500; ++i) {
        const CUstream mine = handle(1000 * t + i);
        EXPECT_FALSE(streams.add(context(t), mine, CU_STREAM_NON_BLOCKING));
        EXPECT_EQ(streams.context_of(mine), context(t));
        if (i % 2 == 0) streams.remove(mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t t = 1; t <= 4; ++t) EXPECT_EQ(non_blocking(streams, context(t)).size(), 250u);
}

}  // namespace
}  // namespace spillway::test
