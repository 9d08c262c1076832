// Replays in processes of their own: a fresh simulated device and fresh allocator state for each, and no way
// for a crash to pass for success. The parent has no threads and never opens the driver.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "cli/replay/run.h"
#include "cli/replay/sim_device.h"

namespace spillway {

namespace {

static_assert(std::is_trivially_copyable_v<RunResult>);

// A worker sends back this, then `text_bytes` of text.
struct Message {
  spw_status code = SPW_OK;
  uint32_t text_bytes = 0;
  RunResult result;
};

// The user's own settings must not disturb a comparison.
void clear_environment() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals == nullptr) continue;
    std::string name(*entry, static_cast<size_t>(equals - *entry));
    if (name.rfind("SPILLWAY_", 0) == 0 || name.rfind("PYTORCH_", 0) == 0) names.push_back(std::move(name));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
}

std::string sim_settings(const RunRequest& request) {
  const bool run_ahead = request.completion == Completion::kRunAhead && !request.measure_time;
  return fmt::format("capacity:{}B,backing:none,races:off,completion:{},set_access_cost:{},costs:{}",
                     request.capacity_bytes, run_ahead ? "run-ahead" : "instant",
                     request.set_access_cost == SetAccessCost::kPerMapping ? "per-mapping" : "per-call",
                     request.dear_costs ? "dear" : "cheap");
}

Result<RunResult> work(const ReplayProgram& program, const RunRequest& request) {
  clear_environment();
  const std::string path = request.sim_path.empty() ? default_sim_path() : request.sim_path;
  // The capacity is what the allocators have, to the last page: nothing else is on the device.
  const std::string options = "reserve:0,profile:" + request.profile;
  if (setenv("SPILLWAY_CONF", options.c_str(), 1) != 0 || setenv("SPILLWAY_LIBCUDA", path.c_str(), 1) != 0 ||
      setenv("SPILLWAY_SIM", sim_settings(request).c_str(), 1) != 0) {
    return Status::internal("the environment of the worker cannot be set");
  }
  auto sim = SimDevice::open(path);
  if (!sim.ok()) return sim.take_status();
  auto target = request.allocator == AllocatorKind::kSpillway
                    ? make_spillway_target()
                    : make_torch_target(request.allocator == AllocatorKind::kExpandable);
  if (!target.ok()) return target.take_status();
  auto result = run_program(program, request, sim.value(), *target.value());
  // The allocators stay as they are until the process is gone.
  static_cast<void>(target.value().release());
  return result;
}

bool write_all(int fd, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(fd, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<size_t>(done);
  }
  return true;
}

[[noreturn]] void worker_main(const ReplayProgram& program, const RunRequest& request, int result_fd,
                              int error_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int null_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null_fd >= 0) {
    dup2(null_fd, STDIN_FILENO);
    dup2(null_fd, STDOUT_FILENO);
  }
  if (error_fd >= 0) dup2(error_fd, STDERR_FILENO);
  auto result = work(program, request);
  Message message;
  std::string text;
  if (result.ok()) {
    message.result = result.value();
  } else {
    message.code = result.status().code();
    text = result.status().text();
    message.text_bytes = static_cast<uint32_t>(text.size());
  }
  const bool sent =
      write_all(result_fd, &message, sizeof message) && write_all(result_fd, text.data(), text.size());
  _exit(sent ? 0 : 1);
}

class Worker {
 public:
  Worker(const ReplayProgram& program, const RunRequest& request, size_t index) : index_(index) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
      start_error_ = fmt::format("no pipe to a replay worker: {}", std::strerror(errno));
      return;
    }
    error_fd_ = memfd_create("spillway-replay-stderr", MFD_CLOEXEC);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      ::close(fds[0]);
      worker_main(program, request, fds[1], error_fd_, parent);
    }
    ::close(fds[1]);
    read_fd_ = fds[0];
    if (pid_ < 0) start_error_ = fmt::format("no replay worker: {}", std::strerror(errno));
  }

  ~Worker() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      reap();
    }
    if (read_fd_ >= 0) ::close(read_fd_);
    if (error_fd_ >= 0) ::close(error_fd_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  size_t index() const { return index_; }
  int fd() const { return read_fd_; }
  const std::string& start_error() const { return start_error_; }

  // Takes what has come; false when the worker has nothing more to say.
  bool receive() {
    char buffer[4096];
    const ssize_t got = ::read(read_fd_, buffer, sizeof buffer);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (got <= 0) return false;
    received_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  Result<RunResult> finish() {
    const int state = reap();
    Message message;
    if (received_.size() < sizeof message || state != 0) return died(state);
    std::memcpy(&message, received_.data(), sizeof message);
    if (message.code == SPW_OK) return message.result;
    return Status(message.code, received_.substr(sizeof message));
  }

 private:
  int reap() {
    int state = 0;
    while (waitpid(pid_, &state, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return state;
  }

  Status died(int state) const {
    std::string how = WIFSIGNALED(state) ? fmt::format("was killed by signal {} ({})", WTERMSIG(state),
                                                       strsignal(WTERMSIG(state)))
                                         : fmt::format("ended with code {}", WEXITSTATUS(state));
    const std::string line = telling_line();
    return Status::internal(fmt::format("the replay worker {}{}{}", how, line.empty() ? "" : ": ", line));
  }

  // Returns, of what the worker wrote to stderr, the first line that speaks of an error, or the last one.
  std::string telling_line() const {
    std::string text(4096, '\0');
    const ssize_t got = error_fd_ < 0 ? -1 : pread(error_fd_, text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    std::string last;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      std::string line = text.substr(at, end - at);
      at = end + 1;
      if (!line.empty()) last = line;
      if (line.find("rror") != std::string::npos || line.find("ERROR") != std::string::npos) return line;
    }
    return last;
  }

  size_t index_;
  pid_t pid_ = -1;
  int read_fd_ = -1;
  int error_fd_ = -1;
  std::string received_;
  std::string start_error_;
};

}  // namespace

Result<std::vector<RunResult>> run_in_workers(const ReplayProgram& program,
                                              const std::vector<RunRequest>& requests, unsigned jobs) {
  std::vector<RunResult> results(requests.size());
  std::vector<std::unique_ptr<Worker>> running;
  size_t next = 0;
  while (next < requests.size() || !running.empty()) {
    while (next < requests.size() && running.size() < std::max(1u, jobs)) {
      running.push_back(std::make_unique<Worker>(program, requests[next], next));
      ++next;
      if (!running.back()->start_error().empty()) return Status::internal(running.back()->start_error());
    }
    std::vector<pollfd> polls;
    for (const auto& worker : running) polls.push_back({worker->fd(), POLLIN, 0});
    if (poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) {
      return Status::internal(fmt::format("waiting for replay workers: {}", std::strerror(errno)));
    }
    for (size_t i = polls.size(); i-- > 0;) {
      if (polls[i].revents == 0 || running[i]->receive()) continue;
      auto result = running[i]->finish();
      if (!result.ok()) return result.take_status();
      results[running[i]->index()] = result.value();
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return results;
}

Result<RunResult> run_in_worker(const ReplayProgram& program, const RunRequest& request) {
  auto results = run_in_workers(program, {request}, 1);
  if (!results.ok()) return results.take_status();
  return results.value().front();
}

}  // namespace spillway
