#include "cli/launch/descendants.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kMostToEnd{30};
constexpr std::chrono::milliseconds kBetweenLooks{20};

// Lists those of every thread.
std::set<pid_t> children() {
  std::set<pid_t> found;
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(thread.path() / "children");
    for (pid_t child = 0; file >> child;) found.insert(child);
  }
  return found;
}

void reap() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace

void adopt_descendants() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

void end_descendants(int signal) {
  const auto deadline = Clock::now() + kMostToEnd;
  std::set<pid_t> told;
  reap();
  for (std::set<pid_t> left = children(); !left.empty(); left = children()) {
    const bool is_late = Clock::now() > deadline;
    for (const pid_t child : left) {
      if (is_late) ::kill(child, SIGKILL);
      if (told.insert(child).second) ::kill(child, signal);
    }
    std::this_thread::sleep_for(kBetweenLooks);
    reap();
  }
}

}  // namespace spillway
