#include "cli/launch/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "cli/launch/program.h"

namespace spillway {
namespace {

struct Forwarded {
  int number;
  const char* name;
};
constexpr std::array<Forwarded, 6> kForwarded = {{{SIGTERM, "SIGTERM"},
                                                  {SIGHUP, "SIGHUP"},
                                                  {SIGINT, "SIGINT"},
                                                  {SIGQUIT, "SIGQUIT"},
                                                  {SIGUSR1, "SIGUSR1"},
                                                  {SIGUSR2, "SIGUSR2"}}};

// A signal's handler knows these.
std::atomic<pid_t> child{0};
std::atomic<int> told_to_end{0};  // the signal
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void forward(int number, siginfo_t* info, void*) {
  if (number != SIGUSR1 && number != SIGUSR2) told_to_end = number;
  if (info->si_code > 0) return;  // of the kernel: a terminal's key, which the program has got too
  const int error = errno;
  if (const pid_t program = child; program > 0) ::kill(program, number);
  errno = error;
}

int forwardings = 0;
std::array<struct sigaction, kForwarded.size()> before_forwarding{};

// In the child, which is to have what this process was started with.
void forward_no_more() {
  for (size_t i = 0; i < kForwarded.size(); ++i)
    ::sigaction(kForwarded[i].number, &before_forwarding[i], nullptr);
}

// In the child: becomes the program, or says through the pipe why not.
[[noreturn]] void become(const std::vector<std::string>& program, pid_t parent, const sigset_t& signals,
                         int failure) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(128 + SIGKILL);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  const int error = become_program(program);
  (void)!::write(failure, &error, sizeof error);
  ::_exit(127);
}

Ended wait_for(pid_t program) {
  int ended = 0;
  while (::waitpid(program, &ended, 0) < 0 && errno == EINTR) {
  }
  child = 0;
  return WIFSIGNALED(ended) ? Ended{0, WTERMSIG(ended)} : Ended{WEXITSTATUS(ended), 0};
}

}  // namespace

Forwarding::Forwarding() {
  if (++forwardings > 1) return;
  struct sigaction wanted {};
  wanted.sa_sigaction = forward;
  wanted.sa_flags = SA_SIGINFO | SA_RESTART;
  for (size_t i = 0; i < kForwarded.size(); ++i) {
    ::sigaction(kForwarded[i].number, nullptr, &before_forwarding[i]);
    if (before_forwarding[i].sa_handler != SIG_IGN) ::sigaction(kForwarded[i].number, &wanted, nullptr);
  }
}

Forwarding::~Forwarding() {
  if (--forwardings == 0) forward_no_more();
}

Result<Ended> run_and_wait(const std::vector<std::string>& program) {
  if (told_to_end != 0)
    return Status::io(fmt::format("{} came: what was left is not run", name_of_signal(told_to_end)));
  int failure[2];
  if (::pipe2(failure, O_CLOEXEC) != 0) return not_started(program, errno);
  const Forwarding forwarding;
  const pid_t self = ::getpid();
  // Between the fork and the program no signal is lost.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t started = ::fork();
  if (started == 0) {
    forward_no_more();
    become(program, self, before, failure[1]);
  }
  child = started;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  const int fork_error = errno;
  ::close(failure[1]);
  if (started < 0) {
    ::close(failure[0]);
    return not_started(program, fork_error);
  }
  int error = 0;
  const bool failed = ::read(failure[0], &error, sizeof error) == sizeof error;
  ::close(failure[0]);
  const Ended ended = wait_for(started);
  if (failed) return not_started(program, error);
  return ended;
}

int asked_to_end() {
  return told_to_end;
}

std::string name_of_signal(int number) {
  const auto* const row = std::find_if(kForwarded.begin(), kForwarded.end(),
                                       [&](const Forwarded& one) { return one.number == number; });
  return row == kForwarded.end() ? fmt::format("signal {}", number) : row->name;
}

int end_as(const Ended& ended) {
  if (ended.signal == 0) return ended.code;
  constexpr rlimit kNone{0, 0};
  ::setrlimit(RLIMIT_CORE, &kNone);
  std::signal(ended.signal, SIG_DFL);
  ::raise(ended.signal);
  return ended.exit_code();
}

}  // namespace spillway
