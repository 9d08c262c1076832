// The memory resource as RMM's programs use it: running out of memory is RMM's error, so that its adaptors'
// callbacks run; and what RMM demands of every resource, under each of the settings in which ours serves. RMM
// itself is not needed: its errors are declared by a stand-in.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include "include/spillway/memory_resource.hpp"
#include "tests/abi/without_rmm.h"
#include "tests/support/late_device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr size_t kTooMuch = size_t{1} << 50;
constexpr size_t kAlignment = 256;  // RMM's own
constexpr size_t kThreads = 4;

// ---- RMM's errors

static_assert(std::is_base_of_v<rmm::out_of_memory, OutOfMemory>);
static_assert(std::is_base_of_v<std::bad_alloc, OutOfMemory>, "and one base of it, or nobody could catch it");

// Asks again for as long as the callback has it, where the resource failed by this error, as RMM's adaptor of
// that name does.
template <typename Failure, typename Callback>
void* allocate_with_callback(const MemoryResource& resource, CUstream stream, size_t bytes,
                             const Callback& callback) {
  while (true) {
    try {
      return resource.allocate(stream, bytes, kAlignment);
    } catch (const Failure&) {
      if (!callback()) throw;
    }
  }
}

TEST(Rmm, AFailureCallbackThatFreesMemoryHasTheRequestServed) {
  in_child({{"SPILLWAY_CONF", "limit:64MiB"}}, [] {
    const LateDevice device;
    const MemoryResource resource;
    CUstream stream = device.stream();
    void* cached = resource.allocate(stream, 48 * kMiB, kAlignment);
    int calls = 0;
    void* block = allocate_with_callback<rmm::out_of_memory>(resource, stream, 48 * kMiB, [&] {
      ++calls;
      resource.deallocate(stream, cached, 48 * kMiB, kAlignment);
      return calls == 1;
    });
    SPW_CHECK(calls == 1 && block != nullptr);
    resource.deallocate(stream, block, 48 * kMiB, kAlignment);
    device.finish();
  });
}

TEST(Rmm, AFailureCallbackThatGivesUpPassesTheErrorOn) {
  in_child({}, [] {
    const LateDevice device;
    const MemoryResource resource;
    int calls = 0;
    try {
      allocate_with_callback<rmm::bad_alloc>(resource, nullptr, kTooMuch, [&] { return ++calls < 3; });
      SPW_CHECK(false && "memory beyond the device");
    } catch (const OutOfMemory& error) {
      const std::string text = error.what();
      SPW_CHECK(text.find("out_of_memory") < SIZE_MAX && text.find(std::to_string(kTooMuch)) < SIZE_MAX);
    }
    SPW_CHECK(calls == 3);
    device.finish();
  });
}

TEST(Rmm, OtherErrorsAreNotOutOfMemory) {
  in_child({}, [] {
    const LateDevice device;
    EXPECT_THROW(
        allocate_with_callback<rmm::bad_alloc>(MemoryResource(99), nullptr, 1,
                                               [] {
                                                 SPW_CHECK(false && "a callback for no lack of memory");
                                                 return false;
                                               }),
        Error);
    SPW_CHECK(!testing::Test::HasFailure());
  });
}

TEST(Rmm, ASourceCompiledWithoutItKeepsItsOwnError) {
  void (*const volatile thrower)(spw_status) = check;
  EXPECT_THROW(thrower(SPW_ERROR_OUT_OF_MEMORY), rmm::out_of_memory);
  EXPECT_EQ(caught_without_rmm(), spw_last_error());
}

// ---- What RMM demands of every resource

struct DefaultOptions {
  static Environment environment() { return {}; }
  static void begin() {}
  static void end() {}
};

struct BackendMalloc {
  static Environment environment() { return {{"SPILLWAY_CONF", "backend:malloc"}}; }
  static void begin() {}
  static void end() {}
};

struct InAPool {
  static constexpr spw_pool_id kPool{1, 2};
  static Environment environment() { return {}; }
  static void begin() { SPW_CHECK(spw_pool_begin(0, kPool, nullptr, nullptr) == SPW_OK); }
  static void end() { SPW_CHECK(spw_pool_end(0, kPool) == SPW_OK && spw_pool_release(0, kPool) == SPW_OK); }
};

struct Block {
  void* start;
  size_t bytes;
};

// Says how a program takes memory: with the order of a stream, or without one.
struct Use {
  CUstream stream;
  bool synchronous;
};

class Program {
 public:
  void* allocate(const Use& use, size_t bytes, size_t alignment = kAlignment) const {
    return use.synchronous ? resource.allocate_sync(bytes, alignment)
                           : resource.allocate(use.stream, bytes, alignment);
  }

  // What a synchronous free may not see is work that still goes on.
  void free(const Use& use, const Block& block, size_t alignment = kAlignment) const {
    if (!use.synchronous) return resource.deallocate(use.stream, block.start, block.bytes, alignment);
    SPW_CHECK(spw_stream_synchronize(0, use.stream) == SPW_OK);
    resource.deallocate_sync(block.start, block.bytes, alignment);
  }

  // Uses both ends of the block.
  void write(const Use& use, const Block& block) const {
    const size_t bytes = std::min(block.bytes, 4 * kKiB);
    device.write(block.start, bytes, use.stream);
    device.write(static_cast<char*>(block.start) + (block.bytes - bytes), bytes, use.stream);
  }

  std::vector<Use> uses() const {
    return {{nullptr, true}, {nullptr, false}, {CU_STREAM_PER_THREAD, false}, {device.stream(), false}};
  }

  LateDevice device;
  MemoryResource resource;
};

// Blocks that live at once, none of which may reach into another.
class LiveBlocks {
 public:
  void add(const Block& block) {
    const auto start = reinterpret_cast<uintptr_t>(block.start);
    SPW_CHECK(start != 0 && start % kAlignment == 0);
    const auto next = blocks_.lower_bound(start);
    SPW_CHECK(next == blocks_.end() || start + block.bytes <= next->first);
    SPW_CHECK(next == blocks_.begin() || std::prev(next)->first + std::prev(next)->second <= start);
    blocks_.emplace(start, block.bytes);
  }

  Block take(size_t number) {
    const auto chosen = std::next(blocks_.begin(), static_cast<ptrdiff_t>(number % blocks_.size()));
    const Block block{reinterpret_cast<void*>(chosen->first), chosen->second};
    blocks_.erase(chosen);
    return block;
  }

  bool empty() const { return blocks_.empty(); }

 private:
  std::map<uintptr_t, size_t> blocks_;
};

size_t random_bytes(std::mt19937& random) {
  return std::uniform_int_distribution<size_t>(1, 5 * kMiB)(random);
}

void allocate_all_then_free_all(const Program& program, const Use& use, unsigned seed) {
  std::mt19937 random(seed);
  LiveBlocks live;
  for (int i = 0; i < 100; ++i) {
    const size_t bytes = random_bytes(random);
    const Block block{program.allocate(use, bytes), bytes};
    live.add(block);
    program.write(use, block);
  }
  while (!live.empty()) program.free(use, live.take(random()));
}

void allocate_and_free_in_any_order(const Program& program, const Use& use, unsigned seed) {
  std::mt19937 random(seed);
  LiveBlocks live;
  for (int left = 100; left != 0 || !live.empty();) {
    const bool allocates = left != 0 && (live.empty() || random() % 100 < 53);
    if (!allocates) {
      program.free(use, live.take(random()));
      continue;
    }
    --left;
    const size_t bytes = random_bytes(random);
    const Block block{program.allocate(use, bytes), bytes};
    live.add(block);
    program.write(use, block);
  }
}

// Blocks on their way to another thread, each with an event behind its work.
class Passage {
 public:
  void give(const Block& block, CUevent written) {
    const std::lock_guard lock(mutex_);
    blocks_.emplace_back(block, written);
    filled_.notify_one();
  }
  std::pair<Block, CUevent> take() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return !blocks_.empty(); });
    const std::pair<Block, CUevent> first = blocks_.front();
    blocks_.pop_front();
    return first;
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<std::pair<Block, CUevent>> blocks_;
};

template <typename Setting>
class ResourceTest : public testing::Test {
 protected:
  static void run(const std::function<void(const Program&)>& body) {
    Environment environment = Setting::environment();
    environment.insert(kLate.begin(), kLate.end());
    in_child(environment, [&] {
      const Program program;
      Setting::begin();
      body(program);
      Setting::end();
      SPW_CHECK(!testing::Test::HasFailure());
      program.device.finish();
    });
  }

  // One of the ways that a program takes memory after the other.
  static void run_in_every_way(const std::function<void(const Program&, const Use&)>& body) {
    run([&](const Program& program) {
      for (const Use& use : program.uses()) body(program, use);
    });
  }

  // Several threads at once, all of them in this way: with a stream, it is one for all.
  static void run_in_threads(const std::function<void(const Program&, const Use&, unsigned)>& body) {
    run_in_every_way([&](const Program& program, const Use& use) {
      std::vector<std::thread> threads;
      for (unsigned i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
          program.device.enter();
          body(program, use, i);
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
};

struct SettingNames {
  template <typename Setting>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): the name is GoogleTest's
    if (std::is_same_v<Setting, BackendMalloc>) return "BackendMalloc";
    return std::is_same_v<Setting, InAPool> ? "InAPool" : "DefaultOptions";
  }
};

TYPED_TEST_SUITE_P(ResourceTest);

TYPED_TEST_P(ResourceTest, AnyAmountIsAlignedMemoryOfTheDevice) {
  this->run_in_every_way([](const Program& program, const Use& use) {
    for (const size_t bytes : {size_t{4}, kKiB, kMiB, kGiB}) {
      for (size_t alignment = 1; alignment <= MemoryResource::kMostAlignment; alignment *= 2) {
        const Block block{program.allocate(use, bytes, alignment), bytes};
        SPW_CHECK(block.start != nullptr && reinterpret_cast<uintptr_t>(block.start) % alignment == 0);
        SPW_CHECK(program.device.is_device_memory(block.start));
        program.write(use, block);
        program.free(use, block, alignment);
      }
    }
  });
}

TYPED_TEST_P(ResourceTest, NoBytesMayBeAskedForAndFreed) {
  this->run_in_every_way([](const Program& program, const Use& use) {
    void* nothing = program.allocate(use, 0);
    program.free(use, {nothing, 0});
    SPW_CHECK(stats_of(0).allocated_bytes.all.current == 0);
  });
}

TYPED_TEST_P(ResourceTest, TooMuchIsRefusedAndHarmsNobody) {
  this->run_in_every_way([](const Program& program, const Use& use) {
    const Block before{program.allocate(use, kMiB), kMiB};
    void* none = nullptr;
    EXPECT_THROW(none = program.allocate(use, kTooMuch), rmm::out_of_memory);
    SPW_CHECK(none == nullptr);
    const Block after{program.allocate(use, kMiB), kMiB};
    program.write(use, before);
    program.write(use, after);
    program.free(use, before);
    program.free(use, after);
  });
}

TYPED_TEST_P(ResourceTest, BlocksOfOneSizeAreDifferent) {
  this->run_in_every_way([](const Program& program, const Use& use) {
    LiveBlocks live;
    for (int i = 0; i < 100; ++i) live.add({program.allocate(use, 8), 8});
    while (!live.empty()) program.free(use, live.take(0));
  });
}

TYPED_TEST_P(ResourceTest, BlocksOfRandomSizesDoNotReachIntoEachOther) {
  this->run_in_every_way(
      [](const Program& program, const Use& use) { allocate_all_then_free_all(program, use, 1); });
}

TYPED_TEST_P(ResourceTest, BlocksAreFreedInAnyOrderBetweenAllocations) {
  this->run_in_every_way(
      [](const Program& program, const Use& use) { allocate_and_free_in_any_order(program, use, 2); });
}

TYPED_TEST_P(ResourceTest, ThreadsTakeAllTheirBlocksAtOnce) {
  this->run_in_threads(allocate_all_then_free_all);
}

TYPED_TEST_P(ResourceTest, ThreadsFreeInAnyOrderBetweenAllocations) {
  this->run_in_threads(allocate_and_free_in_any_order);
}

TYPED_TEST_P(ResourceTest, AThreadFreesWhatAnotherAllocatedBehindItsWork) {
  this->run([](const Program& program) {
    CUstream first = program.device.stream();
    CUstream second = program.device.stream();
    const std::array<std::pair<CUstream, CUstream>, 4> pairs{
        {{nullptr, nullptr}, {CU_STREAM_PER_THREAD, CU_STREAM_PER_THREAD}, {first, first}, {first, second}}};
    for (const auto& [made_on, freed_on] : pairs) {
      Passage blocks;
      std::thread maker([&, made_on = made_on] {
        program.device.enter();
        std::mt19937 random(3);
        for (int i = 0; i < 100; ++i) {
          const size_t bytes = random() % kMiB + 1;
          const Block block{program.resource.allocate(made_on, bytes, kAlignment), bytes};
          program.write({made_on, false}, block);
          blocks.give(block, program.device.record(made_on));
        }
      });
      std::thread freer([&, freed_on = freed_on] {
        program.device.enter();
        for (int i = 0; i < 100; ++i) {
          const auto [block, written] = blocks.take();
          program.device.wait(freed_on, written);
          program.write({freed_on, false}, block);
          program.resource.deallocate(freed_on, block.start, block.bytes, kAlignment);
        }
      });
      maker.join();
      freer.join();
    }
  });
}

TYPED_TEST_P(ResourceTest, ItEqualsItselfAndItsCopies) {
  this->run([](const Program& program) {
    const MemoryResource copy = program.resource;
    SPW_CHECK(program.resource == program.resource && program.resource == copy);
    void* block = program.resource.allocate(StreamRef(nullptr), kMiB, kAlignment);
    copy.deallocate(StreamRef(nullptr), block, kMiB, kAlignment);
  });
}

REGISTER_TYPED_TEST_SUITE_P(ResourceTest, AnyAmountIsAlignedMemoryOfTheDevice, NoBytesMayBeAskedForAndFreed,
                            TooMuchIsRefusedAndHarmsNobody, BlocksOfOneSizeAreDifferent,
                            BlocksOfRandomSizesDoNotReachIntoEachOther,
                            BlocksAreFreedInAnyOrderBetweenAllocations, ThreadsTakeAllTheirBlocksAtOnce,
                            ThreadsFreeInAnyOrderBetweenAllocations,
                            AThreadFreesWhatAnotherAllocatedBehindItsWork, ItEqualsItselfAndItsCopies);

using Settings = testing::Types<DefaultOptions, BackendMalloc, InAPool>;
INSTANTIATE_TYPED_TEST_SUITE_P(Rmm, ResourceTest, Settings, SettingNames);

}  // namespace
}  // namespace spillway::test
