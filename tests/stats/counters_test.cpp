// The counters against the obvious way to keep them: one set of sums and peaks, brought up to date at every
// step.
#include "stats/counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace spillway {
namespace {

constexpr int64_t kPage = 2 << 20;
constexpr int64_t kSlab = 64 << 10;

// Every gauge as one running sum with its peak.
class Model {
 public:
  void change(Metric metric, SizePool pool, int64_t delta) {
    const Row row = pool == SizePool::kSmall ? Row::kSmall : Row::kLarge;
    now_[gauge(metric, row)] += delta;
    now_[gauge(metric, Row::kAll)] += delta;
  }
  void end_of_operation() {
    for (size_t i = 0; i < kGauges; ++i) peak_[i] = std::max(peak_[i], now_[i]);
  }
  void reset_peaks() { peak_ = now_; }

  void expect_equal(const DeviceStats& stats) const {
#define SPW_STATS_MEMBER(name)                                         \
  expect_row(#name, Metric::name, Row::kAll, stats.name.all);          \
  expect_row(#name, Metric::name, Row::kSmall, stats.name.small_pool); \
  expect_row(#name, Metric::name, Row::kLarge, stats.name.large_pool);
    SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  }

 private:
  void expect_row(const char* name, Metric metric, Row row, const spw_stat& stat) const {
    const std::string what = std::string(name) + " row " + std::to_string(static_cast<int>(row));
    EXPECT_EQ(stat.current, now_[gauge(metric, row)]) << what;
    EXPECT_EQ(stat.peak, peak_[gauge(metric, row)]) << what;
    EXPECT_EQ(stat.allocated - stat.freed, stat.current) << what;
  }

  Gauges now_{};
  Gauges peak_{};
};

struct Block {
  SizePool pool;
  int64_t requested, bytes, pages;
  bool pending;
};

// One heap and what is live in it. Large blocks have pages of their own, small ones are in slabs.
struct Heap {
  explicit Heap(DeviceCounters& device) : counters(device) {}
  HeapCounters counters;
  std::vector<Block> blocks;
  int64_t slabs = 0;
};

class Program {
 public:
  Program(DeviceCounters& device, Model& model) : device_(device), model_(model) {}

  void step(Heap& heap, std::mt19937_64& random) {
    switch (random() % 16) {
      case 0:
        return carve_slab(heap);
      case 1:
        return give_slab_back(heap);
      case 2: {
        const auto pieces = static_cast<int64_t>(random() % 5) - 2;
        heap.counters.on_fragments(pieces);
        model_.change(Metric::inactive_split, SizePool::kLarge, pieces);
        return model_.end_of_operation();
      }
      case 3: {
        const int64_t pages = (static_cast<int64_t>(random() % 3) - 1) * kPage;
        device_.on_reserve(pages, pages / kPage);
        model_.change(Metric::reserved_bytes, SizePool::kLarge, pages);
        model_.change(Metric::segment, SizePool::kLarge, pages / kPage);
        return model_.end_of_operation();
      }
      default:
        break;
    }
    if (heap.blocks.empty() || random() % 100 < 52) return allocate(heap, random);
    const size_t victim = random() % heap.blocks.size();
    free(heap, victim, random() % 4 == 0);
  }

  void free_all(Heap& heap) {
    while (!heap.blocks.empty()) free(heap, heap.blocks.size() - 1, false);
    while (heap.slabs > 0) give_slab_back(heap);
  }

 private:
  void allocate(Heap& heap, std::mt19937_64& random) {
    Block block{SizePool::kLarge, 0, 0, 0, false};
    if (random() % 2 == 0) {
      block.pool = SizePool::kSmall;
      block.requested = 1 + static_cast<int64_t>(random() % 1024);
      block.bytes = 1024;
    } else {
      block.requested = 1 + static_cast<int64_t>(random() % (4 * kPage));
      block.bytes = (block.requested + 511) / 512 * 512;
      block.pages = (block.bytes + kPage - 1) / kPage * kPage;
    }
    heap.counters.on_allocate(block.pool, static_cast<uint64_t>(block.requested),
                              static_cast<uint64_t>(block.bytes), static_cast<uint64_t>(block.pages));
    change_allocated(block, 1);
    change_active(block, 1);
    model_.end_of_operation();
    heap.blocks.push_back(block);
  }

  void free(Heap& heap, size_t index, bool later) {
    Block block = heap.blocks[index];
    if (later && !block.pending) {
      heap.counters.on_free_requested(block.pool, static_cast<uint64_t>(block.bytes));
      change_allocated(block, -1);
      heap.blocks[index].pending = true;
      return model_.end_of_operation();
    }
    if (block.pending) {
      heap.counters.on_free_completed(block.pool, static_cast<uint64_t>(block.requested),
                                      static_cast<uint64_t>(block.bytes), static_cast<uint64_t>(block.pages));
    } else {
      heap.counters.on_free(block.pool, static_cast<uint64_t>(block.requested),
                            static_cast<uint64_t>(block.bytes), static_cast<uint64_t>(block.pages));
      change_allocated(block, -1);
    }
    change_active(block, -1);
    model_.end_of_operation();
    heap.blocks[index] = heap.blocks.back();
    heap.blocks.pop_back();
  }

  void carve_slab(Heap& heap) {
    heap.counters.on_cached(-kSlab);
    model_.change(Metric::inactive_split_bytes, SizePool::kLarge, kSlab);
    model_.end_of_operation();
    heap.counters.on_slabs(kSlab);
    move_to_small_pool(kSlab);
    ++heap.slabs;
  }

  void give_slab_back(Heap& heap) {
    if (heap.slabs == 0) return;
    heap.counters.on_slabs(-kSlab);
    move_to_small_pool(-kSlab);
    heap.counters.on_cached(kSlab);
    model_.change(Metric::inactive_split_bytes, SizePool::kLarge, -kSlab);
    model_.end_of_operation();
    --heap.slabs;
  }

  void move_to_small_pool(int64_t bytes) {
    for (const Metric metric : {Metric::reserved_bytes, Metric::inactive_split_bytes}) {
      model_.change(metric, SizePool::kSmall, bytes);
      model_.change(metric, SizePool::kLarge, -bytes);
    }
    model_.end_of_operation();
  }

  void change_allocated(const Block& block, int64_t sign) {
    model_.change(Metric::allocation, block.pool, sign);
    model_.change(Metric::allocated_bytes, block.pool, sign * block.bytes);
  }

  void change_active(const Block& block, int64_t sign) {
    model_.change(Metric::active, block.pool, sign);
    model_.change(Metric::active_bytes, block.pool, sign * block.bytes);
    model_.change(Metric::requested_bytes, block.pool, sign * block.requested);
    model_.change(Metric::inactive_split_bytes, block.pool, -sign * block.bytes);
    model_.change(Metric::inactive_split_bytes, SizePool::kLarge, sign * block.pages);
  }

  DeviceCounters& device_;
  Model& model_;
};

TEST(Counters, OneBlockFromReserveToCompletedFree) {
  DeviceCounters device;
  HeapCounters heap(device);
  device.on_reserve(kPage, 1);
  heap.on_pages(kPage);
  heap.on_allocate(SizePool::kLarge, 1000, 1024, kPage);
  DeviceStats stats = device.snapshot();
  EXPECT_EQ(stats.allocation.all.current, 1);
  EXPECT_EQ(stats.allocated_bytes.large_pool.current, 1024);
  EXPECT_EQ(stats.requested_bytes.all.current, 1000);
  EXPECT_EQ(stats.reserved_bytes.all.current, kPage);
  EXPECT_EQ(stats.inactive_split_bytes.all.current, kPage - 1024);
  EXPECT_EQ(stats.cached_free_bytes, 0);

  heap.on_free_requested(SizePool::kLarge, 1024);
  stats = device.snapshot();
  EXPECT_EQ(stats.allocation.all.current, 0);
  EXPECT_EQ(stats.active.all.current, 1);
  EXPECT_EQ(stats.pending_blocks, 1);
  EXPECT_EQ(stats.pending_bytes, 1024);

  heap.on_free_completed(SizePool::kLarge, 1000, 1024, kPage);
  stats = device.snapshot();
  EXPECT_EQ(stats.active.all.current, 0);
  EXPECT_EQ(stats.pending_bytes, 0);
  EXPECT_EQ(stats.inactive_split_bytes.all.current, 0);
  EXPECT_EQ(stats.inactive_split_bytes.all.peak, kPage - 1024);
  EXPECT_EQ(stats.cached_free_bytes, kPage);
  EXPECT_EQ(stats.active_bytes.all.peak, 1024);
  EXPECT_EQ(stats.active_bytes.all.allocated, 1024);
  EXPECT_EQ(stats.active_bytes.all.freed, 1024);
}

class RandomPrograms : public testing::TestWithParam<int> {};

TEST_P(RandomPrograms, EqualTheModelWhateverTheNumberOfHeaps) {
  const int heaps = GetParam();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    DeviceCounters device;
    Model model;
    Program program(device, model);
    std::vector<std::unique_ptr<Heap>> all;
    all.reserve(static_cast<size_t>(heaps));
    for (int i = 0; i < heaps; ++i) all.push_back(std::make_unique<Heap>(device));
    for (int step = 0; step < 4000; ++step) {
      program.step(*all[random() % all.size()], random);
      // Looking ends a stop, so how often one looks decides which of the two ways of counting is tested.
      if (step % (seed % 2 == 0 ? 7 : 501) == 0) model.expect_equal(device.snapshot());
      if (step % 1999 == 1998) {
        device.reset_peaks();
        model.reset_peaks();
      }
      if (HasFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    for (auto& heap : all) program.free_all(*heap);
    model.expect_equal(device.snapshot());
    all.clear();
    model.expect_equal(device.snapshot());
  }
}

INSTANTIATE_TEST_SUITE_P(Heaps, RandomPrograms, testing::Values(1, 2, 3, 8));

// Threads count in heaps of their own; a mutex around model and counters fixes the order that the model sees.
TEST(Counters, AHeapThatComesBackToItsPeakStopsNobodyWhateverElseExists) {
  DeviceCounters device;
  HeapCounters busy(device);
  device.on_reserve(kPage, 1);
  busy.on_pages(kPage);
  busy.on_slabs(kSlab);
  const auto pair = [](HeapCounters& heap) {
    heap.on_allocate(SizePool::kSmall, 512, 512);
    heap.on_free(SizePool::kSmall, 512, 512);
  };
  for (int i = 0; i < 1000; ++i) pair(busy);
  HeapCounters idle(device);
  pair(idle);
  for (int i = 0; i < 100'000; ++i) pair(busy);
  EXPECT_LT(device.counted_stopped(), 10'000U);
}

TEST(CountersThreads, EqualTheModelInTheOrderOfTheOperations) {
  constexpr int kThreads = 4;
  DeviceCounters device;
  Model model;
  Program program(device, model);
  std::mutex order;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t) + 77);
      std::unique_lock lock(order);
      Heap heap(device);
      for (int step = 0; step < 1500; ++step) {
        program.step(heap, random);
        if (random() % 256 == 0) model.expect_equal(device.snapshot());
        if (random() % 8 == 0) {
          lock.unlock();
          std::this_thread::yield();
          lock.lock();
        }
      }
      program.free_all(heap);
    });
  }
  for (auto& thread : threads) thread.join();
  model.expect_equal(device.snapshot());
}

// Each thread owns some bytes and moves them from heap to heap, freeing before it allocates: however the
// threads interleave, the true sum never passes the number of threads' bytes. A peak put together from
// moments that never were together would.
TEST(CountersThreads, NoPeakThatNeverWas) {
  constexpr int kThreads = 4;
  constexpr int kHeaps = 3;
  constexpr uint64_t kBytes = 4096;
  DeviceCounters device;
  std::array<std::mutex, kHeaps> locks;
  std::vector<std::unique_ptr<HeapCounters>> heaps;
  heaps.reserve(static_cast<size_t>(kHeaps));
  for (int i = 0; i < kHeaps; ++i) heaps.push_back(std::make_unique<HeapCounters>(device));
  std::barrier everyone(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t) + 5);
      size_t at = static_cast<size_t>(t) % kHeaps;
      const auto allocate = [&](size_t heap) {
        const std::lock_guard lock(locks[heap]);
        heaps[heap]->on_allocate(SizePool::kLarge, kBytes, kBytes);
      };
      const auto free = [&](size_t heap) {
        const std::lock_guard lock(locks[heap]);
        heaps[heap]->on_free(SizePool::kLarge, kBytes, kBytes);
      };
      allocate(at);
      everyone.arrive_and_wait();
      for (int i = 0; i < 20000; ++i) {
        free(at);
        if (random() % 64 == 0) device.snapshot();
        at = random() % kHeaps;
        allocate(at);
      }
      everyone.arrive_and_wait();
      free(at);
    });
  }
  for (auto& thread : threads) thread.join();
  const DeviceStats stats = device.snapshot();
  EXPECT_EQ(stats.active_bytes.all.peak, kThreads * static_cast<int64_t>(kBytes));
  EXPECT_EQ(stats.active.large_pool.peak, kThreads);
  EXPECT_EQ(stats.requested_bytes.all.peak, kThreads * static_cast<int64_t>(kBytes));
  EXPECT_EQ(stats.active.all.current, 0);
}

// All threads hold their bytes at once between two barriers: that moment may not be missed.
TEST(CountersThreads, NoPeakMissed) {
  constexpr int kThreads = 4;
  DeviceCounters device;
  std::barrier everyone(kThreads);
  std::atomic<int64_t> expected{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      HeapCounters heap(device);
      for (uint64_t round = 1; round <= 300; ++round) {
        const uint64_t bytes = round * 512 + static_cast<uint64_t>(t) * 1024;
        heap.on_allocate(SizePool::kLarge, bytes, bytes);
        expected.fetch_add(static_cast<int64_t>(bytes));
        everyone.arrive_and_wait();
        if (t == 0) {
          EXPECT_EQ(device.snapshot().active_bytes.all.current, expected.load());
        }
        everyone.arrive_and_wait();
        heap.on_free(SizePool::kLarge, bytes, bytes);
        expected.fetch_sub(static_cast<int64_t>(bytes));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // Each round allocates more than the last, so the highest moment is the last round's.
  EXPECT_EQ(device.snapshot().active_bytes.all.peak, 4 * 300 * 512 + (0 + 1 + 2 + 3) * 1024);
}

TEST(CountersThreads, SnapshotsAreConsistentWhileOthersCount) {
  DeviceCounters device;
  std::atomic<bool> done{false};
  std::barrier started(4);
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      HeapCounters heap(device);
      started.arrive_and_wait();
      std::mt19937_64 random(static_cast<uint64_t>(t));
      while (!done.load()) {
        const uint64_t bytes = 512 * (1 + random() % 64);
        heap.on_allocate(SizePool::kLarge, bytes - 1, bytes, kPage);
        heap.on_free_requested(SizePool::kLarge, bytes);
        heap.on_free_completed(SizePool::kLarge, bytes - 1, bytes, kPage);
      }
    });
  }
  started.arrive_and_wait();
  int64_t held_at_reset = 0;
  for (int i = 0; i < 500 && !HasFailure(); ++i) {
    const DeviceStats stats = device.snapshot();
    EXPECT_EQ(stats.requested_bytes.all.current, stats.active_bytes.all.current - stats.active.all.current);
    EXPECT_LE(stats.allocated_bytes.all.current, stats.active_bytes.all.current);
    EXPECT_LE(stats.active_bytes.all.current, stats.active_bytes.all.peak);
    EXPECT_EQ(stats.active_bytes.all.current + stats.inactive_split_bytes.all.current,
              stats.active.all.current * kPage);
    EXPECT_EQ(stats.pending_blocks, stats.active.all.current - stats.allocation.all.current);
    if (i == 250) {
      device.reset_accumulated();
      const spw_stat active = device.snapshot().active.all;
      held_at_reset = active.current - (active.allocated - active.freed);
    }
    EXPECT_EQ(stats.active.all.allocated - stats.active.all.freed,
              stats.active.all.current - (i > 250 ? held_at_reset : 0));
    std::this_thread::yield();
  }
  done.store(true);
  for (auto& thread : threads) thread.join();
}

TEST(Counters, MovesBetweenPoolsAreNotInTheTotalsOfAll) {
  DeviceCounters device;
  HeapCounters heap(device);
  device.on_reserve(kPage, 1);
  heap.on_cached(-kPage);
  heap.on_slabs(kSlab);
  heap.on_slabs(-kSlab);
  const DeviceStats stats = device.snapshot();
  EXPECT_EQ(stats.reserved_bytes.all.allocated, kPage);
  EXPECT_EQ(stats.reserved_bytes.all.freed, 0);
  EXPECT_EQ(stats.reserved_bytes.small_pool.allocated, kSlab);
  EXPECT_EQ(stats.reserved_bytes.small_pool.freed, kSlab);
  EXPECT_EQ(stats.reserved_bytes.large_pool.allocated, kPage + kSlab);
  EXPECT_EQ(stats.reserved_bytes.large_pool.freed, kSlab);
  EXPECT_EQ(stats.inactive_split_bytes.all.current, kPage);
}

TEST(Counters, ResetOfTotalsLeavesCurrentAndPeak) {
  DeviceCounters device;
  HeapCounters heap(device);
  heap.on_allocate(SizePool::kSmall, 100, 512);
  heap.on_allocate(SizePool::kSmall, 100, 512);
  device.on_driver_call(DriverCall::kCreate, 3);
  device.on_rung(Rung::kOutOfMemory, true, 40);
  device.on_alloc_retry();
  device.on_host_wait();
  EXPECT_EQ(device.snapshot().num_ooms, 1);
  EXPECT_EQ(device.snapshot().num_device_alloc, 3);
  device.reset_accumulated();
  heap.on_free(SizePool::kSmall, 100, 512);
  const DeviceStats stats = device.snapshot();
  EXPECT_EQ(stats.active.all.current, 1);
  EXPECT_EQ(stats.active.all.peak, 2);
  EXPECT_EQ(stats.active.all.allocated, 0);
  EXPECT_EQ(stats.active.all.freed, 1);
  EXPECT_EQ(stats.num_ooms, 0);
  EXPECT_EQ(stats.num_alloc_retries, 0);
  EXPECT_EQ(stats.num_device_alloc, 0);
  EXPECT_EQ(stats.host_waits, 0);
  EXPECT_EQ(stats.rungs.out_of_memory.time_ns, 0);
}

TEST(Counters, TransfersChangeHeapsAndNothingElse) {
  DeviceCounters device;
  HeapCounters from(device);
  HeapCounters to(device);
  device.on_reserve(4 * kPage, 1);
  from.on_pages(4 * kPage);
  from.on_allocate(SizePool::kLarge, 512, 512, kPage);
  const DeviceStats before = device.snapshot();
  to.on_transfer(from, 3 * kPage);
  EXPECT_EQ(from.snapshot().owned_bytes, kPage);
  EXPECT_EQ(from.snapshot().cached_free_bytes, 0);
  EXPECT_EQ(from.snapshot().inactive_split_bytes, kPage - 512);
  EXPECT_EQ(to.snapshot().cached_free_bytes, 3 * kPage);
  const DeviceStats after = device.snapshot();
  EXPECT_EQ(after.cached_free_bytes, before.cached_free_bytes);
  EXPECT_EQ(after.inactive_split_bytes.all.peak, before.inactive_split_bytes.all.peak);
}

TEST(Counters, WhatIsInUseWhenItsMemoryGoesIsFreed) {
  DeviceCounters device;
  for (int context = 1; context <= 2; ++context) {
    {
      HeapCounters heap(device);
      HeapCounters other(device);
      device.on_reserve(2 * kPage, 1);
      heap.on_allocate(SizePool::kLarge, 1000, 1024, kPage, 1);
      other.on_allocate(SizePool::kLarge, 2000, 2048, kPage, 1);
    }
    device.on_memory_gone();
    const DeviceStats stats = device.snapshot();
    EXPECT_EQ(stats.active_bytes.all.current, 0);
    EXPECT_EQ(stats.active_bytes.all.peak, 1024 + 2048);
    EXPECT_EQ(stats.active_bytes.all.freed, context * (1024 + 2048));
    EXPECT_EQ(stats.reserved_bytes.all.current, 0);
    EXPECT_EQ(stats.reserved_bytes.all.freed, stats.reserved_bytes.all.allocated);
    EXPECT_EQ(stats.inactive_split.all.current, 0);
    EXPECT_EQ(stats.cached_free_bytes, 0);
    EXPECT_EQ(stats.heaps, 0);
  }
}

TEST(Counters, MeansLieBetweenWhatWasHeld) {
  DeviceCounters device;
  HeapCounters heap(device);
  device.on_reserve(kPage, 1);
  device.reset_peaks();
  heap.on_allocate(SizePool::kLarge, 1000, 1024, kPage);
  for (int i = 0; i < 5000; ++i) {
    heap.on_allocate(SizePool::kLarge, 2000, 2048);
    heap.on_free(SizePool::kLarge, 2000, 2048);
  }
  const DeviceStats stats = device.snapshot();
  EXPECT_GT(stats.mean_active_bytes, 0);
  EXPECT_LE(stats.mean_active_bytes, 1024 + 2048);
  EXPECT_LE(stats.mean_requested_bytes, stats.mean_active_bytes);
  EXPECT_NEAR(static_cast<double>(stats.mean_reserved_bytes), static_cast<double>(kPage), 2.0);
}

}  // namespace
}  // namespace spillway
