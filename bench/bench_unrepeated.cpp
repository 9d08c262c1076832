// bench_unrepeated: what programs that never repeat themselves cost, quarter by quarter of a run: processor
// time for each call, beside PyTorch's own allocator's in the same process, driver calls, and memory.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "bench/contender.h"
#include "bench/unrepeated/programs.h"
#include "cli/torch_peer/torch_peer.h"
#include "driver/context.h"
#include "include/spillway/spillway.h"

namespace spillway::bench {
namespace {

constexpr int kQuarters = 4;
constexpr int kTurns = 16;  // of each contender in a quarter

struct Options {
  std::vector<std::string> programs = program_names();
  std::string configuration;
  std::string simulation = "completion:instant";
  uint64_t calls = 400'000;
  uint64_t seed = 1;
  int threads = 1;
  double capacity = 0;  // of what is live at once; 0: 80 GiB
  bool expandable = false;
};

struct Counters {
  uint64_t (*total_calls)() = nullptr;
  uint64_t (*host_waits)() = nullptr;
};

struct Quarter {
  uint64_t calls = 0;
  uint64_t cpu_ns = 0;
  uint64_t driver_calls = 0;
  uint64_t host_waits = 0;
};

uint64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Each contender has a device of its own, so that none takes the other's room.
struct Device {
  const Driver* driver = nullptr;
  int ordinal = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
};

// A contender with its threads, each of which runs a program of its own on the one stream.
class Runner {
 public:
  // `peer`: of PyTorch's allocator; null for another.
  Runner(const Contender& contender, const std::string& program, const Options& options, const Device& device,
         const TorchPeer* peer)
      : contender_(contender), barrier_(options.threads + 1) {
    for (int i = 0; i < options.threads; ++i) {
      const auto seed = options.seed * 1000 + static_cast<uint64_t>(i);
      programs_.push_back(make_program(program, seed, static_cast<uint32_t>(options.threads)));
    }
    for (int i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this, i, device, peer] {
        device.driver->cuCtxSetCurrent(device.context);
        if (peer != nullptr && peer->set_device(device.ordinal) != SPW_OK) refused_ = true;
        work(*programs_[static_cast<size_t>(i)], device.stream);
      });
    }
  }
  ~Runner() {
    target_ = 0;
    barrier_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Runs on until each thread has made so many calls; false when one was refused.
  bool run_to(uint64_t calls, const Counters& counters, Quarter& quarter) {
    const uint64_t calls_before = this->calls();
    const uint64_t driver_before = counters.total_calls();
    const uint64_t waits_before = counters.host_waits();
    cpu_ns_ = 0;
    target_ = calls;
    barrier_.arrive_and_wait();
    barrier_.arrive_and_wait();
    quarter.calls += this->calls() - calls_before;
    quarter.cpu_ns += cpu_ns_;
    quarter.driver_calls += counters.total_calls() - driver_before;
    quarter.host_waits += counters.host_waits() - waits_before;
    return !refused_;
  }
  const Contender& contender() const { return contender_; }
  uint64_t peak_live_bytes() const { return peak_live_; }
  std::string refusal() {
    const std::lock_guard lock(refusal_mutex_);
    return refusal_;
  }
  uint64_t calls() const {
    uint64_t sum = 0;
    for (const auto& program : programs_) sum += program->calls();
    return sum;
  }

 private:
  void work(Program& program, CUstream stream) {
    Server server{[this, stream](uint64_t bytes) -> void* {
                    void* out = nullptr;
                    if (contender_.allocate(bytes, stream, &out) != SPW_OK) {
                      const std::string text = contender_.last_error();
                      const std::lock_guard lock(refusal_mutex_);
                      refusal_ = text.substr(0, text.find('\n'));
                      return nullptr;
                    }
                    const uint64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
                    if (live > peak_live_.load(std::memory_order_relaxed)) peak_live_ = live;
                    return out;
                  },
                  [this](void* block, uint64_t bytes) {
                    if (contender_.free(block) != SPW_OK) refused_ = true;
                    live_.fetch_sub(bytes, std::memory_order_relaxed);
                  }};
    for (;;) {
      barrier_.arrive_and_wait();
      if (target_ == 0) return program.end(server);
      const uint64_t begin = thread_cpu_ns();
      try {
        while (!refused_ && program.calls() < target_) program.step(server);
      } catch (const std::bad_alloc&) {
        refused_ = true;
      }
      cpu_ns_ += thread_cpu_ns() - begin;
      barrier_.arrive_and_wait();
    }
  }

  const Contender contender_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::barrier<> barrier_;
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> target_{0};
  std::atomic<uint64_t> cpu_ns_{0};
  std::atomic<uint64_t> live_{0};
  std::atomic<uint64_t> peak_live_{0};
  std::atomic<bool> refused_{false};
  std::mutex refusal_mutex_;
  std::string refusal_;  // what the allocator said of it, to the thread that asked
};

// The most that the program has in its hands at once, which no allocator is needed to know. Those of several
// threads are made as if they took turns, step by step.
uint64_t peak_live_bytes(const std::string& name, const Options& options) {
  uint64_t live = 0;
  uint64_t peak = 0;
  Server server{[&](uint64_t bytes) {
                  live += bytes;
                  peak = std::max(peak, live);
                  return static_cast<void*>(&live);
                },
                [&](void* /*block*/, uint64_t bytes) { live -= bytes; }};
  const std::unique_ptr<Program> program = make_program(name, options.seed * 1000, 1);
  while (program->calls() < options.calls) program->step(server);
  return peak;
}

Status choose_simulation(const Options& options) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status::io("/proc/self/exe cannot be read: " + error.message());
  const auto library = program.parent_path().parent_path() / "lib" / "sim" / "libcuda.so.1";
  uint64_t capacity = uint64_t{80} << 30;
  if (options.capacity > 0) {
    const auto live = static_cast<double>(peak_live_bytes(options.programs.front(), options));
    // Whole pages, as a device has them.
    capacity = (static_cast<uint64_t>(live * options.capacity) + (2 << 20) - 1) >> 21 << 21;
  }
  for (const char* name : {"SPILLWAY_CONF", "SPILLWAY_CONF_FILE", "SPILLWAY_STATS"}) unsetenv(name);
  const std::string simulation =
      fmt::format("devices:2,capacity:{},backing:none,races:off,{}", capacity, options.simulation);
  const bool set = setenv("SPILLWAY_LIBCUDA", library.c_str(), 1) == 0 &&
                   setenv("SPILLWAY_CONF", ("strict:on," + options.configuration).c_str(), 1) == 0 &&
                   setenv("SPILLWAY_SIM", simulation.c_str(), 1) == 0;
  return set ? Status() : Status::internal("the environment of this process cannot be changed");
}

Status open_device(const Driver& driver, int ordinal, Device& device) {
  device.driver = &driver;
  device.ordinal = ordinal;
  CUdevice handle = 0;
  Status status = driver.check(driver.cuDeviceGet(&handle, ordinal), "cuDeviceGet");
  if (status.ok())
    status =
        driver.check(driver.cuDevicePrimaryCtxRetain(&device.context, handle), "cuDevicePrimaryCtxRetain");
  if (status.ok()) status = driver.check(driver.cuCtxSetCurrent(device.context), "cuCtxSetCurrent");
  if (status.ok())
    status = driver.check(driver.cuStreamCreate(&device.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return status;
}

Result<Counters> counters_of(const Driver& driver) {
  Counters counters;
  counters.total_calls = reinterpret_cast<uint64_t (*)()>(driver.find("spwSimTotalCalls"));
  counters.host_waits = reinterpret_cast<uint64_t (*)()>(driver.find("spwSimHostWaits"));
  if (counters.total_calls == nullptr || counters.host_waits == nullptr)
    return Status::unsupported("the simulated device is needed, which counts what it is asked for");
  return counters;
}

std::string row(const std::string& program, const Runner& runner, const Quarter* quarters,
                uint64_t peak_reserved) {
  std::string text = fmt::format("{:<10} {:<10}", program, runner.contender().name);
  for (int i = 0; i < kQuarters; ++i)
    text += fmt::format(" {:>7.0f}", static_cast<double>(quarters[i].cpu_ns) /
                                         static_cast<double>(std::max<uint64_t>(quarters[i].calls, 1)));
  for (int i = 0; i < kQuarters; ++i) text += fmt::format(" {:>8}", quarters[i].driver_calls);
  uint64_t waits = 0;
  for (int i = 0; i < kQuarters; ++i) waits += quarters[i].host_waits;
  text += fmt::format(" {:>6} {:>8.4f}\n", waits,
                      static_cast<double>(peak_reserved) / static_cast<double>(runner.peak_live_bytes()));
  return text;
}

Status measure(const std::string& program, const Options& options, const TorchPeer* peer,
               const std::array<Device, 2>& devices) {
  Result<Counters> counters = counters_of(*devices[0].driver);
  if (!counters.ok()) return counters.take_status();
  std::vector<Contender> contenders = {spillway_contender()};
  if (peer != nullptr) contenders.push_back(native_contender(*peer, options.expandable));
  std::vector<std::unique_ptr<Runner>> runners;
  for (size_t i = 0; i < contenders.size(); ++i) {
    const Contender& contender = contenders[i];
    if (contender.empty_cache() != SPW_OK)
      return Status::internal(fmt::format("{}: {}", contender.name, contender.last_error()));
    runners.push_back(
        std::make_unique<Runner>(contender, program, options, devices[i], i == 1 ? peer : nullptr));
  }
  if (spw_stats_reset_peaks(0) != SPW_OK) return Status::internal(spw_last_error());
  if (peer != nullptr && peer->reset_peaks(1) != SPW_OK) return Status::internal(peer->last_error());
  std::vector<std::array<Quarter, kQuarters>> quarters(runners.size());
  const uint64_t turns = uint64_t{kQuarters} * kTurns;
  for (uint64_t turn = 0; turn < turns; ++turn) {
    const uint64_t calls = options.calls * (turn + 1) / turns / static_cast<uint64_t>(options.threads);
    for (size_t i = 0; i < runners.size(); ++i) {
      // Each begins every other turn.
      const size_t which = (i + turn) % runners.size();
      if (runners[which]->run_to(calls, counters.value(), quarters[which][turn / kTurns])) continue;
      fmt::print("{:<10} {:<10} was refused after {} calls: {}\n", program, runners[which]->contender().name,
                 runners[which]->calls(), runners[which]->refusal());
      return {};
    }
  }
  spw_stats stats{};
  stats.size = sizeof stats;
  if (spw_stats_get(0, &stats) != SPW_OK) return Status::internal(spw_last_error());
  for (size_t i = 0; i < runners.size(); ++i) {
    const uint64_t reserved =
        i == 0 ? static_cast<uint64_t>(stats.reserved_bytes.all.peak) : peer->peak_reserved_bytes(1);
    fmt::print("{}", row(program, *runners[i], quarters[i].data(), reserved));
  }
  if (runners.size() == 2) {
    fmt::print("{:<10} {:<10}", program, "ratio");
    for (int i = 0; i < kQuarters; ++i) {
      const auto ns = [&](size_t of) {
        return static_cast<double>(quarters[of][static_cast<size_t>(i)].cpu_ns) /
               static_cast<double>(quarters[of][static_cast<size_t>(i)].calls);
      };
      fmt::print(" {:>7.2f}", ns(0) / ns(1));
    }
    fmt::print("\n");
  }
  std::fflush(stdout);
  return {};
}

Status run(const Options& options) {
  Status status = choose_simulation(options);
  if (!status.ok()) return status;
  Result<std::shared_ptr<const Driver>> driver = Driver::open();
  if (!driver.ok()) return driver.take_status();
  std::array<Device, 2> devices;
  for (size_t i = devices.size(); i-- > 0;) {
    status = open_device(*driver.value(), static_cast<int>(i), devices[i]);
    if (!status.ok()) return status;
  }
  const TorchPeer* peer = nullptr;
  if (options.capacity == 0) {
    Result<const TorchPeer*> loaded = load_torch_peer(options.expandable, 2);
    if (loaded.ok()) {
      peer = loaded.value();
    } else if (loaded.status().code() == SPW_ERROR_UNSUPPORTED) {
      fmt::print(stderr, "spillway alone, {}\n", loaded.status().text());
    } else {
      return loaded.take_status();
    }
  }
  fmt::print("{:<10} {:<10} {:^31} {:^35} {:>6} {:>8}\n", "program", "", "ns a call, by quarter",
             "driver calls, by quarter", "waits", "reserved");
  for (const std::string& program : options.programs) {
    status = measure(program, options, peer, devices);
    if (!status.ok()) return status;
  }
  if (std::ferror(stdout) != 0) return Status::io("the result cannot be written to standard output");
  return {};
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  spillway::bench::Options options;
  bool smoke = false;
  CLI::App app{
      "Programs that never repeat themselves, Spillway beside PyTorch's own allocator on the simulated "
      "device,\n"
      "both in turns: nanoseconds of processor time a call and driver calls by quarter of the run, host "
      "waits,\n"
      "and the most that was reserved over the most that was live."};
  app.add_option("programs", options.programs, "Those to run; without any, all")
      ->check(CLI::IsMember(spillway::bench::program_names()));
  app.add_option("--calls", options.calls, "Allocations and frees of each program")
      ->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of what is drawn")->capture_default_str();
  app.add_option("--threads", options.threads, "Threads that share the work and the stream")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--capacity", options.capacity,
                 "Of the device, over what is live at once: Spillway alone, one program, one thread")
      ->check(CLI::Range(1.0, 100.0));
  app.add_option("--conf", options.configuration, "Spillway's options, as SPILLWAY_CONF has them");
  app.add_option("--sim", options.simulation, "The simulated device's, as SPILLWAY_SIM has them")
      ->capture_default_str();
  app.add_flag("--expandable", options.expandable, "PyTorch's allocator uses expandable segments");
  app.add_flag("--smoke", smoke, "A thousand calls of each: the figures mean nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "bench_unrepeated: {}\n", error.what());
    return 1;
  }
  if (smoke) options.calls = 1000;
  if (options.capacity > 0 && (options.programs.size() != 1 || options.threads != 1)) {
    fmt::print(stderr, "bench_unrepeated: --capacity is for one program and one thread\n");
    return 1;
  }
  const spillway::Status status = spillway::bench::run(options);
  if (!status.ok()) {
    fmt::print(stderr, "bench_unrepeated: {}\n", status.text());
    return 1;
  }
  return 0;
}
