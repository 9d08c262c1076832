// bench_trace: what recording costs. Blocks are allocated and freed with recording off, on, and with stacks,
// each in a process of its own, run after run in turn; the processor time of the allocating thread alone
// counts, which is what the program feels where a core is left for the writer.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "include/spillway/spillway.h"
#include "stats/trace_record.h"

namespace spillway::bench {
namespace {

constexpr int kDepth = 8;  // frames between main and the allocation

struct Options {
  bool smoke = false;
  int repeats = 9;
};

struct Mode {
  const char* name;
  const char* configuration;  // %s is the trace's path
};
constexpr Mode kModes[] = {{"recording off", ""},
                           {"recorded", ",trace:%s"},
                           {"recorded, C++ stacks", ",trace:%s,trace_stacks:cpp"},
                           {"stacks for dumps", ",dump_stacks:on"}};

[[noreturn]] void give_up(const char* what) {
  fmt::print(stderr, "bench_trace: {}: {}\n", what, spw_last_error());
  std::_Exit(1);
}

void check(spw_status status, const char* what) {
  if (status != SPW_OK) give_up(what);
}

uint64_t thread_ns() {
  return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

void pairs(uint64_t count, size_t bytes) {
  for (uint64_t i = 0; i < count; ++i) {
    void* block = nullptr;
    check(spw_alloc(bytes, 0, nullptr, &block), "spw_alloc");
    check(spw_free(block), "spw_free");
  }
}

// So that a stack is as deep as said.
[[gnu::noinline]] void at_depth(int depth, uint64_t count, size_t bytes) {
  if (depth == 0) {
    pairs(count, bytes);
  } else {
    at_depth(depth - 1, count, bytes);
  }
  asm volatile("");  // no call of this function is its last
}

// ns for each event, an allocation or a free. Pieces shorter than what fills a ring, with pauses for the
// writer to keep up where it has to share the processor: dropped records would cost less.
double measure(bool smoke, size_t bytes) {
  Result<std::shared_ptr<const Driver>> driver = Driver::open();
  CUcontext context = nullptr;
  if (!driver.ok() || driver.value()->cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      driver.value()->cuCtxSetCurrent(context) != CUDA_SUCCESS) {
    give_up("the simulated device");
  }
  constexpr uint64_t kPiece = 5000;
  const int pieces = smoke ? 2 : 40;
  at_depth(kDepth, kPiece, bytes);
  std::vector<uint64_t> times;
  for (int piece = 0; piece < pieces; ++piece) {
    usleep(smoke ? 1000 : 20000);
    const uint64_t begin = thread_ns();
    at_depth(kDepth, kPiece, bytes);
    times.push_back(thread_ns() - begin);
  }
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) / (2 * kPiece);
}

double measure_in_child(const Mode& mode, bool smoke, size_t bytes, const std::string& folder) {
  int ends[2] = {};
  if (pipe(ends) != 0) give_up("pipe");
  std::fflush(stdout);  // what is left in the buffer the child would print again
  const pid_t child = fork();
  if (child == 0) {
    std::string configuration = "strict:on" + std::string(mode.configuration);
    if (const size_t at = configuration.find("%s"); at != std::string::npos)
      configuration.replace(at, 2, folder + "/bench.zst");
    setenv("SPILLWAY_CONF", configuration.c_str(), 1);
    const double ns = measure(smoke, bytes);
    if (write(ends[1], &ns, sizeof ns) != static_cast<ssize_t>(sizeof ns)) std::_Exit(1);
    std::exit(0);
  }
  close(ends[1]);
  double ns = 0;
  const bool whole = read(ends[0], &ns, sizeof ns) == static_cast<ssize_t>(sizeof ns);
  close(ends[0]);
  int state = 0;
  waitpid(child, &state, 0);
  if (!whole || state != 0) {
    fmt::print(stderr, "bench_trace: {}: the measuring process died\n", mode.name);
    std::_Exit(1);
  }
  return ns;
}

int run(const Options& options) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  setenv("SPILLWAY_LIBCUDA", (program.parent_path().parent_path() / "lib" / "sim" / "libcuda.so.1").c_str(),
         0);
  setenv("SPILLWAY_SIM", "capacity:256GiB,backing:none,completion:instant,races:off", 1);
  std::string folder = std::filesystem::temp_directory_path() / "bench_trace_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) give_up("a folder for the trace");
  fmt::print("{:<24} {:>8} {:>12} {:>10} {:>8}\n", "mode", "bytes", "ns per event", "more", "ratio");
  for (const size_t bytes : {size_t{512}, size_t{8} << 20}) {
    std::vector<std::vector<double>> times(std::size(kModes));
    for (int repeat = 0; repeat < (options.smoke ? 1 : options.repeats); ++repeat) {
      for (size_t mode = 0; mode < std::size(kModes); ++mode) {
        times[mode].push_back(measure_in_child(kModes[mode], options.smoke, bytes, folder));
      }
    }
    for (size_t mode = 0; mode < std::size(kModes); ++mode) {
      std::sort(times[mode].begin(), times[mode].end());
      const double ns = times[mode][times[mode].size() / 2];
      const double off = times[0][times[0].size() / 2];
      fmt::print("{:<24} {:>8} {:>12.1f} {:>10.1f} {:>8.2f}\n", kModes[mode].name, bytes, ns, ns - off,
                 ns / off);
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return std::ferror(stdout) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  spillway::bench::Options options;
  CLI::App app{
      "Processor time of an allocation or a free, recorded and not: medians of repeats that take turns."};
  app.add_flag("--smoke", options.smoke, "Run everything, but for an instant: the figures mean nothing");
  app.add_option("--repeats", options.repeats, "Processes of each mode")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "bench_trace: {}\n", error.what());
    return 1;
  }
  return spillway::bench::run(options);
}
