#include "stats/trace_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "stats/tracer.h"

namespace spillway {
namespace {

TEST(Tracer, GivesWhatManyThreadsWroteOnceEachRingInOrder) {
  constexpr int kThreads = 4;
  constexpr uint64_t kEvents = 3 * TraceRing::kCapacity;
  Tracer tracer;
  std::vector<TraceRing*> rings;
  for (int i = 0; i < kThreads; ++i) rings.push_back(tracer.add_ring(i));
  std::atomic<int> at_work{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t event = 1; event <= kEvents; ++event) {
        rings[static_cast<size_t>(i)]->write(TraceKind::kAllocate, event, 2 * event, 3 * event);
      }
      at_work.fetch_sub(1);
    });
  }
  std::vector<uint64_t> last(kThreads, 0);
  std::vector<uint64_t> counts(kThreads, 0);
  std::vector<Tracer::Note> notes;
  std::vector<TraceRecord> records;
  for (bool done = false; !done;) {
    done = at_work.load() == 0;
    tracer.collect(UINT64_MAX, notes, records);
    for (const TraceRecord& record : records) {
      const auto ring = static_cast<uint8_t>(record.device);
      ASSERT_GT(record.address, last[ring]);
      ASSERT_EQ(record.requested_bytes, 2 * record.address);
      ASSERT_EQ(record.block_bytes, 3 * record.address);
      last[ring] = record.address;
      ++counts[ring];
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t dropped = 0;
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_EQ(counts[static_cast<size_t>(i)] + rings[static_cast<size_t>(i)]->dropped(), kEvents);
    dropped += rings[static_cast<size_t>(i)]->dropped();
  }
  EXPECT_EQ(tracer.dropped(), dropped);
}

TEST(Tracer, DropsTheNewestWhereNobodyReads) {
  Tracer tracer;
  TraceRing* ring = tracer.add_ring(0);
  for (uint64_t event = 0; event < TraceRing::kCapacity + 7; ++event)
    ring->write(TraceKind::kFree, event, 0, 0);
  EXPECT_EQ(ring->dropped(), 7u);
  std::vector<Tracer::Note> notes;
  std::vector<TraceRecord> records;
  tracer.collect(UINT64_MAX, notes, records);
  ASSERT_EQ(records.size(), TraceRing::kCapacity);
  EXPECT_EQ(records.front().address, 0u);
  EXPECT_EQ(records.back().address, TraceRing::kCapacity - 1);
  ring->write(TraceKind::kFree, 1, 0, 0);
  EXPECT_EQ(ring->dropped(), 7u);
}

TEST(Tracer, TakesNothingFromAfterTheGivenTime) {
  Tracer tracer;
  TraceRing* ring = tracer.add_ring(0);
  ring->write(TraceKind::kAllocate, 1, 0, 0);
  const uint64_t between = trace_ticks(tracer.ticks_are_steady()) + 1;
  while (trace_ticks(tracer.ticks_are_steady()) <= between) {
  }
  ring->write(TraceKind::kAllocate, 2, 0, 0);
  std::vector<Tracer::Note> notes;
  std::vector<TraceRecord> records;
  tracer.collect(between, notes, records);
  ASSERT_EQ(records.size(), 1u);
  tracer.collect(UINT64_MAX, notes, records);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records.front().address, 2u);
}

TEST(Tracer, AStackIsOfOneAllocation) {
  Tracer tracer;
  TraceRing* ring = tracer.add_ring(0);
  trace_thread.stack = 5;
  ring->write(TraceKind::kFree, 1, 0, 0);
  ring->write(TraceKind::kAllocate, 2, 0, 0);
  ring->write(TraceKind::kAllocate, 3, 0, 0);
  std::vector<Tracer::Note> notes;
  std::vector<TraceRecord> records;
  tracer.collect(UINT64_MAX, notes, records);
  EXPECT_EQ(records[0].stack, 0u);
  EXPECT_EQ(records[1].stack, 5u);
  EXPECT_EQ(records[2].stack, 0u);
}

TEST(Tracer, TagsAreNamedOnce) {
  Tracer tracer;
  const uint16_t weights = tracer.tag("weights");
  EXPECT_NE(weights, 0);
  EXPECT_NE(tracer.tag("activations"), weights);
  EXPECT_EQ(tracer.tag("weights"), weights);
  EXPECT_EQ(tracer.tag(""), 0);
}

TEST(StackTable, KeepsEachStackOnceAndRefusesWhenFull) {
  StackTable table;
  const uint32_t first = table.add(17, {{0, "f", "a.py", 1}});
  EXPECT_NE(first, 0u);
  EXPECT_EQ(table.find(17), first);
  EXPECT_EQ(table.add(17, {{0, "g", "a.py", 2}}), first);
  EXPECT_EQ(table.find(18), 0u);
  ASSERT_EQ(table.take_added().size(), 1u);
  EXPECT_TRUE(table.take_added().empty());
  // All of these begin to look at the same slot.
  uint32_t refused = 0;
  for (uint64_t i = 1; i <= 100; ++i) refused += table.add(i * StackTable::kCapacity, {}) == 0 ? 1 : 0;
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(table.refused(), refused);
}

}  // namespace
}  // namespace spillway
