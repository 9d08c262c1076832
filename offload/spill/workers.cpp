#include "offload/spill/workers.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "stats/own_thread.h"

namespace spillway {
namespace {

// Pieces come in bursts; starting a thread costs a tenth of the work on one.
constexpr std::chrono::milliseconds kLinger{20};

}  // namespace

Workers::~Workers() {
  stop();
}

void Workers::stop() {
  const Lock lock(mutex_);
  is_stopping_ = true;
  given_.notify_all();
  ended_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return threads_ == 0; });
}

bool Workers::start() {
  if (idle_ >= jobs_.size() || threads_ == most_threads_) return threads_ > 0;
  try {
    start_own_thread([this] { work(); }).detach();
    ++threads_;
  } catch (const std::exception&) {
    // The threads that there are do it.
  }
  return threads_ > 0;
}

void Workers::run(std::function<void()> job) {
  {
    const Lock lock(mutex_);
    jobs_.push_back(std::move(job));
    if (start()) {
      given_.notify_one();
      return;
    }
    job = std::move(jobs_.back());
    jobs_.pop_back();
  }
  job();
}

void Workers::drain() {
  const Lock lock(mutex_);
  ended_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return jobs_.empty() && idle_ == threads_; });
}

void Workers::work() {
  PausableLock lock(mutex_);
  for (;;) {
    ++idle_;
    ended_.notify_all();
    given_.wait_for(mutex_, kLinger, [&]() SPW_REQUIRES(mutex_) { return !jobs_.empty() || is_stopping_; });
    --idle_;
    if (jobs_.empty()) break;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
  --threads_;
  ended_.notify_all();  // with the lock held: nothing of this object is touched afterwards
}

}  // namespace spillway
