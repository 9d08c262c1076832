#include "sim/cuda/event_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace spillway::sim {
namespace {

constexpr size_t kBytes = sizeof(EventRow) * EventTable::kRows;

// The process that made a table holds a lock on it, which the system takes back however it ends.
struct flock whole(int type) {
  struct flock lock {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

bool EventTable::map() {
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) return false;
  rows_ = static_cast<EventRow*>(at);
  return true;
}

std::shared_ptr<EventTable> EventTable::create() {
  std::shared_ptr<EventTable> table(new EventTable);
  table->is_own_ = true;
  table->file_ = memfd_create("spillway-sim-events", MFD_CLOEXEC);
  struct flock lock = whole(F_WRLCK);
  const bool made = table->file_ >= 0 && ftruncate(table->file_, kBytes) == 0 &&
                    fcntl(table->file_, F_OFD_SETLK, &lock) == 0 && table->map();
  return made ? table : nullptr;
}

std::shared_ptr<EventTable> EventTable::open(int pid, int file) {
  std::shared_ptr<EventTable> table(new EventTable);
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
  table->file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  return table->file_ >= 0 && table->map() ? table : nullptr;
}

EventTable::~EventTable() {
  if (rows_ != nullptr) munmap(static_cast<void*>(rows_), kBytes);
  if (file_ >= 0) close(file_);
}

uint32_t EventTable::take(uint64_t id) {
  for (uint32_t tried = 0; tried < kRows; ++tried) {
    const uint32_t index = next_++ % kRows;
    EventRow& row = rows_[index];
    if (row.id.load() != 0) continue;
    row.recorded.store(0);
    row.completed.store(0);
    row.wanted.store(0);
    row.id.store(id);
    return index;
  }
  return kRows;
}

bool EventTable::is_abandoned() const {
  struct flock lock = whole(F_WRLCK);
  return !is_own_ && fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

}  // namespace spillway::sim
