// Events that several processes use. Late work stays late across them: a process runs what comes before a
// record when somebody, in whichever process, waits for that record. A thread of each process that records
// such events sees to that.
//
// The race detector knows one process: it sees no order that comes from another.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/cuda/event_table.h"
#include "sim/cuda/state.h"

namespace spillway::sim {

struct SharedEvent {
  std::shared_ptr<EventTable> table;
  uint32_t index = 0;
  uint64_t id = 0;
  bool is_exporter = false;
  uint64_t own_record = 0;  // the latest that this process made

  SharedEvent() = default;
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  ~SharedEvent() {
    if (is_exporter) table->give_back(index);
  }
  EventRow& row() const { return table->row(index); }
};

// Errors: out of memory, with too many.
CUresult export_event(State& state, Event* event, CUipcEventHandle* handle);
// Errors: invalid handle, invalid context (an event of this process), map failed (its process is gone, or it
// was destroyed).
CUresult import_event(State& state, Context* context, const CUipcEventHandle& handle, Event** event);

// After this process has recorded the event.
void note_record(State& state, Event* event);
// The latest record, where another process made it and it is not known to be complete; else 0.
uint64_t foreign_record(const Event& event);
// Until that record is complete, or can never be. Gives the lock up meanwhile.
void wait_for_record(const SharedEvent& event, uint64_t record, Lock& lock);

}  // namespace spillway::sim
