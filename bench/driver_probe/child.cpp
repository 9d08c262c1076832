#include "bench/driver_probe/child.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

namespace spillway::probe {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Does not return. It may call only what a child of a process with threads may.
[[noreturn]] void become(std::vector<char*> words, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core = {};
  setrlimit(RLIMIT_CORE, &no_core);
  dup2(output, STDOUT_FILENO);
  execv("/proc/self/exe", words.data());
  _exit(127);
}

// Everything until the other end closes; false where that was not before the deadline.
bool read_until(int file, Clock::time_point deadline, std::string& text) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd wanted = {file, POLLIN, 0};
    if (poll(&wanted, 1, static_cast<int>(left)) <= 0) continue;
    char part[4096];
    const ssize_t count = read(file, part, sizeof part);
    if (count == 0) return true;
    if (count > 0) text.append(part, static_cast<size_t>(count));
  }
}

Json outcome(int status, const std::string& text) {
  if (WIFSIGNALED(status)) return {{"crashed", strsignal(WTERMSIG(status))}};
  Json found = Json::parse(text, nullptr, false);
  if (!found.is_discarded()) return found;
  return {{"error", fmt::format("it printed no report and ended with exit code {}", WEXITSTATUS(status))}};
}

}  // namespace

Json measure_alone(const Options& options, const std::string& name) {
  std::vector<std::string> arguments = measuring_arguments(options);
  arguments.insert(arguments.begin(), "driver_probe");
  arguments.insert(arguments.end(), {"--alone", name});
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {{"error", std::strerror(errno)}};
  const pid_t child = fork();
  if (child == 0) become(words, ends[1]);
  close(ends[1]);
  std::string text;
  const bool in_time =
      read_until(ends[0], Clock::now() + std::chrono::seconds(options.section_seconds), text);
  close(ends[0]);
  if (child < 0) return {{"error", "no further process can be started"}};
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (!in_time) return {{"ended_after_seconds", options.section_seconds}};
  return outcome(status, text);
}

}  // namespace spillway::probe
