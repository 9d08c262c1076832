// bench_allocator: what an allocation and a free cost, Spillway's beside PyTorch's own allocator's, both in
// this process on one device, run after run in turn.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>

#include "bench/cases.h"
#include "driver/context.h"

namespace spillway::bench {
namespace {

struct Options {
  std::string driver;
  std::string filter;
  std::string configuration;
  bool smoke = false;
  bool ratios = false;
  int repeats = 9;
  double seconds = 0.05;
};

// The simulated device unless the caller names a driver: many times the memory that any case needs, nothing
// behind it, and work that is complete when it is enqueued. The program's own environment must not disturb a
// comparison.
Status choose_driver(std::string path, const std::string& configuration) {
  if (path.empty()) {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return Status::io("/proc/self/exe cannot be read: " + error.message());
    path = (program.parent_path().parent_path() / "lib" / "sim" / "libcuda.so.1").string();
  }
  for (const char* name : {"SPILLWAY_CONF", "SPILLWAY_CONF_FILE", "SPILLWAY_STATS"}) unsetenv(name);
  const bool set =
      setenv("SPILLWAY_LIBCUDA", path.c_str(), 1) == 0 &&
      setenv("SPILLWAY_CONF", ("strict:on," + configuration).c_str(), 1) == 0 &&
      setenv("SPILLWAY_SIM", "capacity:256GiB,backing:none,completion:instant,races:off", 1) == 0;
  return set ? Status() : Status::internal("the environment of this process cannot be changed");
}

Status open_device(const Driver& driver, Device* device) {
  device->driver = &driver;
  CUdevice handle = 0;
  Status status = driver.check(driver.cuDeviceGet(&handle, 0), "cuDeviceGet");
  if (status.ok()) {
    status =
        driver.check(driver.cuDevicePrimaryCtxRetain(&device->context, handle), "cuDevicePrimaryCtxRetain");
  }
  if (status.ok()) status = driver.check(driver.cuCtxSetCurrent(device->context), "cuCtxSetCurrent");
  for (CUstream& stream : device->streams) {
    if (status.ok())
      status = driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  return status;
}

// Keeps each repeat's time by contender, and the first failure.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.error_occurred && error_.empty()) error_ = run.error_message;
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      const std::string& name = run.run_name.function_name;
      const size_t slash = name.rfind('/');
      times_[name.substr(slash + 1)].push_back(run.GetAdjustedRealTime());
    }
  }

  const std::string& error() const { return error_; }

  // 0 where the contender did not run.
  double median(const std::string& contender) {
    std::vector<double>& times = times_[contender];
    if (times.empty()) return 0;
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  std::map<std::string, std::vector<double>> times_;
  std::string error_;
};

void initialize_library(const Options& options) {
  std::vector<std::string> words = {
      "bench_allocator", fmt::format("--benchmark_repetitions={}", options.smoke ? 1 : options.repeats),
      fmt::format("--benchmark_min_time={}", options.smoke ? 0.001 : options.seconds),
      "--benchmark_enable_random_interleaving=true"};
  std::vector<char*> arguments;
  arguments.reserve(words.size());
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
}

std::string row(const CaseName& test, double spillway_ns, double native_ns, bool ratio_only) {
  const std::string ratio = native_ns > 0 ? fmt::format("{:.3f}", spillway_ns / native_ns) : "-";
  const std::string native = native_ns > 0 ? fmt::format("{:.1f}", native_ns) : "-";
  if (ratio_only) return fmt::format("{:<32} {:>7} {:>8}\n", test.name, test.threads, ratio);
  return fmt::format("{:<32} {:>7} {:>12.1f} {:>12} {:>8}\n", test.name, test.threads, spillway_ns, native,
                     ratio);
}

Status run(const Options& options) {
  Status status = choose_driver(options.driver, options.configuration);
  if (!status.ok()) return status;
  Result<std::shared_ptr<const Driver>> driver = Driver::open();
  if (!driver.ok()) return driver.take_status();
  Device device;
  status = open_device(*driver.value(), &device);
  if (!status.ok()) return status;

  std::vector<Contender> contenders = {spillway_contender()};
  Result<Contender> native = native_contender();
  if (native.ok()) {
    contenders.push_back(native.value());
  } else if (native.status().code() == SPW_ERROR_UNSUPPORTED) {
    fmt::print(stderr, "spillway alone, {}\n", native.status().text());
  } else {
    return native.take_status();
  }

  const std::vector<CaseName> cases = register_cases(options.filter, contenders, device);
  if (cases.empty())
    return Status::invalid_argument(fmt::format("--filter '{}' matches no case", options.filter));
  initialize_library(options);

  fmt::print("{:<32} {:>7}", "case", "threads");
  if (!options.ratios) fmt::print(" {:>12} {:>12}", "spillway ns", "native ns");
  fmt::print(" {:>8}\n", "ratio");
  for (const CaseName& test : cases) {
    for (const Contender& contender : contenders) {
      if (contender.empty_cache() != SPW_OK) {
        return Status::internal(fmt::format("{}: {}", contender.name, contender.last_error()));
      }
    }
    Collector collector;
    benchmark::RunSpecifiedBenchmarks(&collector,
                                      fmt::format("^{}/[a-z]+/.*threads:{}$", test.name, test.threads));
    if (!collector.error().empty())
      return Status::internal(fmt::format("{}: {}", test.name, collector.error()));
    const double spillway_ns = collector.median("spillway");
    if (spillway_ns <= 0) return Status::internal(fmt::format("{}: nothing was measured", test.name));
    fmt::print("{}", row(test, spillway_ns, collector.median("native"), options.ratios));
    std::fflush(stdout);
  }
  if (std::ferror(stdout) != 0) return Status::io("the result cannot be written to standard output");
  return {};
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  spillway::bench::Options options;
  CLI::App app{
      "Nanoseconds per allocation and free, Spillway beside PyTorch's own allocator: medians of repeats that "
      "take\n"
      "turns, wall time over the pairs of all threads."};
  app.add_option("--driver", options.driver, "The libcuda.so.1 to run on; without it the simulated device");
  app.add_option("--filter", options.filter, "Only the cases whose name contains this text");
  app.add_option("--conf", options.configuration, "Spillway's options, as SPILLWAY_CONF has them");
  app.add_flag("--ratios", options.ratios, "Print only the ratio spillway/native of each case");
  app.add_flag("--smoke", options.smoke, "Run every case, but for an instant: the figures mean nothing");
  app.add_option("--repeats", options.repeats, "Runs of each contender in each case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Least length of one run")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "bench_allocator: {}\n", error.what());
    return 1;
  }
  const spillway::Status status = spillway::bench::run(options);
  if (!status.ok()) {
    fmt::print(stderr, "bench_allocator: {}\n", status.text());
    return 1;
  }
  return 0;
}
