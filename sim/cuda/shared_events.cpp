#include "sim/cuda/shared_events.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace spillway::sim {
namespace {

constexpr auto kPollingInterval = std::chrono::microseconds(200);
constexpr uint64_t kMagic = 0x746e657665;

// Defines what a CUipcEventHandle holds.
struct Exported {
  uint64_t magic;
  int32_t pid;
  int32_t file;
  uint64_t index;
  uint64_t id;
};
static_assert(sizeof(Exported) <= sizeof(CUipcEventHandle));

void raise(std::atomic<uint64_t>& value, uint64_t to) {
  uint64_t now = value.load();
  while (now < to && !value.compare_exchange_weak(now, to)) {
  }
}

// Tells other processes which records are complete, and runs the work before those that they wait for.
void serve_records(State& state) {
  Lock lock(state.mutex);
  for (;;) {
    while (state.shared_records.empty()) state.records_shared.wait(lock);
    for (size_t i = 0; i < state.shared_records.size();) {
      const SharedRecord record = state.shared_records[i];
      EventRow& row = record.event->row();
      if (row.wanted.load() >= record.number) state.scheduler.force(record.timeline, record.position, lock);
      // A host function may have run meanwhile, and the driver have been configured again.
      if (i >= state.shared_records.size() || state.shared_records[i].event != record.event) break;
      if (!state.scheduler.complete(record.timeline, record.position)) {
        ++i;
        continue;
      }
      raise(row.completed, record.number);
      state.shared_records.erase(state.shared_records.begin() + static_cast<ptrdiff_t>(i));
    }
    lock.unlock();
    std::this_thread::sleep_for(kPollingInterval);
    lock.lock();
  }
}

void start_serving(State& state) {
  if (state.serves_records) return;
  state.serves_records = true;
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([&state] { serve_records(state); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool share_event(State& state, Event* event) {
  if (event->shared != nullptr) return true;
  if (state.event_table == nullptr) state.event_table = EventTable::create();
  if (state.event_table == nullptr) return false;
  auto shared = std::make_shared<SharedEvent>();
  shared->table = state.event_table;
  shared->id = state.next_id++;
  shared->index = shared->table->take(shared->id);
  if (shared->index == EventTable::kRows) return false;
  shared->is_exporter = true;
  event->shared = std::move(shared);
  if (event->recorded) note_record(state, event);
  return true;
}

}  // namespace

CUresult export_event(State& state, Event* event, CUipcEventHandle* handle) {
  if (!share_event(state, event)) return CUDA_ERROR_OUT_OF_MEMORY;
  const SharedEvent& shared = *event->shared;
  const Exported exported{kMagic, getpid(), shared.table->file(), shared.index, shared.id};
  *handle = {};
  std::memcpy(handle, &exported, sizeof exported);
  return CUDA_SUCCESS;
}

CUresult import_event(State& state, Context* context, const CUipcEventHandle& handle, Event** event) {
  Exported exported{};
  std::memcpy(&exported, &handle, sizeof exported);
  if (exported.magic != kMagic || exported.index >= EventTable::kRows) return CUDA_ERROR_INVALID_HANDLE;
  if (exported.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<EventTable>& table = state.foreign_tables[{exported.pid, exported.file}];
  // Another process may have the number of one that has ended.
  if (table == nullptr || table->is_abandoned()) table = EventTable::open(exported.pid, exported.file);
  if (table == nullptr || table->row(static_cast<uint32_t>(exported.index)).id.load() != exported.id) {
    return CUDA_ERROR_MAP_FAILED;
  }
  auto shared = std::make_shared<SharedEvent>();
  shared->table = table;
  shared->index = static_cast<uint32_t>(exported.index);
  shared->id = exported.id;
  Event* opened = state.events.make();
  opened->context = context;
  opened->flags = CU_EVENT_DISABLE_TIMING;
  opened->shared = std::move(shared);
  *event = opened;
  return CUDA_SUCCESS;
}

void note_record(State& state, Event* event) {
  SharedEvent& shared = *event->shared;
  shared.own_record = shared.row().recorded.fetch_add(1) + 1;
  state.shared_records.push_back({event->shared, shared.own_record, event->timeline, event->position});
  state.records_shared.notify_one();
  start_serving(state);
}

uint64_t foreign_record(const Event& event) {
  if (event.shared == nullptr) return 0;
  const EventRow& row = event.shared->row();
  const uint64_t latest = row.recorded.load();
  const bool is_own = latest == event.shared->own_record;
  return is_own || row.completed.load() >= latest ? 0 : latest;
}

void wait_for_record(const SharedEvent& event, uint64_t record, Lock& lock) {
  EventRow& row = event.row();
  const auto is_over = [&] {
    return row.completed.load() >= record || row.id.load() != event.id || event.table->is_abandoned();
  };
  raise(row.wanted, record);
  lock.unlock();
  while (!is_over()) std::this_thread::sleep_for(kPollingInterval);
  lock.lock();
}

}  // namespace spillway::sim
