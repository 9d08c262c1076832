// A ring of trace records between one heap and the writer's thread.
//
// write() is called under the heap's lock, so there is one writer at a time; drain() by one thread. Neither
// waits: a record that finds the ring full is dropped and counted. Nothing is allocated after the ring was
// made. Cost of write(): about 15 ns, half of it the clock.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "stats/trace_record.h"

namespace spillway {

class TraceRing {
 public:
  // 1.5 MiB: some milliseconds of a program that does nothing but allocate.
  static constexpr uint64_t kCapacity = uint64_t{1} << 15;

  // `half_full` is posted when the reader should hurry; it outlives the ring. Throws std::bad_alloc.
  TraceRing(int device, sem_t& half_full)
      : records_(new TraceRecord[kCapacity]),
        half_full_(half_full),
        device_(static_cast<int8_t>(device)),
        steady_(has_steady_ticks()) {}

  // Sets the heap's stream, part of every record from now on.
  void set_stream(uint64_t stream) { stream_ = stream; }

  [[gnu::noinline]] void write(TraceKind kind, uint64_t address, uint64_t requested_bytes,
                               uint64_t block_bytes) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - seen_tail_ >= kCapacity / 2 && !has_room(head)) [[unlikely]]
      return;
    TraceRecord& record = records_[head % kCapacity];
    record.ticks = trace_ticks(steady_);
    record.address = address;
    record.requested_bytes = requested_bytes;
    record.block_bytes = block_bytes;
    record.stream = stream_;
    record.stack = kind == TraceKind::kAllocate ? std::exchange(trace_thread.stack, 0) : 0;
    record.tag = trace_thread.tag;
    record.kind = kind;
    record.device = device_;
    head_.store(head + 1, std::memory_order_release);
  }

  // Calls visit(record) for what was written before `until_ticks`, oldest first.
  template <typename Visit>
  void drain(uint64_t until_ticks, Visit visit) {
    uint64_t tail = tail_.load(std::memory_order_relaxed);
    const uint64_t head = head_.load(std::memory_order_acquire);
    for (; tail != head; ++tail) {
      const TraceRecord& record = records_[tail % kCapacity];
      if (record.ticks >= until_ticks) break;
      visit(record);
    }
    tail_.store(tail, std::memory_order_release);
  }

  // Since the ring was made.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  [[gnu::cold]] bool has_room(uint64_t head) {
    const bool was_half = head - seen_tail_ == kCapacity / 2;
    if (was_half || head - seen_tail_ >= kCapacity) seen_tail_ = tail_.load(std::memory_order_acquire);
    if (was_half && head - seen_tail_ >= kCapacity / 2) sem_post(&half_full_);
    if (head - seen_tail_ < kCapacity) return true;
    dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return false;
  }

  // These are the heap's.
  const std::unique_ptr<TraceRecord[]> records_;
  sem_t& half_full_;
  uint64_t stream_ = 0;
  uint64_t seen_tail_ = 0;
  std::atomic<uint64_t> dropped_{0};
  const int8_t device_;
  const bool steady_;
  std::atomic<uint64_t> head_{0};
  // This is the reader's.
  alignas(64) std::atomic<uint64_t> tail_{0};
};

}  // namespace spillway
