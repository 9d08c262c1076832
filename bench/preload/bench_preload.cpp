// bench_preload: what a program pays for memory through the hooked entry points, beside the C ABI called
// directly, in one process on the simulated device: the cost is the host's.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "driver/driver.h"
#include "include/spillway/spillway.h"
#include "sim/cuda/sim_control.h"

namespace spillway::bench {
namespace {

// Holds the functions of the hooks, as a program finds them, and of the device, to count what they call.
struct Calls {
  PFN_cuMemAllocAsync_v11020 alloc_async = nullptr;
  PFN_cuMemFreeAsync_v11020 free_async = nullptr;
  PFN_cuMemAlloc_v3020 alloc = nullptr;
  PFN_cuMemFree_v3020 free = nullptr;
  PFN_cuStreamCreate_v2000 stream_create = nullptr;
  PFN_cuCtxGetCurrent_v4000 get_current = nullptr;
  decltype(&spwSimCalls) count = nullptr;
  decltype(&spwSimHostWaits) waits = nullptr;
};
Calls calls;
CUstream stream = nullptr;
CUstream busy[4] = {};

template <typename Function>
bool bind(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  if (*out == nullptr) std::fprintf(stderr, "bench_preload: %s is not there\n", name);
  return *out != nullptr;
}

bool prepare() {
  std::error_code error;
  const auto build = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  const std::string driver_path = (build / "lib" / "sim" / "libcuda.so.1").string();
  const std::string preload_path = (build / "lib" / "libspillway_preload.so").string();
  for (const char* name : {"SPILLWAY_CONF", "SPILLWAY_CONF_FILE", "SPILLWAY_STATS"}) ::unsetenv(name);
  ::setenv("SPILLWAY_LIBCUDA", driver_path.c_str(), 1);
  ::setenv("SPILLWAY_SIM", "capacity:256GiB,backing:none,completion:instant,races:off", 1);
  const Result<std::shared_ptr<const Driver>> driver = Driver::open();
  if (!driver.ok()) {
    std::fprintf(stderr, "bench_preload: %s\n", driver.status().text().c_str());
    return false;
  }
  CUcontext context = nullptr;
  driver.value()->cuDevicePrimaryCtxRetain(&context, 0);
  driver.value()->cuCtxSetCurrent(context);
  void* hooks = dlopen(preload_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* device = dlopen(driver_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (hooks == nullptr || device == nullptr) {
    std::fprintf(stderr, "bench_preload: %s\n", dlerror());
    return false;
  }
  const bool bound =
      bind(hooks, "cuMemAllocAsync", &calls.alloc_async) &&
      bind(hooks, "cuMemFreeAsync", &calls.free_async) && bind(hooks, "cuMemAlloc_v2", &calls.alloc) &&
      bind(hooks, "cuMemFree_v2", &calls.free) && bind(hooks, "cuStreamCreate", &calls.stream_create) &&
      bind(device, "cuCtxGetCurrent", &calls.get_current) && bind(device, "spwSimCalls", &calls.count) &&
      bind(device, "spwSimHostWaits", &calls.waits);
  if (!bound) return false;
  for (CUstream& made : busy) calls.stream_create(&made, CU_STREAM_NON_BLOCKING);
  return calls.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
}

void direct_pair_on(benchmark::State& state, CUstream on) {
  const auto bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    void* block = nullptr;
    if (spw_alloc(bytes, 0, on, &block) != SPW_OK || spw_free(block) != SPW_OK)
      return state.SkipWithError(spw_last_error());
  }
}

void direct_pair(benchmark::State& state) {
  direct_pair_on(state, stream);
}
void direct_pair_on_default_stream(benchmark::State& state) {
  direct_pair_on(state, nullptr);
}

void hooked_pair(benchmark::State& state, CUstream on) {
  const auto bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    CUdeviceptr block = 0;
    if (calls.alloc_async(&block, bytes, on) != CUDA_SUCCESS || calls.free_async(block, on) != CUDA_SUCCESS)
      return state.SkipWithError("the pair failed");
  }
}
void stream_ordered_pair(benchmark::State& state) {
  hooked_pair(state, stream);
}
void stream_ordered_pair_on_default_stream(benchmark::State& state) {
  hooked_pair(state, nullptr);
}

// The driver's answer that each call on a default stream needs, so that what is the hooks' own can be told.
void current_context(benchmark::State& state) {
  for (auto _ : state) {
    CUcontext context = nullptr;
    if (calls.get_current(&context) != CUDA_SUCCESS) return state.SkipWithError("no answer");
    benchmark::DoNotOptimize(context);
  }
}

// Beside the time: what a free costs of the driver, with four streams beside the default one.
void legacy_pair(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const uint64_t events = calls.count("cuEventRecord");
  const uint64_t queries = calls.count("cuStreamQuery");
  const uint64_t waits = calls.waits();
  for (auto _ : state) {
    CUdeviceptr block = 0;
    if (calls.alloc(&block, bytes) != CUDA_SUCCESS || calls.free(block) != CUDA_SUCCESS)
      return state.SkipWithError("the pair failed");
  }
  const auto frees = static_cast<double>(state.iterations());
  state.counters["events/free"] = static_cast<double>(calls.count("cuEventRecord") - events) / frees;
  state.counters["queries/free"] = static_cast<double>(calls.count("cuStreamQuery") - queries) / frees;
  state.counters["waits/free"] = static_cast<double>(calls.waits() - waits) / frees;
}

constexpr int64_t kSizes[] = {512, 64 << 10, 8 << 20};
void at_sizes(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t bytes : kSizes) benchmark->Arg(bytes);
}
BENCHMARK(direct_pair)->Apply(at_sizes);
BENCHMARK(direct_pair_on_default_stream)->Apply(at_sizes);
BENCHMARK(stream_ordered_pair)->Apply(at_sizes);
BENCHMARK(stream_ordered_pair_on_default_stream)->Apply(at_sizes);
BENCHMARK(current_context);
BENCHMARK(legacy_pair)->Apply(at_sizes);

}  // namespace
}  // namespace spillway::bench

int main(int count, char** arguments) {
  if (!spillway::bench::prepare()) return 1;
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
