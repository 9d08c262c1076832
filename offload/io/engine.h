// Reads and writes of any length, made out of a queue's operations.
//
// A request is divided into operations of one block; a short one goes on where it stopped, an interrupted one
// is repeated (a thousand times at most), a direct one that is refused goes through the page cache, a failed
// read is tried again. A request ends once, with all of its bytes done or with the errno of what could not be
// done.
//
// One thread runs the queue, and starts with the first request. Requests of a higher priority overtake those
// that are waiting, block by block. Thread-safe.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "driver/status.h"
#include "offload/io/file.h"
#include "offload/io/queue.h"
#include "stats/lock.h"

namespace spillway {

enum class IoPriority : uint8_t { kDemand, kPrefetch, kEvict, kWriteBehind };
inline constexpr size_t kIoPriorities = 4;

struct IoRequest {
  IoKind kind = IoKind::kRead;
  IoPriority priority = IoPriority::kDemand;
  IoFile* file = nullptr;       // outlives the request
  std::span<std::byte> memory;  // outlives the request; a write only reads it; empty for kSync
  uint64_t offset = 0;
};

// Called on the engine's thread, once: 0, or an errno; ENODATA where the file ends before the bytes do. May
// submit; must not wait for another request.
using IoDone = std::function<void(int error)>;

struct IoOptions {
  size_t block_bytes = size_t{1} << 20;
  uint32_t depth = 32;   // operations in flight
  uint32_t threads = 4;  // of the queue without io_uring
  bool use_uring = true;
  bool is_idle = false;  // of the idle class of I/O priorities, where the disk's scheduler knows it
  int read_retries = 3;
};

// Since the engine started.
struct IoCounters {
  uint64_t read_bytes = 0;     // by operations, of failed requests too
  uint64_t written_bytes = 0;  // the same
  uint64_t operations = 0;
  uint64_t short_operations = 0;
  uint64_t repeated_operations = 0;  // interrupted, or failed reads
  uint64_t direct_fallbacks = 0;
  uint64_t failed_requests = 0;
};

class IoEngine {
 public:
  using MakeQueue = std::function<Result<std::unique_ptr<IoQueue>>()>;

  explicit IoEngine(const IoOptions& options);
  // Takes a queue of the caller's, made on the engine's thread.
  IoEngine(const IoOptions& options, MakeQueue make_queue);
  // Waits for the requests that were submitted.
  ~IoEngine();
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  // Errors: SPW_ERROR_IO, where the engine's thread or queue cannot be started; `done` is not called then,
  // nor where this throws for want of memory. The engine's thread itself needs none for requests.
  Status submit(const IoRequest& request, IoDone done);
  // Memory of many requests to come, prepared for them where the queue can; must stay mapped until it is
  // forgotten, or while the engine lives.
  Status use_memory(std::span<std::byte> memory);
  // Waits until the queue has undone that, so that the memory may be unmapped; no request may be using it.
  // False where that fails, and it must stay mapped; so in a child of fork, which has no such thread. Not
  // from a callback.
  bool forget_memory(std::span<std::byte> memory);
  // Does what use_memory() does, for a file, which outlives the engine's last request. Errors: as submit().
  Status use_file(const IoFile& file);
  // Submits and waits. Not from a callback. Errors: out_of_memory, where the disk has no room; io.
  Status run(const IoRequest& request);

  IoCounters counters() const;
  // The queue that serves, and why nothing better does; empty before the first request.
  std::string description() const;

 private:
  struct Active;
  struct Slot;
  using ActivePointer = std::shared_ptr<Active>;
  using Preparation = std::function<void(IoQueue&)>;  // on the engine's thread
  // A call of forget_memory() that waits, on its own stack.
  struct Forgetting {
    std::span<std::byte> memory;
    Forgetting* next = nullptr;
    bool is_done = false;
    bool is_over = false;
  };

  Status start() SPW_REQUIRES(mutex_);
  void stop();
  Status prepare(Preparation preparation);
  void prepare_slots(const IoQueue& queue);
  void serve(IoQueue& queue);
  bool take_submitted(IoQueue& queue);
  void prepare_memory(IoQueue& queue, const std::vector<Preparation>& preparations);
  void forget_memory(IoQueue& queue, Forgetting* first);
  void end_all(Forgetting* first) SPW_REQUIRES(mutex_);
  void fill(IoQueue& queue);
  ActivePointer next_active();
  void push(IoQueue& queue, uint32_t index);
  void complete(IoQueue& queue, const IoCompletion& completion);
  bool goes_on(Slot& slot, int64_t result, int* error);
  void publish_counters();

  const pid_t owner_ = getpid();
  const IoOptions options_;
  const MakeQueue make_queue_;

  mutable BlockingMutex mutex_;
  std::array<std::list<ActivePointer>, kIoPriorities> submitted_ SPW_GUARDED_BY(mutex_);
  std::vector<Preparation> preparations_ SPW_GUARDED_BY(mutex_);
  Forgetting* forgetting_ SPW_GUARDED_BY(mutex_) = nullptr;
  Condition forgotten_;
  IoCounters counters_ SPW_GUARDED_BY(mutex_);
  std::string description_ SPW_GUARDED_BY(mutex_);
  bool is_stopping_ SPW_GUARDED_BY(mutex_) = false;
  bool is_starting_ SPW_GUARDED_BY(mutex_) = false;
  Condition started_;
  IoQueue* queue_ SPW_GUARDED_BY(mutex_) = nullptr;  // while the thread serves
  std::thread thread_ SPW_GUARDED_BY(mutex_);

  // The thread's own.
  std::array<std::list<ActivePointer>, kIoPriorities> waiting_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<IoCompletion> completions_;
  IoCounters news_;
};

}  // namespace spillway
