#include "cli/replay/sim_device.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>

#include <fmt/format.h>

namespace spillway {

namespace {

constexpr unsigned kStreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

// Looks one function up; the first that is missing is remembered.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void find(const char* name, Function*& out) {
    void* symbol = dlsym(library_, name);
    if (symbol == nullptr && missing_.empty()) missing_ = name;
    std::memcpy(&out, &symbol, sizeof out);
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

}  // namespace

std::string default_sim_path() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "libcuda.so.1";
  return (program.parent_path().parent_path() / "lib" / "sim" / "libcuda.so.1").string();
}

Result<SimDevice> SimDevice::open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Status::io(fmt::format("the simulated driver cannot be opened: {}", why != nullptr ? why : path));
  }
  SimDevice sim;
  Symbols symbols(library);
  symbols.find("spwSimTouch", sim.touch);
  symbols.find("spwSimMark", sim.mark);
  symbols.find("spwSimCompleteTo", sim.complete_to);
  symbols.find("spwSimCalls", sim.calls_of);
  symbols.find("spwSimTotalCalls", sim.total_calls);
  symbols.find("spwSimEntryPoint", sim.entry_point);
  symbols.find("spwSimResetCounters", sim.reset_counters);
  symbols.find("spwSimHostWaits", sim.host_waits);
  symbols.find("spwSimStreamWaits", sim.stream_waits);
  symbols.find("spwSimVirtualNs", sim.virtual_ns);
  symbols.find("spwSimPeakPhysicalBytes", sim.peak_physical_bytes);
  symbols.find("spwSimPeakMappings", sim.peak_mappings);
  symbols.find("cuStreamCreate", sim.stream_create_);
  int (*init)(unsigned) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  symbols.find("cuInit", init);
  symbols.find("cuDevicePrimaryCtxRetain", retain);
  symbols.find("cuCtxSetCurrent", set_current);
  if (!symbols.missing().empty()) {
    return Status::unsupported(
        fmt::format("{} is not the simulated driver: it lacks {}", path, symbols.missing()));
  }
  ::unsetenv("CUDA_VISIBLE_DEVICES");  // of the machine's devices, which a replay does not use
  void* context = nullptr;
  int code = init(0);
  if (code == 0) code = retain(&context, 0);
  if (code == 0) code = set_current(context);
  if (code != 0) return Status::driver(fmt::format("the simulated driver did not start: CUresult {}", code));
  return sim;
}

Result<SimDevice::Stream> SimDevice::create_stream() const {
  Stream stream = nullptr;
  const int code = stream_create_(&stream, kStreamNonBlocking);
  if (code != 0) return Status::driver(fmt::format("cuStreamCreate: CUresult {}", code));
  return stream;
}

uint64_t SimDevice::calls(const std::vector<const char*>& names) const {
  uint64_t sum = 0;
  for (const char* name : names) sum += calls_of(name);
  return sum;
}

}  // namespace spillway
