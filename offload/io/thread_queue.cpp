#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <thread>
#include <vector>

#include "offload/io/queue.h"
#include "stats/lock.h"
#include "stats/own_thread.h"

namespace spillway {
namespace {

class ThreadQueue final : public IoQueue {
 public:
  ThreadQueue(uint32_t depth, std::string reason) : depth_(depth), reason_(std::move(reason)) {
    waiting_.reserve(depth);
    completions_.reserve(depth);
  }
  ~ThreadQueue() override {
    stop();
    for (std::thread& thread : threads_) thread.join();
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  Status start(uint32_t threads) {
    try {
      threads_.reserve(threads);  // one that runs must have its place
      while (threads_.size() < threads) threads_.push_back(start_own_thread([this] { work(); }));
    } catch (const std::exception& error) {
      if (threads_.empty()) return Status::io(fmt::format("no thread can be started: {}", error.what()));
    }
    return {};
  }

  void push(const IoOperation& operation) override {
    {
      const Lock lock(mutex_);
      waiting_.push_back(operation);
    }
    has_work_.notify_one();
  }

  size_t wait(std::span<IoCompletion> out) override {
    const Lock lock(mutex_);
    has_news_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return was_woken_ || !completions_.empty(); });
    was_woken_ = false;
    const size_t found = std::min(out.size(), completions_.size());
    std::copy_n(completions_.begin(), found, out.begin());
    completions_.erase(completions_.begin(), completions_.begin() + static_cast<ptrdiff_t>(found));
    return found;
  }

  void wake() override {
    {
      const Lock lock(mutex_);
      was_woken_ = true;
    }
    has_news_.notify_one();
  }

  void use_memory(std::span<std::byte>) override {}
  bool forget_memory(std::span<std::byte>) override { return true; }
  void use_file(int) override {}
  uint32_t depth() const override { return depth_; }
  std::string description() const override {
    return fmt::format("{} threads of pread and pwrite ({})", threads_.size(), reason_);
  }

 private:
  void stop() {
    {
      const Lock lock(mutex_);
      is_stopping_ = true;
    }
    has_work_.notify_all();
  }

  void work() {
    PausableLock lock(mutex_);
    while (true) {
      has_work_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return is_stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const IoOperation operation = waiting_.front();
      waiting_.erase(waiting_.begin());
      lock.unlock();
      const IoCompletion completion{operation.token, run(operation)};
      lock.lock();
      completions_.push_back(completion);
      has_news_.notify_one();
    }
  }

  static int64_t run(const IoOperation& operation) {
    if (operation.kind == IoKind::kSync) return fdatasync(operation.file) == 0 ? 0 : -errno;
    const auto offset = static_cast<off_t>(operation.offset);
    const ssize_t done = operation.kind == IoKind::kRead
                             ? pread(operation.file, operation.memory, operation.bytes, offset)
                             : pwrite(operation.file, operation.memory, operation.bytes, offset);
    return done < 0 ? -errno : done;
  }

  const uint32_t depth_;
  const std::string reason_;
  BlockingMutex mutex_;
  Condition has_work_;
  Condition has_news_;
  std::vector<IoOperation> waiting_ SPW_GUARDED_BY(mutex_);  // never more than depth_, like those below
  std::vector<IoCompletion> completions_ SPW_GUARDED_BY(mutex_);
  bool was_woken_ SPW_GUARDED_BY(mutex_) = false;
  bool is_stopping_ SPW_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // all started before anybody but themselves has the queue
};

}  // namespace

Result<std::unique_ptr<IoQueue>> make_thread_queue(uint32_t depth, uint32_t threads, std::string reason) {
  auto queue = std::make_unique<ThreadQueue>(depth, std::move(reason));
  if (Status status = queue->start(std::max(threads, 1U)); !status.ok()) return status;
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace spillway
