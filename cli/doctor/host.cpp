#include <fmt/format.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "cli/doctor/checks.h"
#include "cli/size.h"
#include "include/spillway/offload.h"
#include "include/spillway/spillway.h"
#include "stats/live_page.h"

namespace spillway {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

Check found(const char* name, bool is_so, std::string detail) {
  return {name, is_so ? CheckAnswer::kYes : CheckAnswer::kNo, std::move(detail), {}};
}

void examine_disk(const std::string& directory, std::vector<Check>& checks) {
  spw_disk_speed speed{};
  speed.size = sizeof speed;
  if (spw_disk_measure(directory.c_str(), 1 << 20, 0, &speed) != SPW_OK) {
    checks.push_back(found("spill_directory", false, spw_last_error()));
    return;
  }
  const std::string warning(speed.warning);
  const std::string engine(speed.engine);
  checks.push_back(found("spill_directory", true, warning.empty() ? directory : directory + ": " + warning));
  checks.push_back(found("io_uring", engine.find("uring") != std::string::npos, engine));
  checks.push_back(
      found("direct_io", speed.is_direct != 0,
            fmt::format("{}: {} the page cache", directory, speed.is_direct != 0 ? "past" : "only through")));
}

Check locked_memory() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
    return {"locked_memory", CheckAnswer::kUnknown, "no answer", {}};
  if (limit.rlim_cur == RLIM_INFINITY) return found("locked_memory", true, "unlimited");
  constexpr uint64_t kEnough = 64 << 20;
  return found(
      "locked_memory", limit.rlim_cur >= kEnough,
      fmt::format("{} (ulimit -l): matters to io_uring's buffers, not to memory that the driver pins",
                  format_size(std::max<uint64_t>(limit.rlim_cur, 1))));
}

Check huge_pages() {
  const std::string modes = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (modes.empty()) return {"huge_pages", CheckAnswer::kUnknown, "the kernel does not say", {}};
  return found("huge_pages", modes.find("[never]") == std::string::npos, "transparent: " + modes);
}

// The limit of this process' control group, version 2 or 1.
Check control_group() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::string path = line.substr(line.rfind(':') + 1);
    for (const std::string& file :
         {"/sys/fs/cgroup" + path + "/memory.max", std::string("/sys/fs/cgroup/memory.max"),
          "/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes"}) {
      const std::string text = first_line(file);
      uint64_t bytes = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
      // Version 1 writes "no limit" as a number near 2^63.
      if (error == std::errc() && bytes > 0 && bytes < uint64_t{1} << 60)
        return found("memory_limit", true, fmt::format("{} ({})", format_size(bytes), file));
    }
  }
  return found("memory_limit", false, "this process' control group has none");
}

Check process_service() {
  const char* chosen = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string folder = chosen != nullptr && *chosen != '\0' ? chosen : "/tmp/nvidia-mps";
  struct stat file {};
  const bool is_there = stat((folder + "/control").c_str(), &file) == 0;
  return found("multi_process_service", is_there,
               is_there ? folder : fmt::format("no control daemon at {}", folder));
}

// Tells what the interpreter that programs would use finds; nothing is imported.
Check pytorch() {
  constexpr const char* kAsk =
      "python3 -c \"import importlib.metadata as m, importlib.util as u\n"
      "print('torch', m.version('torch'), 'spillway', u.find_spec('spillway') is not None)\" 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> answer(popen(kAsk, "r"), pclose);
  std::array<char, 256> text{};
  if (answer == nullptr || fgets(text.data(), text.size(), answer.get()) == nullptr)
    return found("pytorch", false, "python3 finds no torch");
  const std::string_view line(text.data());
  const std::string version(line.substr(6, line.find(' ', 6) - 6));
  const bool has_package = line.find("True") != std::string_view::npos;
  return found("pytorch", has_package,
               has_package ? fmt::format("torch {} and the package spillway", version)
                           : fmt::format("torch {}, but no package spillway: pip install it", version));
}

Check live_view() {
  LivePage page;
  LivePage::Description description;
  description.program = "spillway doctor";
  Status status = page.open("", description);
  return found("live_view", status.ok(),
               status.ok() ? page.path().substr(0, page.path().rfind('/')) : status.text());
}

}  // namespace

std::vector<Check> examine_host(const std::string& spill_dir) {
  std::vector<Check> checks;
  examine_disk(spill_dir, checks);
  checks.push_back(locked_memory());
  checks.push_back(huge_pages());
  checks.push_back(control_group());
  checks.push_back(process_service());
  checks.push_back(pytorch());
  checks.push_back(live_view());
  return checks;
}

}  // namespace spillway
