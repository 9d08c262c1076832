#include "allocator/listing.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stats/tracer.h"
#include "tests/support/arena_parts.h"
#include "tests/support/heaps.h"
#include "tests/support/seeded.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

template <typename Kind>
class ListingKinds : public testing::Test {
 protected:
  // By address.
  std::vector<BlockRow> rows() {
    std::vector<BlockRow> listed;
    {
      const Lock lock(in.heap.mutex);
      list_blocks(in.heap, listed);
    }
    std::sort(listed.begin(), listed.end(),
              [](const BlockRow& a, const BlockRow& b) { return a.address < b.address; });
    return listed;
  }
  BlockRow row_at(uint64_t va) {
    for (const BlockRow& row : rows()) {
      if (row.address == va) return row;
    }
    ADD_FAILURE() << "no row";
    return {};
  }
  Result<BlockRow> find(uint64_t va) {
    const Lock lock(in.heap.mutex);
    return find_block(in.heap, in.range_of(va), va);
  }
  void quarantine(uint64_t va) {
    const Lock lock(in.heap.mutex);
    SPW_EXPECT_OK(in.heap.quarantine(in.range_of(va), va, nullptr));
  }

  static constexpr uint32_t kPages = 6;
  HeapOf<Kind> in{kPages, BlockGrain::kQuantum, "capacity:1GiB,backing:none,races:off"};
};
TYPED_TEST_SUITE(ListingKinds, StoreKinds, KindName);

// ---- Blocks

TYPED_TEST(ListingKinds, EveryByteOfItsPagesIsListedOnce) {
  Random random(1);
  std::map<uint64_t, uint64_t> live;
  for (int step = 0; step < 300; ++step) {
    if (random() % 5 < 3) {
      const uint64_t bytes =
          random() % 2 == 0 ? 1 + random() % kLargestSmallBytes : 1 + random() % (2 * kMiB);
      if (const uint64_t va = this->in.allocate(bytes); va != 0) live[va] = bytes;
    } else if (!live.empty()) {
      const auto gone = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
      SPW_EXPECT_OK(this->in.free(gone->first));
      live.erase(gone);
    }
    const std::vector<BlockRow> rows = this->rows();
    std::map<uint64_t, uint64_t> listed;
    uint64_t total = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      total += rows[i].bytes;
      if (i > 0) {
        ASSERT_LE(rows[i - 1].address + rows[i - 1].bytes, rows[i].address);
      }
      if (rows[i].kind == BlockKind::kInactive) {
        ASSERT_EQ(rows[i].requested_bytes, 0u);
        continue;
      }
      ASSERT_EQ(rows[i].kind, BlockKind::kActiveAllocated);
      ASSERT_GE(rows[i].bytes, rows[i].requested_bytes);
      listed[rows[i].address] = rows[i].requested_bytes;
    }
    ASSERT_EQ(total, this->kPages * kPageBytes) << "step " << step;
    ASSERT_EQ(listed, live) << "step " << step;
  }
}

TYPED_TEST(ListingKinds, ABlockThatWaitsForItsStreamsIsPending) {
  const uint64_t large = this->in.allocate(3 * kMiB);
  const uint64_t small = this->in.allocate(700);
  for (const uint64_t va : {large, small}) {
    this->quarantine(va);
    for (const BlockRow& row : {this->row_at(va), this->find(va).value()}) {
      EXPECT_EQ(row.kind, BlockKind::kActivePendingFree);
      EXPECT_EQ(row.address, va);
      EXPECT_EQ(row.requested_bytes, va == large ? 3 * kMiB : 700);
      EXPECT_EQ(row.bytes, va == large ? 3 * kMiB : 1024);
    }
  }
}

TYPED_TEST(ListingKinds, WhatIsLeftOfASlabIsInactive) {
  // 5 slots of 12 KiB, and 4 KiB that no slot takes.
  const uint64_t va = this->in.allocate(12 << 10);
  const uint64_t slab = this->in.range_of(va).va;
  const uint64_t slot_bytes = this->find(va)->bytes;
  ASSERT_NE(kSlabBytes % slot_bytes, 0u);
  const BlockRow rest = this->row_at(slab + kSlabBytes / slot_bytes * slot_bytes);
  EXPECT_EQ(rest.kind, BlockKind::kInactive);
  EXPECT_EQ(rest.bytes, kSlabBytes % slot_bytes);
  EXPECT_EQ(this->row_at(slab + slot_bytes).kind, BlockKind::kInactive);
}

TYPED_TEST(ListingKinds, OnlyABlockThatBeginsThereIsFound) {
  const uint64_t large = this->in.allocate(3 * kMiB);
  const uint64_t small = this->in.allocate(700);
  const uint64_t freed = this->in.allocate(2 * kMiB);
  SPW_EXPECT_OK(this->in.free(freed));
  EXPECT_EQ(this->find(large)->kind, BlockKind::kActiveAllocated);
  EXPECT_EQ(this->find(large)->requested_bytes, 3 * kMiB);
  EXPECT_EQ(this->find(small)->bytes, 1024u);
  for (const uint64_t va : {large + kQuantumBytes, small + kQuantumBytes, small + 1024, freed})
    EXPECT_EQ(this->find(va).status().code(), SPW_ERROR_INVALID_POINTER);
  const HeapOf<TypeParam> other(0);
  const Lock lock(other.heap.mutex);
  for (const uint64_t va : {large, small})
    EXPECT_FALSE(find_block(other.heap, this->in.range_of(va), va).ok()) << "it is another heap's";
}

// ---- Checks

TYPED_TEST(ListingKinds, WhatIsCountedWrongIsNamed) {
  const uint64_t small = this->in.allocate(700);
  this->in.allocate(3 * kMiB);
  HeapCounters& counters = this->in.heap.counters;
  const auto expect_broken = [&](const std::string& text) {
    const Status status = this->in.validate();
    EXPECT_EQ(status.code(), SPW_ERROR_INTERNAL);
    EXPECT_NE(status.text().find("validate: " + text), std::string::npos) << status.text();
  };
  constexpr auto kPage = static_cast<int64_t>(kPageBytes);
  SPW_EXPECT_OK(this->in.validate());
  counters.on_pages(kPage);
  expect_broken("owned bytes");
  counters.on_pages(-kPage);
  counters.on_cached(kPage);
  expect_broken("cached free bytes");
  counters.on_cached(-kPage);
  counters.on_free_requested(SizePool::kSmall, 512);
  expect_broken("pending bytes");
  counters.on_free_completed(SizePool::kSmall, 0, 512);
  expect_broken("active bytes");
  counters.on_allocate(SizePool::kSmall, 0, 512);
  counters.on_allocate(SizePool::kSmall, 1, 0);
  expect_broken("requested bytes");
  counters.on_free(SizePool::kSmall, 1, 0);
  Slab& slab = *this->in.range_of(small).slab;
  ++slab.used;
  expect_broken("the slab at");
  --slab.used;
  SPW_EXPECT_OK(this->in.validate());
}

TYPED_TEST(ListingKinds, WhatIsUsedTwiceOrNotAtAllIsFound) {
  this->in.allocate(200 << 10);
  CachedRange& range = this->in.range_of(this->in.allocate(200 << 10));
  ASSERT_NE(range.head_page, kNoPage);
  ASSERT_GE(range.head_begin, 8) << "behind the first one, in its page";
  Page& page = this->in.of.store().page(range.head_page);
  const auto expect_broken = [&](const std::string& text) {
    const Status status = this->in.validate();
    EXPECT_NE(status.text().find(text), std::string::npos) << status.text();
  };
  --range.head_end;
  expect_broken("quanta, not its");
  ++range.head_end;
  const auto move = [&](int quanta) {
    range.head_begin = static_cast<uint16_t>(range.head_begin + quanta);
    range.head_end = static_cast<uint16_t>(range.head_end + quanta);
  };
  move(-8);
  expect_broken("share a quantum");
  move(16);
  expect_broken("calls used quanta free");
  move(-8);
  const QuantumInterval rest = *page.free_quanta.begin();
  page.free_quanta.take(rest.begin, rest.begin + 1);
  expect_broken("do not make a page");
  page.free_quanta.give(rest.begin, rest.begin + 1);
  SPW_EXPECT_OK(this->in.validate());
}

// ---- The trace

TEST(TraceEnd, TellsThatEveryBlockIsGone) {
  Tracer tracer;
  ArenaOptions options;
  options.tracer = &tracer;
  AllParts made("capacity:256MiB,completion:run-ahead", options);
  Heap& heap = made.heap(made.device.stream());
  made.give(heap, 4);
  const CachedRange& live = made.allocate(heap, 2);
  const CachedRange& freed = made.allocate(heap, 1);
  made.free(const_cast<CachedRange&>(freed));
  const uint64_t pending = HeapOf<VirtualMemory>::allocate_in(heap, 20'000);
  const uint64_t slot = HeapOf<VirtualMemory>::allocate_in(heap, 700);
  const uint64_t pending_slot = HeapOf<VirtualMemory>::allocate_in(heap, 900);
  const Lock lock(heap.mutex);
  for (const uint64_t va : {pending, pending_slot})
    SPW_EXPECT_OK(heap.quarantine(*AddressMap::instance().find(va), va, nullptr));
  std::vector<Tracer::Note> notes;
  std::vector<TraceRecord> records;
  tracer.collect(UINT64_MAX, notes, records);
  records.clear();
  trace_end(heap);
  tracer.collect(UINT64_MAX, notes, records);
  std::map<uint64_t, std::pair<TraceKind, uint64_t>> gone;
  for (const TraceRecord& record : records) gone[record.address] = {record.kind, record.requested_bytes};
  using Gone = std::map<uint64_t, std::pair<TraceKind, uint64_t>>;
  EXPECT_EQ(gone, (Gone{{live.va, {TraceKind::kFree, 2 * kPageBytes}},
                        {pending, {TraceKind::kFreeCompleted, 20'000}},
                        {slot, {TraceKind::kFree, 700}},
                        {pending_slot, {TraceKind::kFreeCompleted, 900}}}));
  EXPECT_EQ(records.size(), gone.size());
}

}  // namespace
}  // namespace spillway::test
