#include "allocator/borrowing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "driver/capture.h"

namespace spillway {
namespace {

// While others fill the device, it is asked for free memory once in so many requests that could use some.
constexpr uint32_t kQuestionsPerAnswer = 32;

}  // namespace

// ---- The range that a program had before

bool Borrowing::may_have_room(uint64_t pages) {
  if (parts_.store->may_have_room(pages)) return true;
  if (!parts_.store->device_is_full() || parts_.store->easy_room_pages() < pages) return false;
  if (fullness_questions_.fetch_add(1, std::memory_order_relaxed) % kQuestionsPerAnswer != 0) return false;
  const ScopedContext context(*parts_.driver, parts_.context.get());
  size_t free_bytes = 0;
  size_t device_bytes = 0;
  if (!context.status().ok() || parts_.driver->cuMemGetInfo(&free_bytes, &device_bytes) != CUDA_SUCCESS)
    return false;
  free_bytes -= std::min<uint64_t>(free_bytes, parts_.store->headroom_bytes());
  if (free_bytes / kPageBytes < pages) return false;
  parts_.store->note_room();
  return true;
}

bool Borrowing::wants_back(const Heap& heap, const Request& request) {
  const CachedRange* expected = heap.predictor().expected(request);
  if (expected == nullptr || may_have_room(bytes_to_pages(expected->bytes()))) return false;
  if (expected->state == BlockState::kPendingFree) return !heap.use.is_replayed;  // mutant: pool-range-behind
  std::vector<PageId> missing;
  heap.pages().list_missing(*expected, missing);
  return !missing.empty() && std::all_of(missing.begin(), missing.end(), [&](PageId id) {
    const Heap* owner = parts_.store->page(id).owner.load(std::memory_order_relaxed);
    return owner != nullptr && owner != &heap;
  });
}

CachedRange* Borrowing::take_expected(Heap& heap, const Request& request) {
  std::vector<PageId> missing;
  const CachedRange* expected = heap.predictor().expected(request);
  if (expected != nullptr) heap.pages().list_missing(*expected, missing);
  if (missing.empty()) return nullptr;
  std::vector<std::pair<Heap*, std::vector<PageId>>>
      by_owner;  // in the order of the pages: the same in every run
  for (const PageId id : missing) {
    Heap* owner = parts_.store->page(id).owner.load(std::memory_order_relaxed);
    if (owner == nullptr || owner == &heap) return nullptr;
    const auto found = std::find_if(by_owner.begin(), by_owner.end(),
                                    [owner](const auto& each) { return each.first == owner; });
    auto& pages = found != by_owner.end() ? found->second : by_owner.emplace_back(owner, 0).second;
    pages.push_back(id);
  }
  for (auto& [owner, pages] : by_owner) {
    widen_to_units(parts_.store->pages(), pages);
    const Lock lock(owner->mutex);
    if (!can_give(*owner, heap, pages)) return nullptr;
  }
  // Another thread may take what was just seen free: what is left is lent, and the request searched for
  // again.
  for (auto& [owner, pages] : by_owner) {
    const Lock lock(owner->mutex);
    std::erase_if(pages, [&, lender = owner](PageId id) {
      lender->mutex.assert_held();  // by `lock`
      return !lender->pages().is_free(id);
    });
    keep_units(parts_.store->pages(), pages);
    lend(*owner, heap, pages);
  }
  return heap.take_again(request, true);
}

bool Borrowing::can_give(Heap& lender, const Heap& heap, const std::vector<PageId>& pages) {
  if (lender.use.keeps_pages) return false;  // mutant: open-pool-gives
  const auto are_free = [&] {
    lender.mutex.assert_held();  // by this function
    return std::all_of(pages.begin(), pages.end(), [&](PageId id) {
      lender.mutex.assert_held();  // by this function
      return lender.pages().is_free(id);
    });
  };
  if (are_free()) return true;
  // Its frees are looked at only when it needs memory itself.
  if (!lender.pending().empty()) {
    lender.complete_finished_frees();
    // Another thread's default stream cannot be told from here to wait.
    const bool reachable =
        heaps_.is_in_reach(lender) && (lender.key.thread == 0 || lender.key.thread == heap.key.thread);
    // mutant: lender-waits
    if (reachable && !heaps_.is_capturing(lender))
      lender.pending().complete_pages_behind(lender.key.stream, pages);
  }
  return are_free();
}

// ---- Any pages

uint32_t Borrowing::borrow(Heap& heap, uint32_t wanted) {
  uint32_t borrowed = 0;
  for (Heap* lender : heaps_.all()) {
    if (borrowed >= wanted) break;
    if (lender == &heap || lender->is_sourced()) continue;  // mutant: source-lends
    const Lock lock(lender->mutex);
    borrowed += borrow_from(*lender, heap, wanted - borrowed);
  }
  return borrowed;
}

uint32_t Borrowing::borrow_from(Heap& lender, Heap& heap, uint32_t wanted) {
  std::vector<PageId> pages;
  if (lender.use.keeps_pages) {  // mutant: open-pool-lends
    lender.list_leavable(pages);
    keep_units(parts_.store->pages(), pages, wanted);
  } else {
    if (!lender.pending().empty()) lender.complete_finished_frees();
    lender.release_empty_slabs();
    lender.pages().choose_free(wanted, pages);
  }
  const uint32_t lent = lend(lender, heap, pages);
  if (lent > 0 || pages.empty()) return lent;  // mutant: lend-done
  // Where the two cannot be ordered, what the host has waited for needs no order.
  pages.clear();
  lender.list_leavable(pages);
  std::erase_if(pages, [&](PageId id) {
    lender.mutex.assert_held();  // by this function
    return !lender.is_done_with(id);
  });
  keep_units(parts_.store->pages(), pages, wanted);
  return lend(lender, heap, pages);
}

uint32_t Borrowing::lend(Heap& lender, Heap& heap, const std::vector<PageId>& pages) {
  uint64_t epoch = 0;
  for (const PageId id : pages) epoch = std::max(epoch, lender.pages().last_use(id));
  if (pages.empty() || !order_after(heap, lender, epoch)) return 0;
  heap.receive(lender, pages);
  return static_cast<uint32_t>(pages.size());
}

bool Borrowing::order_after(Heap& waiter, Heap& earlier, uint64_t epoch) {
  Timeline& timeline = earlier.timeline;
  // What a pool's graphs do when they are replayed, they do after their stream too.
  const bool is_over = !earlier.use.is_replayed && timeline.is_over();  // mutant: lender-over
  if (timeline.is_complete(epoch) || is_over) return true;              // mutant: lender-complete
  // A graph captured over the waiter's memory may be replayed on streams that wait for nothing.
  if (waiter.use.is_replayed) return false;                       // mutant: pool-borrows
  if (waiter.timeline.has_waited(&timeline, epoch)) return true;  // mutant: borrower-waited
  // What a pool's memory was used by (replays on any stream) and another thread's default stream cannot be
  // reached by an event from here: only a wait for the whole device orders them.
  if (earlier.use.is_replayed) return false;  // mutant: pool-lends
  // mutant: thread-lends
  if (earlier.key.thread != 0 && earlier.key.thread != waiter.key.thread) return false;
  if (!earlier.is_closed() && !heaps_.is_in_reach(earlier)) return false;
  if (heaps_.is_capturing(earlier)) return false;  // mutant: captured-lends
  bool recorded = false;
  Status closed = timeline.close(*parts_.driver, earlier.key.stream, epoch, &recorded);
  if (recorded) parts_.counters.on_driver_call(DriverCall::kEventRecord);
  if (!closed.ok()) return false;
  parts_.counters.on_driver_call(DriverCall::kStreamWait);
  if (!timeline.event().make_wait(waiter.key.stream).ok()) return false;  // mutant: borrower-waits
  parts_.counters.on_stream_waited();
  waiter.timeline.note_wait(&timeline, timeline.recorded());
  return true;
}

}  // namespace spillway
