#include "offload/io/engine.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "stats/own_thread.h"

namespace spillway {

// A request on its way: its bytes up to `pushed_bytes` have been handed to the queue.
struct IoEngine::Active {
  IoRequest request;
  IoDone done;
  size_t pushed_bytes = 0;
  uint32_t in_flight = 0;
  int error = 0;

  // A sync is one operation, as if of one byte.
  size_t bytes() const { return request.kind == IoKind::kSync ? 1 : request.memory.size(); }
  bool has_more() const { return error == 0 && pushed_bytes < bytes(); }
};

// One operation in flight: a block of a request, or what is left of it.
struct IoEngine::Slot {
  ActivePointer active;
  size_t begin = 0;  // within the request
  size_t bytes = 0;
  int retries = 0;
  int passing = 0;  // EINTR and EAGAIN in a row
  bool is_direct = false;
};

namespace {

// ioprio_set(2) has no wrapper in the C library, and <linux/ioprio.h> is no C++ in every version of the
// kernel's headers. The values are those of the kernel's Documentation/block/ioprio.rst.
constexpr int kIoprioWhoProcess = 1;
constexpr int kIoprioClassShift = 13;
constexpr int kIoprioClassIdle = 3;

// The calling thread's operations, and those of threads that it starts. One that may not stays as it was.
void become_idle() {
  (void)syscall(SYS_ioprio_set, kIoprioWhoProcess, 0, kIoprioClassIdle << kIoprioClassShift);
}

IoEngine::MakeQueue usual_queue(const IoOptions& options) {
  return [options]() -> Result<std::unique_ptr<IoQueue>> {
    if (options.is_idle) become_idle();
    if (!options.use_uring)
      return make_thread_queue(options.depth, options.threads, "io_uring is not wanted");
    auto uring = make_uring_queue(options.depth);
    if (uring.ok()) return uring;
    return make_thread_queue(options.depth, options.threads, uring.status().text());
  };
}

// Operations in a row that did nothing for a reason that should pass.
constexpr int kMostPassing = 1000;

// Tells whether a kernel may say this of an operation that would do when tried again.
bool is_passing(int error) {
  return error == EINTR || error == EAGAIN;
}

}  // namespace

IoEngine::IoEngine(const IoOptions& options) : IoEngine(options, usual_queue(options)) {}

IoEngine::IoEngine(const IoOptions& options, MakeQueue make_queue)
    : options_(options), make_queue_(std::move(make_queue)) {}

IoEngine::~IoEngine() {
  stop();
  if (thread_.joinable()) thread_.join();
}

// ---- Any thread

// The queue is made by the thread that will serve it, as io_uring's cheapest setup demands.
Status IoEngine::start() {
  started_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return !is_starting_; });  // somebody else may be at it
  if (queue_ != nullptr) return {};
  if (thread_.joinable()) thread_.join();  // one that could not make its queue
  is_starting_ = true;
  Condition made;
  bool is_made = false;
  Status problem;
  const auto run = [&] {
    std::unique_ptr<IoQueue> queue;
    std::string description;
    problem = caught([&]() -> Status {
      Result<std::unique_ptr<IoQueue>> made_queue = make_queue_();
      if (!made_queue.ok()) return made_queue.take_status();
      queue = std::move(made_queue.value());
      description = queue->description();
      prepare_slots(*queue);
      return {};
    });
    const bool is_ready = problem.ok();
    PausableLock thread_lock(mutex_);
    if (is_ready) {
      queue_ = queue.get();
      description_ = std::move(description);
    }
    is_made = true;
    made.notify_one();
    thread_lock.unlock();
    if (is_ready) serve(*queue);
  };
  try {
    thread_ = start_own_thread(run);
    made.wait(mutex_, [&] { return is_made; });
  } catch (const std::exception& error) {
    problem =
        caught([&] { return Status::io(fmt::format("the I/O thread does not start: {}", error.what())); });
  }
  is_starting_ = false;
  started_.notify_all();
  return problem;
}

void IoEngine::stop() {
  const Lock lock(mutex_);
  is_stopping_ = true;
  if (queue_ != nullptr) queue_->wake();
}

Status IoEngine::submit(const IoRequest& request, IoDone done) {
  const Lock lock(mutex_);
  if (Status status = start(); !status.ok()) return status;
  auto active = std::make_shared<Active>();
  active->request = request;
  active->done = std::move(done);
  submitted_[static_cast<size_t>(request.priority)].push_back(std::move(active));
  queue_->wake();
  return {};
}

Status IoEngine::use_memory(std::span<std::byte> memory) {
  return prepare([memory](IoQueue& queue) { queue.use_memory(memory); });
}

bool IoEngine::forget_memory(std::span<std::byte> memory) {
  if (getpid() != owner_) return false;
  const Lock lock(mutex_);
  if (queue_ == nullptr) return true;  // which never knew it, or does no more
  Forgetting own{.memory = memory, .next = forgetting_};
  forgetting_ = &own;
  queue_->wake();
  forgotten_.wait(mutex_, [&own] { return own.is_over; });
  return own.is_done;
}

Status IoEngine::use_file(const IoFile& file) {
  return prepare([descriptors = file.descriptors()](IoQueue& queue) {
    for (const int descriptor : descriptors) {
      if (descriptor >= 0) queue.use_file(descriptor);
    }
  });
}

Status IoEngine::prepare(Preparation preparation) {
  const Lock lock(mutex_);
  if (Status status = start(); !status.ok()) return status;
  preparations_.push_back(std::move(preparation));
  queue_->wake();
  return {};
}

Status IoEngine::run(const IoRequest& request) {
  struct Outcome {
    BlockingMutex mutex;
    Condition ended;
    bool has_ended SPW_GUARDED_BY(mutex) = false;
    int error SPW_GUARDED_BY(mutex) = 0;
  } outcome;
  Status status = submit(request, [&outcome](int result) {
    const Lock lock(outcome.mutex);
    outcome.error = result;
    outcome.has_ended = true;
    outcome.ended.notify_one();
  });
  if (!status.ok()) return status;
  const Lock lock(outcome.mutex);
  outcome.ended.wait(outcome.mutex, [&]() SPW_REQUIRES(outcome.mutex) { return outcome.has_ended; });
  const int error = outcome.error;
  if (error == 0) return {};
  const std::string reason = std::system_category().message(error);
  const char* verb = request.kind == IoKind::kRead ? "read" : "write";
  std::string text =
      request.kind == IoKind::kSync
          ? fmt::format("fdatasync: {}", reason)
          : fmt::format("{} of {} bytes at {}: {}", verb, request.memory.size(), request.offset, reason);
  return is_no_room(error) ? Status::out_of_memory(std::move(text)) : Status::io(std::move(text));
}

IoCounters IoEngine::counters() const {
  const Lock lock(mutex_);
  return counters_;
}

std::string IoEngine::description() const {
  const Lock lock(mutex_);
  return description_;
}

// ---- The engine's thread

void IoEngine::prepare_slots(const IoQueue& queue) {
  slots_.resize(queue.depth());
  completions_.resize(queue.depth());
  free_slots_.clear();
  for (uint32_t i = 0; i < queue.depth(); ++i) free_slots_.push_back(i);
}

void IoEngine::serve(IoQueue& queue) {
  while (take_submitted(queue) || free_slots_.size() < slots_.size()) {
    fill(queue);
    const size_t found = queue.wait(completions_);
    for (size_t i = 0; i < found; ++i) complete(queue, completions_[i]);
    if (found > 0) publish_counters();
  }
}

// False when the engine ends and nothing waits any more.
bool IoEngine::take_submitted(IoQueue& queue) {
  std::vector<Preparation> preparations;
  Forgetting* forgetting = nullptr;
  bool has_waiting = false;
  bool goes_on = true;
  {
    const Lock lock(mutex_);
    for (size_t priority = 0; priority < kIoPriorities; ++priority) {
      waiting_[priority].splice(waiting_[priority].end(), submitted_[priority]);
      has_waiting = has_waiting || !waiting_[priority].empty();
    }
    preparations.swap(preparations_);
    forgetting = std::exchange(forgetting_, nullptr);
    goes_on = has_waiting || !is_stopping_;
    if (!goes_on && free_slots_.size() == slots_.size()) queue_ = nullptr;
  }
  if (!preparations.empty()) prepare_memory(queue, preparations);
  if (forgetting != nullptr) forget_memory(queue, forgetting);
  return goes_on;
}

// Without host memory for it, requests are served all the same.
void IoEngine::prepare_memory(IoQueue& queue, const std::vector<Preparation>& preparations) {
  (void)caught([&]() -> Status {
    for (const Preparation& prepare : preparations) prepare(queue);
    // What could not be prepared is part of it.
    std::string description = queue.description();
    const Lock lock(mutex_);
    description_ = std::move(description);
    return {};
  });
}

void IoEngine::forget_memory(IoQueue& queue, Forgetting* first) {
  for (Forgetting* each = first; each != nullptr; each = each->next) {
    (void)caught([&]() -> Status {
      each->is_done = queue.forget_memory(each->memory);
      return {};
    });
  }
  const Lock lock(mutex_);
  end_all(first);
}

void IoEngine::end_all(Forgetting* first) {
  for (Forgetting* each = first; each != nullptr; each = each->next) each->is_over = true;
  forgotten_.notify_all();
}

void IoEngine::fill(IoQueue& queue) {
  while (!free_slots_.empty()) {
    ActivePointer active = next_active();
    if (active == nullptr) return;
    if (!active->has_more()) {  // nothing was asked for
      active->done(0);
      continue;
    }
    const uint32_t index = free_slots_.back();
    free_slots_.pop_back();
    Slot& slot = slots_[index];
    slot.begin = active->pushed_bytes;
    slot.bytes = std::min(options_.block_bytes, active->bytes() - slot.begin);
    slot.retries = 0;
    slot.passing = 0;
    active->pushed_bytes += slot.bytes;
    ++active->in_flight;
    slot.active = std::move(active);
    push(queue, index);
  }
}

// The request whose block comes next, taken off its list with its last one; null where none waits.
IoEngine::ActivePointer IoEngine::next_active() {
  for (auto& waiting : waiting_) {
    while (!waiting.empty()) {
      ActivePointer active = waiting.front();
      const bool is_last = active->bytes() - active->pushed_bytes <= options_.block_bytes;
      const bool has_failed = active->error != 0;
      if (is_last || has_failed) waiting.pop_front();
      if (!has_failed) return active;
    }
  }
  return nullptr;
}

void IoEngine::push(IoQueue& queue, uint32_t index) {
  Slot& slot = slots_[index];
  const IoRequest& request = slot.active->request;
  IoOperation operation;
  operation.kind = request.kind;
  operation.memory = request.memory.data() + slot.begin;
  operation.bytes = slot.bytes;
  operation.offset = request.offset + slot.begin;
  // The last try of a read does not go where the others failed.
  const bool is_last_try = slot.retries > 0 && slot.retries == options_.read_retries;
  operation.file = is_last_try || request.kind == IoKind::kSync
                       ? request.file->buffered()
                       : request.file->descriptor_for(operation.memory, operation.bytes, operation.offset);
  operation.token = index;
  slot.is_direct = operation.file != request.file->buffered();
  ++news_.operations;
  queue.push(operation);
}

void IoEngine::complete(IoQueue& queue, const IoCompletion& completion) {
  Slot& slot = slots_[completion.token];
  int error = 0;
  if (goes_on(slot, completion.result, &error)) {
    push(queue, completion.token);
    return;
  }
  const ActivePointer active = std::move(slot.active);
  free_slots_.push_back(completion.token);
  if (active->error == 0) active->error = error;
  if (--active->in_flight > 0 || active->has_more()) return;
  const bool has_failed = active->error != 0;
  news_.failed_requests += has_failed ? 1 : 0;
  publish_counters();  // whoever waits for this request may look at once
  active->done(active->error);
}

// Tells whether the slot's block needs another operation; if not, *error is how it ended.
bool IoEngine::goes_on(Slot& slot, int64_t result, int* error) {
  const IoRequest& request = slot.active->request;
  if (request.kind == IoKind::kSync && result >= 0) return false;
  if (result > 0) {
    if (request.kind == IoKind::kWrite && !slot.is_direct) request.file->note_buffered_write();
    const auto done = std::min(static_cast<size_t>(result), slot.bytes);
    (request.kind == IoKind::kRead ? news_.read_bytes : news_.written_bytes) += done;
    slot.begin += done;
    slot.passing = 0;
    slot.bytes -= done;
    if (slot.bytes > 0) ++news_.short_operations;
    return slot.bytes > 0;
  }
  // A kernel that says 0 has come to the end of the file, or cannot write and does not say why.
  *error = result < 0 ? static_cast<int>(-result) : request.kind == IoKind::kRead ? ENODATA : EIO;
  if (is_passing(*error) && slot.passing < kMostPassing) {
    ++slot.passing;
    ++news_.repeated_operations;
    return true;
  }
  if (*error == EINVAL && slot.is_direct) {
    (void)caught([&]() -> Status {
      request.file->give_up_direct("an operation was refused with EINVAL");
      return {};
    });
    ++news_.direct_fallbacks;
    return true;
  }
  if (request.kind == IoKind::kRead && slot.retries < options_.read_retries) {
    ++slot.retries;
    ++news_.repeated_operations;
    return true;
  }
  return false;
}

void IoEngine::publish_counters() {
  const Lock lock(mutex_);
  counters_ = news_;
}

}  // namespace spillway
