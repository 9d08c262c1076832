// Holds what processes know of each other's events: a table in shared memory, one row for each event that its
// process has exported. Every process that has the event counts its records there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace spillway::sim {

// Records are numbered from 1. Written by several processes without a lock.
struct EventRow {
  std::atomic<uint64_t> id;         // of the event that has the row; 0: none
  std::atomic<uint64_t> recorded;   // the latest record
  std::atomic<uint64_t> completed;  // the latest that is known to be complete
  std::atomic<uint64_t> wanted;     // the latest that somebody waits for
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class EventTable {
 public:
  static constexpr uint32_t kRows = 16384;

  // This process's. Null when the system refuses.
  static std::shared_ptr<EventTable> create();
  // Opens that of another process, by the descriptor it has there. Null when it is gone.
  static std::shared_ptr<EventTable> open(int pid, int file);
  ~EventTable();
  EventTable(const EventTable&) = delete;
  EventTable& operator=(const EventTable&) = delete;

  int file() const { return file_; }
  EventRow& row(uint32_t index) { return rows_[index]; }
  // A row for an event of this number; kRows when there is none left.
  uint32_t take(uint64_t id);
  void give_back(uint32_t index) { rows_[index].id.store(0); }
  // Tells whether it is another process's, and that has ended: nothing of it is enqueued any more.
  bool is_abandoned() const;

 private:
  EventTable() = default;
  bool map();

  int file_ = -1;
  bool is_own_ = false;
  EventRow* rows_ = nullptr;
  uint32_t next_ = 0;
};

}  // namespace spillway::sim
