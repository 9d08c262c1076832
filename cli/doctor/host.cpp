#include <fmt/format.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

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

// The limit of this process' control group, version 2 or 1; 0: none, and the file that says it.
std::pair<uint64_t, std::string> memory_limit() {
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
      if (error == std::errc() && bytes > 0 && bytes < uint64_t{1} << 60) return {bytes, file};
    }
  }
  return {0, ""};
}

// Tells what a container gives: memory, and what its processes share, of which Docker gives 64 MiB unless
// told.
void examine_container(std::vector<Check>& checks) {
  struct stat file {};
  const bool is_container = stat("/.dockerenv", &file) == 0 || stat("/run/.containerenv", &file) == 0 ||
                            std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  checks.push_back(found("container", is_container, is_container ? "this is one" : "none is seen"));
  const auto [limit, from] = memory_limit();
  checks.push_back(found(
      "memory_limit", limit > 0,
      limit > 0 ? fmt::format("{} ({})", format_size(limit), from) : "this process' control group has none"));
  constexpr uint64_t kEnoughMemory = uint64_t{8} << 30;
  if (limit > 0 && limit < kEnoughMemory)
    checks.push_back(
        found("memory_limit_suffices", false, format_size(limit) + " for all of it, pinned memory too"));
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) != 0) {
    checks.push_back(found("shared_memory", false, "there is no /dev/shm"));
    return;
  }
  constexpr uint64_t kEnoughShared = uint64_t{256} << 20;
  const uint64_t bytes = uint64_t{shared.f_blocks} * shared.f_frsize;
  checks.push_back(found("shared_memory", bytes >= kEnoughShared,
                         fmt::format("{} in /dev/shm, {} free", format_size(bytes),
                                     format_size(uint64_t{shared.f_bavail} * shared.f_frsize))));
}

Check process_service() {
  const char* chosen = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string folder = chosen != nullptr && *chosen != '\0' ? chosen : "/tmp/nvidia-mps";
  struct stat file {};
  const bool is_there = stat((folder + "/control").c_str(), &file) == 0;
  return found("multi_process_service", is_there,
               is_there ? folder : fmt::format("no control daemon at {}", folder));
}

// "13.0" as the driver writes it: 13000.
int cuda_version(const std::string& text) {
  int major = 0, minor = 0;
  return std::sscanf(text.c_str(), "%d.%d", &major, &minor) == 2 ? 1000 * major + 10 * minor : 0;
}

// A driver serves its own major version of CUDA and older ones.
Check pytorch_cuda(const std::string& built_for, int driver_version) {
  if (built_for == "None") return found("pytorch_cuda", false, "this PyTorch is built without CUDA");
  const std::string what = fmt::format("PyTorch is built for CUDA {}", built_for);
  const int wanted = cuda_version(built_for);
  if (wanted == 0 || driver_version == 0) return {"pytorch_cuda", CheckAnswer::kUnknown, what, {}};
  return found(
      "pytorch_cuda", wanted / 1000 <= driver_version / 1000,
      fmt::format("{}, the driver serves {}.{}", what, driver_version / 1000, driver_version % 1000 / 10));
}

// Tells what the interpreter that programs would use finds; PyTorch is not imported.
void examine_pytorch(int driver_version, std::vector<Check>& checks) {
  constexpr const char* kAsk = R"py("${SPILLWAY_PYTHON:-python3}" -c '
import importlib.metadata as m, importlib.util as u, pathlib, re
text = pathlib.Path(u.find_spec("torch").origin).with_name("version.py").read_text()
cuda = re.search(r"^cuda\b.*=\s*(\S+)", text, re.M)
has_package = u.find_spec("spillway") is not None
print(m.version("torch"), cuda[1].strip("\"\x27") if cuda else "?", has_package)' 2>/dev/null)py";
  const std::unique_ptr<FILE, int (*)(FILE*)> answer(popen(kAsk, "r"), pclose);
  std::array<char, 256> text{};
  if (answer == nullptr || fgets(text.data(), text.size(), answer.get()) == nullptr) {
    const char* named = std::getenv("SPILLWAY_PYTHON");
    checks.push_back({"pytorch",
                      CheckAnswer::kUnknown,
                      fmt::format("{} finds no torch; SPILLWAY_PYTHON names another Python",
                                  named == nullptr ? "python3" : named),
                      {}});
    return;
  }
  std::istringstream words(text.data());
  std::string version, built_for, has_package;
  words >> version >> built_for >> has_package;
  checks.push_back(found("pytorch", has_package == "True",
                         has_package == "True" ? fmt::format("torch {} and the package spillway", version)
                                               : fmt::format("torch {}, but no package spillway", version)));
  checks.push_back(pytorch_cuda(built_for, driver_version));
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

std::vector<Check> examine_host(const std::string& spill_dir, int driver_version) {
  std::vector<Check> checks;
  examine_disk(spill_dir, checks);
  checks.push_back(locked_memory());
  checks.push_back(huge_pages());
  examine_container(checks);
  checks.push_back(process_service());
  examine_pytorch(driver_version, checks);
  checks.push_back(live_view());
  return checks;
}

}  // namespace spillway
