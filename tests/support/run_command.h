// Runs the built command as a user does and keeps what came out of it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace spillway::test {

struct CommandResult {
  int code = -1;  // the exit code; -1 where a signal ended it
  std::string out;
  std::string err;

  auto error_lines() const { return std::count(err.begin(), err.end(), '\n'); }
};

struct CommandOptions {
  std::vector<std::pair<std::string, std::string>> environment = {};
  const char* out_path = nullptr;  // where stdout goes instead of into `out`
};

inline std::string all_of(int fd) {
  std::string text(static_cast<size_t>(std::max<off_t>(0, lseek(fd, 0, SEEK_END))), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  close(fd);
  return text;
}

// `spillway` lies beside the test program.
inline CommandResult run_command(std::vector<std::string> args, const CommandOptions& options = {}) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "spillway";
  args.insert(args.begin(), program);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const int out = options.out_path != nullptr ? open(options.out_path, O_WRONLY) : memfd_create("out", 0);
  const int err = memfd_create("err", 0);
  const pid_t child = fork();
  if (child == 0) {
    for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  CommandResult result;
  int state = 0;
  waitpid(child, &state, 0);
  result.code = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  result.err = all_of(err);
  if (options.out_path == nullptr) {
    result.out = all_of(out);
  } else {
    close(out);
  }
  return result;
}

}  // namespace spillway::test
