// Kernels and device variables: what the compiler's start-up code registers, and what launches them.
//
// The registered code is never read: the driver below finds a function for every name, and a launch is a
// position on its stream. Functions are looked up in the driver when they are first launched, variables get
// their memory when they are first asked for; both once for each context.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/cudart/runtime.h"

using spillway::cudart::DriverTable;
using spillway::cudart::note;

namespace spillway::cudart {
namespace {

struct Variable {
  size_t bytes = 0;
  std::map<CUcontext, CUdeviceptr> addresses;
};

struct Kernel {
  const char* name = nullptr;
  std::map<CUcontext, CUfunction> functions;
};

// Never destroyed: other libraries unregister from their own static destructors.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> kernels;      // by the host function that launches it
  std::unordered_map<const void*, Variable> variables;  // by the variable's host shadow
  std::map<CUcontext, CUmodule> modules;
};

Registry& registry() {
  static auto* const kRegistry = new Registry;
  return *kRegistry;
}

struct LaunchConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<LaunchConfiguration> pushed_configurations;

// What is loaded late is loaded whatever the thread is capturing, as lazy loading does.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverTable& driver) : driver_(driver) {
    driver_.exchange_capture_mode(&mode_);
  }
  ~RelaxedCapture() { driver_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DriverTable& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// The driver with the thread's context, made current if need be; null where there is none.
const DriverTable* driver_in(CUcontext* context, cudaError_t* error) {
  const DriverTable* table = driver_with_context(error);
  if (table != nullptr) table->ctx_get_current(context);
  return table;
}

// The driver's function for a registered kernel in the thread's context.
cudaError_t find_function(const void* host_function, const DriverTable** driver, CUfunction* out) {
  cudaError_t error = cudaSuccess;
  CUcontext context = nullptr;
  const DriverTable* table = *driver = driver_in(&context, &error);
  if (table == nullptr) return error;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto kernel = all.kernels.find(host_function);
  if (kernel == all.kernels.end()) return cudaErrorInvalidDeviceFunction;
  const auto known = kernel->second.functions.find(context);
  if (known != kernel->second.functions.end()) {
    *out = known->second;
    return cudaSuccess;
  }
  const RelaxedCapture relaxed(*table);
  CUmodule& module = all.modules[context];
  CUresult result = CUDA_SUCCESS;
  if (module == nullptr) result = table->module_load_data(&module, "");
  if (result == CUDA_SUCCESS) result = table->module_get_function(out, module, kernel->second.name);
  if (result == CUDA_SUCCESS) kernel->second.functions[context] = *out;
  return static_cast<cudaError_t>(result);
}

cudaError_t launch(const void* host_function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                   cudaStream_t stream) {
  const DriverTable* driver = nullptr;
  CUfunction function = nullptr;
  const cudaError_t error = find_function(host_function, &driver, &function);
  if (error != cudaSuccess || driver == nullptr) return note(error);
  return note(static_cast<cudaError_t>(
      driver->launch_kernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                            static_cast<unsigned>(shared_bytes), stream, arguments, nullptr)));
}

cudaError_t find_variable(const void* symbol, CUdeviceptr* out) {
  cudaError_t error = cudaSuccess;
  CUcontext context = nullptr;
  const DriverTable* table = driver_in(&context, &error);
  if (table == nullptr) return error;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto variable = all.variables.find(symbol);
  if (variable == all.variables.end()) return cudaErrorInvalidSymbol;
  CUdeviceptr& address = variable->second.addresses[context];
  if (address == 0) {
    const RelaxedCapture relaxed(*table);
    error = static_cast<cudaError_t>(table->mem_alloc(&address, variable->second.bytes));
  }
  *out = address;
  return error;
}

}  // namespace
}  // namespace spillway::cudart

using spillway::cudart::registry;

extern "C" {

// The names are the compiler's.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void** __cudaRegisterFatBinary(void* binary) {
  return new void*(binary);
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void** handle) {
  delete handle;
}

char __cudaInitModule(void**) {
  return 1;
}

void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  const std::lock_guard lock(registry().mutex);
  registry().kernels[host_function].name = name;
}

void __cudaRegisterVar(void**, char* host_variable, char*, const char*, int, size_t bytes, int, int) {
  const std::lock_guard lock(registry().mutex);
  registry().variables[host_variable].bytes = bytes;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* stream) {
  spillway::cudart::pushed_configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  auto& pushed = spillway::cudart::pushed_configurations;
  if (pushed.empty()) return note(cudaErrorMissingConfiguration);
  *grid = pushed.back().grid;
  *block = pushed.back().block;
  *shared_bytes = pushed.back().shared_bytes;
  *static_cast<cudaStream_t*>(stream) = pushed.back().stream;
  pushed.pop_back();
  return cudaSuccess;
}

// A kernel's handle is its host function.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  const std::lock_guard lock(registry().mutex);
  if (!registry().kernels.contains(host_function)) return note(cudaErrorInvalidDeviceFunction);
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return spillway::cudart::launch(kernel, grid, block, arguments, shared_bytes, stream);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return spillway::cudart::launch(function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        size_t shared_bytes, cudaStream_t stream) {
  return spillway::cudart::launch(function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  if (config == nullptr) return note(cudaErrorInvalidValue);
  return spillway::cudart::launch(function, config->gridDim, config->blockDim, arguments,
                                  config->dynamicSmemBytes, config->stream);
}

// As of a small kernel: 32 registers, no memory of its own, and the most threads a block may have.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (attributes == nullptr) return note(cudaErrorInvalidValue);
  const DriverTable* driver = nullptr;
  CUfunction found = nullptr;
  const cudaError_t error = spillway::cudart::find_function(function, &driver, &found);
  if (error != cudaSuccess) return note(error);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 48 * 1024;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int) {
  const DriverTable* driver = nullptr;
  CUfunction found = nullptr;
  return note(spillway::cudart::find_function(function, &driver, &found));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_size,
                                                                   size_t, unsigned) {
  if (blocks == nullptr || block_size <= 0) return note(cudaErrorInvalidValue);
  constexpr int kThreadsPerMultiprocessor = 2048;
  *blocks = kThreadsPerMultiprocessor / block_size;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes,
                                                                0);
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  if (pointer == nullptr) return note(cudaErrorInvalidValue);
  CUdeviceptr address = 0;
  const cudaError_t error = spillway::cudart::find_variable(symbol, &address);
  *pointer = reinterpret_cast<void*>(address);
  return note(error);
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  CUdeviceptr address = 0;
  if (const cudaError_t error = spillway::cudart::find_variable(symbol, &address); error != cudaSuccess) {
    return note(error);
  }
  return cudaMemcpy(reinterpret_cast<void*>(address + offset), source, bytes, kind);
}

}  // extern "C"
