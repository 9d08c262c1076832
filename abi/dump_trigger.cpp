#include "abi/dump_trigger.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <system_error>
#include <thread>

#include "stats/own_thread.h"

namespace spillway {
namespace {

// The handler touches these: sem_post and lock-free atomics are async-signal-safe.
sem_t wakeups;
std::atomic<bool> signalled{false};
std::atomic<bool> stopping{false};
static_assert(std::atomic<bool>::is_always_lock_free);

pid_t started_in = 0;  // the process that has the thread
int taken_signal = 0;
std::thread& worker() {
  static std::thread& thread = *new std::thread;
  return thread;
}

void on_signal(int) {
  const int error = errno;
  signalled.store(true);
  (void)sem_post(&wakeups);
  errno = error;
}

// Waits for a wake-up, at most until `deadline` of the monotonic clock where there is one.
void wait(const timespec* deadline) {
  const int waited =
      deadline == nullptr ? sem_wait(&wakeups) : sem_clockwait(&wakeups, CLOCK_MONOTONIC, deadline);
  (void)waited;  // an interrupted wait is looked into like any other
}

timespec after(const timespec& from, std::chrono::milliseconds time) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t ns = from.tv_nsec + (time.count() % 1000) * 1'000'000;
  timespec out{};
  out.tv_sec = from.tv_sec + time.count() / 1000 + ns / kSecond;
  out.tv_nsec = ns % kSecond;
  return out;
}

bool has_passed(const timespec& moment) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec != moment.tv_sec ? now.tv_sec > moment.tv_sec : now.tv_nsec >= moment.tv_nsec;
}

}  // namespace

DumpTrigger& DumpTrigger::instance() {
  static DumpTrigger trigger;
  return trigger;
}

void DumpTrigger::take_signal(int signal) {
  struct sigaction before {};
  if (sigaction(signal, nullptr, &before) != 0) return;
  if ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction ours {};
  ours.sa_handler = &on_signal;
  ours.sa_flags = SA_RESTART;
  if (sigaction(signal, &ours, nullptr) == 0) taken_signal = signal;
}

void DumpTrigger::start(int signal, std::chrono::milliseconds interval, Write write) {
  if (signal == 0 && interval.count() == 0) return;
  if (sem_init(&wakeups, 0, 0) != 0) return;
  try {
    worker() = start_own_thread([this, interval, asked = std::move(write)] { work(interval, asked); });
    started_in = getpid();
  } catch (const std::system_error&) {
    // Dumps come at exit and on call then.
  }
  if (started_in == getpid() && signal != 0) take_signal(signal);
}

void DumpTrigger::work(std::chrono::milliseconds interval, const Write& write) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  timespec next = after(now, interval);
  const bool has_interval = interval.count() > 0;
  while (!stopping.load()) {
    wait(has_interval ? &next : nullptr);
    if (stopping.load()) return;
    if (signalled.exchange(false)) write("signal");
    if (!has_interval || !has_passed(next)) continue;
    write("interval");
    clock_gettime(CLOCK_MONOTONIC, &now);
    next = after(now, interval);
  }
}

void DumpTrigger::stop() noexcept {
  if (started_in != getpid() || stopping.exchange(true)) return;
  if (taken_signal != 0) {
    struct sigaction now {};
    // One that comes late must not end the program.
    if (sigaction(taken_signal, nullptr, &now) == 0 && now.sa_handler == &on_signal) {
      (void)signal(taken_signal, SIG_IGN);
    }
  }
  (void)sem_post(&wakeups);
  try {
    worker().join();
  } catch (const std::system_error&) {
    // It is not to be waited for.
  }
}

}  // namespace spillway
