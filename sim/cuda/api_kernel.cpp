// Modules, functions and launches. Any image loads and every function name is found; a launch is a position
// on its stream and computes nothing.
#include <map>
#include <memory>
#include <string>

#include "sim/cuda/call.h"

using namespace spillway::sim;

namespace {

CUstream per_thread(CUstream stream) {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}

struct Module {
  std::map<std::string, std::unique_ptr<int>> functions;  // a function's handle is its entry's address
};

// Guarded by State's lock, like everything behind a Call.
std::map<CUmodule, std::unique_ptr<Module>>& modules() {
  static auto* const kModules = new std::map<CUmodule, std::unique_ptr<Module>>;
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

CUresult launch(EntryPoint entry, CUstream handle) {
  Call call(entry);
  if (call.refused()) return call.result();
  Stream* stream = find_stream(call.state(), handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return enqueue(call.state(), stream, nullptr, {}, entry_point_name(entry), call.lock());
}

}  // namespace

extern "C" {

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
  return modules().erase(module) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
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
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int) {
  Call call(EntryPoint::k_cuFuncSetAttribute);
  if (call.refused()) return call.result();
  return function == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        CUstream stream, void**, void**) {
  return launch(EntryPoint::k_cuLaunchKernel, stream);
}
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             CUstream stream, void**, void**) {
  return launch(EntryPoint::k_cuLaunchKernel, per_thread(stream));
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void**, void**) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(EntryPoint::k_cuLaunchKernelEx, config->hStream);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction, void**, void**) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(EntryPoint::k_cuLaunchKernelEx, per_thread(config->hStream));
}

}  // extern "C"
