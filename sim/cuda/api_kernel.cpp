// Modules, functions and launches. Any image loads and every function name is found; a launch is a position
// on its stream and computes nothing.
#include <map>
#include <memory>
#include <string>

#include "sim/cuda/call.h"
#include "sim/cuda/overheads.h"

using namespace spillway::sim;

namespace {

constexpr int kThreadsPerMultiprocessor = 2048;
constexpr int kMultiprocessors = 132;
char linked_image = 0;

struct Module {
  std::map<std::string, std::unique_ptr<int>> functions;  // a function's handle is its entry's address
};

// Guarded by State's lock, like everything behind a Call.
std::map<CUmodule, std::unique_ptr<Module>>& modules() {
  static auto* const kModules = new std::map<CUmodule, std::unique_ptr<Module>>;
  return *kModules;
}

// By a function's handle. A function of no module takes no memory.
std::map<CUfunction, CUmodule>& modules_of_functions() {
  static auto* const kModules = new std::map<CUfunction, CUmodule>;
  return *kModules;
}

CUresult load(EntryPoint entry, CUmodule* module, const void* image) {
  Call call(entry, kNeedsContext | kUnsafeInCapture);
  if (call.refused()) return call.result();
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<Module>();
  *module = reinterpret_cast<CUmodule>(made.get());
  modules()[*module] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult launch(EntryPoint entry, CUfunction function, CUstream handle) {
  Call call(entry);
  if (call.refused()) return call.result();
  Stream* stream = find_stream(call.state(), handle);
  if (stream == nullptr) return refuse_stream(handle);
  const auto module = modules_of_functions().find(function);
  if (module != modules_of_functions().end() &&
      !take_module_memory(call.state(), owner_of(stream->context), module->second)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return enqueue(call.state(), stream, nullptr, {}, entry_point_name(entry), call.lock());
}

// Every function has these. Programs divide by the registers to find how many blocks fit a multiprocessor.
int function_attribute(CUfunction_attribute attribute) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return 32;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return 90;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return 49152;
    default:
      return 0;
  }
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* file) {
  return load(EntryPoint::k_cuModuleLoad, module, file);
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load(EntryPoint::k_cuModuleLoadData, module, image);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return load(EntryPoint::k_cuModuleLoadDataEx, module, image);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(EntryPoint::k_cuModuleLoadFatBinary, module, image);
}

CUresult cuModuleUnload(CUmodule module) {
  Call call(EntryPoint::k_cuModuleUnload);
  if (call.refused()) return call.result();
  if (modules().erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  std::erase_if(modules_of_functions(), [&](const auto& entry) { return entry.second == module; });
  release_module(call.state(), module);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Call call(EntryPoint::k_cuModuleGetFunction);
  if (call.refused()) return call.result();
  const auto found = modules().find(module);
  if (found == modules().end()) return CUDA_ERROR_INVALID_HANDLE;
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto& slot = found->second->functions[name];
  if (slot == nullptr) slot = std::make_unique<int>(0);
  *function = reinterpret_cast<CUfunction>(slot.get());
  modules_of_functions()[*function] = module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  Call call(EntryPoint::k_cuModuleGetLoadingMode);
  if (call.refused()) return call.result();
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  Call call(EntryPoint::k_cuFuncGetAttribute);
  if (call.refused()) return call.result();
  if (value == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = function_attribute(attribute);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int) {
  Call call(EntryPoint::k_cuFuncSetAttribute);
  if (call.refused()) return call.result();
  return function == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
  Call call(EntryPoint::k_cuFuncSetCacheConfig);
  if (call.refused()) return call.result();
  return function == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int block_size,
                                                     size_t) {
  Call call(EntryPoint::k_cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (call.refused()) return call.result();
  if (blocks == nullptr || function == nullptr || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = kThreadsPerMultiprocessor / block_size;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
  Call call(EntryPoint::k_cuOccupancyMaxActiveClusters);
  if (call.refused()) return call.result();
  if (clusters == nullptr || function == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned blocks = 1;  // of a cluster
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& one = config->attrs[i];
    if (one.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    blocks = one.value.clusterDim.x * one.value.clusterDim.y * one.value.clusterDim.z;
  }
  if (blocks == 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  *clusters = kMultiprocessors / static_cast<int>(blocks);
  return CUDA_SUCCESS;
}

// Linking: there is nothing to link, and the image that comes out loads like any other.
CUresult cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* state) {
  Call call(EntryPoint::k_cuLinkCreate, kNeedsContext);
  if (call.refused()) return call.result();
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = reinterpret_cast<CUlinkState>(&linked_image);
  return CUDA_SUCCESS;
}
CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType, void* data, size_t, const char*, unsigned,
                          CUjit_option*, void**) {
  Call call(EntryPoint::k_cuLinkAddData);
  if (call.refused()) return call.result();
  if (state == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return data == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
  Call call(EntryPoint::k_cuLinkComplete);
  if (call.refused()) return call.result();
  if (state == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (image != nullptr) *image = &linked_image;
  if (bytes != nullptr) *bytes = sizeof linked_image;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  Call call(EntryPoint::k_cuTensorMapEncodeTiled);
  if (call.refused()) return call.result();
  if (map == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *map = {};
  return CUDA_SUCCESS;
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream stream, void**) {
  return launch(EntryPoint::k_cuLaunchCooperativeKernel, function, stream);
}
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        unsigned, unsigned, CUstream stream, void**) {
  return launch(EntryPoint::k_cuLaunchCooperativeKernel, function, per_thread(stream));
}
CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream stream, void**, void**) {
  return launch(EntryPoint::k_cuLaunchKernel, function, stream);
}
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CUstream stream, void**, void**) {
  return launch(EntryPoint::k_cuLaunchKernel, function, per_thread(stream));
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void**, void**) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(EntryPoint::k_cuLaunchKernelEx, function, config->hStream);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function, void**, void**) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(EntryPoint::k_cuLaunchKernelEx, function, per_thread(config->hStream));
}

}  // extern "C"
