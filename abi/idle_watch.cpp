#include "abi/idle_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <utility>

#include "stats/own_thread.h"

namespace spillway {
namespace {

thread_local bool watch_holds_for_fork = false;

}  // namespace

BlockingMutex IdleWatch::looks;

IdleWatch& IdleWatch::instance() {
  static IdleWatch& watch = *new IdleWatch;
  return watch;
}

void IdleWatch::add(std::chrono::milliseconds after, Device device) {
  if (after.count() == 0 || is_inherited()) return;
  const Lock lock(mutex_);
  watched_.push_back(std::make_unique<Watched>(Watched{std::move(device), {}}));
  if (watched_.size() > 1) return;
  after_ = after;
  start();
}

void IdleWatch::remove(int ordinal) {
  if (is_inherited()) return;
  ++removals_;
  const Lock looking(looks);
  --removals_;
  const Lock lock(mutex_);
  for (const std::unique_ptr<Watched>& watched : watched_) {
    if (watched->device.ordinal == ordinal) watched->is_over = true;
  }
}

bool IdleWatch::is_inherited() const {
  const pid_t owner = owner_;
  return owner != 0 && owner != getpid();
}

void IdleWatch::start() {
  owner_ = getpid();
  if (pthread_atfork(before_fork, after_fork, after_fork) != 0) return;
  try {
    thread_ = start_own_thread([this] { work(); });
    std::atexit([] { instance().stop(); });
  } catch (const std::exception&) {
    // The program still says itself when it is idle.
  }
}

void IdleWatch::work() {
  pthread_setname_np(pthread_self(), "spillway-idle");
  PausableLock lock(mutex_);
  while (!changed_.wait_for(mutex_, after_ / QuietSpell::kLooks, [this] { return is_stopping_.load(); })) {
    for (size_t i = 0; i < watched_.size(); ++i) {
      Watched& watched = *watched_[i];
      // Whoever adds a device holds locks that evicting takes.
      lock.unlock();
      look(watched);
      lock.lock();
    }
  }
}

void IdleWatch::look(Watched& watched) {
  const Lock looking(looks);
  try {
    if (watched.is_over) return;
    const Device& device = watched.device;
    if (!watched.spell.look(device.calls(), device.is_quiet)) return;
    if (!device.relieve([this] { return !is_stopping_ && removals_ == 0; })) watched.spell.begin_anew();
  } catch (const std::exception&) {
    // The host has no memory left: the device keeps what it holds.
  }
}

// The region that is being evicted goes on to its end.
void IdleWatch::stop() {
  if (is_inherited()) return;
  {
    const Lock lock(mutex_);  // orders the change before what the thread waits for next
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// Who waits for longer is a region that moves.
void IdleWatch::before_fork() {
  watch_holds_for_fork = !instance().is_inherited() && lock_for_fork(looks);
}

void IdleWatch::after_fork() {
  unlock_after_fork(looks, std::exchange(watch_holds_for_fork, false));
}

}  // namespace spillway
