// A process that somebody ends by a signal for which its program has no handler. What it held is told before
// it ends, by the same signal.
//
// Python's own handlers run between two of the program's instructions, which may be long in coming. So this
// one is the system's, Python and the program do not see it, and a thread of its own, which only waits, calls
// Python.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace spillway::holders {
namespace {

constexpr std::array kEndings = {SIGTERM, SIGHUP};
// Python's lock may be held by what never gives it up.
constexpr std::chrono::seconds kMostToBegin{10};
constexpr std::chrono::seconds kMostToTell{60};
// A process and its group may both be sent a signal, as `timeout` does; what comes later is meant to end it.
constexpr time_t kSecondsOfOneEnding = 2;

enum class Telling { kNot, kBegan, kDone };

// Holds what the handler knows of the process that started it; a child of fork has no thread that would tell.
struct Ending {
  void (*tell)() = nullptr;
  pid_t process = 0;
  int pipe[2] = {-1, -1};
  std::atomic<time_t> began{0};
};

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  Telling telling = Telling::kNot;
};

Ending ending;
static_assert(std::atomic<time_t>::is_always_lock_free);

// Not destroyed: a thread waits for it to the end.
Progress& progress() {
  static Progress& one = *new Progress;
  return one;
}

void reach(Telling telling) {
  const std::lock_guard lock(progress().mutex);
  progress().telling = telling;
  progress().changed.notify_all();
}

bool is_reached(Telling telling, std::chrono::seconds most) {
  std::unique_lock lock(progress().mutex);
  return progress().changed.wait_for(lock, most, [&] { return progress().telling >= telling; });
}

time_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec;
}

// Only what may be called in a handler.
void on_ending(int number) {
  const int error = errno;
  time_t began = 0;
  if (::getpid() != ending.process) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // it comes when this returns
  } else if (ending.began.compare_exchange_strong(began, now())) {
    const char byte = static_cast<char>(number);
    (void)!::write(ending.pipe[1], &byte, 1);
  } else if (now() - began >= kSecondsOfOneEnding) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
  errno = error;
}

// Signals are other threads' to take.
void start_thread(void (*work)()) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread(work).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void tell() {
  ending.tell();
  reach(Telling::kDone);
}

void wait_and_end() {
  char number = 0;
  while (::read(ending.pipe[0], &number, 1) < 0 && errno == EINTR) {
  }
  if (number == 0) return;
  start_thread(tell);
  if (is_reached(Telling::kBegan, kMostToBegin)) (void)is_reached(Telling::kDone, kMostToTell);
  ::signal(number, SIG_DFL);
  ::kill(::getpid(), number);
}

}  // namespace
}  // namespace spillway::holders

extern "C" {

// Once in a process, and again in a child of fork. `tell` is called in a thread that Python does not know,
// without its lock; the process ends when it returns. A signal that the program handles or ignores stays as
// it is.
__attribute__((visibility("default"))) void spillway_holders_tell_before_ending(void (*tell)()) {
  using namespace spillway::holders;
  ending.tell = tell;
  ending.process = ::getpid();
  ending.began = 0;
  if (::pipe2(ending.pipe, O_CLOEXEC) != 0) return;
  start_thread(wait_and_end);
  for (const int number : kEndings) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_DFL) continue;
    action = {};
    action.sa_handler = on_ending;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    ::sigaction(number, &action, nullptr);
  }
}

// In `tell`, once Python's lock is had.
__attribute__((visibility("default"))) void spillway_holders_tells() {
  spillway::holders::reach(spillway::holders::Telling::kBegan);
}

// Called when the interpreter ends, and has told.
__attribute__((visibility("default"))) void spillway_holders_told() {
  using namespace spillway::holders;
  if (ending.process != ::getpid() || ending.began != 0) return;
  for (const int number : kEndings) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == on_ending) ::signal(number, SIG_DFL);
  }
}

}  // extern "C"
