// Green contexts: shares of a device's multiprocessors, of which nothing is modelled but their number. As on
// a device, one is a context of its own, of the same device, with the memory of the primary one.
#include <algorithm>
#include <cstring>
#include <deque>

#include "sim/cuda/call.h"

struct CUdevResourceDesc_st {
  int device;
  unsigned multiprocessors;
};

using namespace spillway::sim;

namespace {

constexpr unsigned kMultiprocessors = 132;
constexpr unsigned kLeast = 8;            // and a multiple of that, on compute capability 9.0
constexpr unsigned kLeastOfOneByOne = 2;  // with CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING

void set_resource(CUdevResource* resource, int device, unsigned multiprocessors, unsigned least) {
  *resource = {};
  resource->type = CU_DEV_RESOURCE_TYPE_SM;
  resource->sm = {multiprocessors, least, least};
  std::memcpy(resource->_internal_padding, &device, sizeof device);
}

int device_of(const CUdevResource& resource) {
  int device = 0;
  std::memcpy(&device, resource._internal_padding, sizeof device);
  return device;
}

CUresult check_query(const CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return type == CU_DEV_RESOURCE_TYPE_SM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

CUresult describe_context(const Context* context, CUdevResource* resource, CUdevResourceType type) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = check_query(resource, type); result != CUDA_SUCCESS) return result;
  const unsigned count = context->green_of != nullptr ? context->multiprocessors : kMultiprocessors;
  set_resource(resource, context->device, count, kLeast);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  Call call(EntryPoint::k_cuDeviceGetDevResource);
  if (call.refused()) return call.result();
  if (device < 0 || device >= call.state().config.devices) return CUDA_ERROR_INVALID_DEVICE;
  if (const CUresult result = check_query(resource, type); result != CUDA_SUCCESS) return result;
  set_resource(resource, device, kMultiprocessors, kLeast);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevResource(CUcontext context, CUdevResource* resource, CUdevResourceType type) {
  Call call(EntryPoint::k_cuCtxGetDevResource);
  if (call.refused()) return call.result();
  return describe_context(find_context(context), resource, type);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx context, CUdevResource* resource, CUdevResourceType type) {
  Call call(EntryPoint::k_cuGreenCtxGetDevResource);
  if (call.refused()) return call.result();
  return describe_context(find_green_context(context), resource, type);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned* count, const CUdevResource* input,
                                     CUdevResource* remaining, unsigned flags, unsigned least_wanted) {
  Call call(EntryPoint::k_cuDevSmResourceSplitByCount);
  if (call.refused()) return call.result();
  if (count == nullptr || input == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (least_wanted > input->sm.smCount) return CUDA_ERROR_INVALID_VALUE;
  const unsigned step =
      (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0 ? kLeastOfOneByOne : kLeast;
  const unsigned each = std::max(step, (least_wanted + step - 1) / step * step);
  const unsigned possible = input->sm.smCount / each;
  if (groups != nullptr && possible == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  *count = groups == nullptr ? possible : std::min(*count, possible);
  const int device = device_of(*input);
  for (unsigned i = 0; groups != nullptr && i < *count; ++i) set_resource(&groups[i], device, each, step);
  if (groups != nullptr && remaining != nullptr) {
    set_resource(remaining, device, input->sm.smCount - *count * each, step);
  }
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* descriptor, CUdevResource* resources, unsigned count) {
  Call call(EntryPoint::k_cuDevResourceGenerateDesc);
  if (call.refused()) return call.result();
  if (descriptor == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevResourceDesc_st made{device_of(resources[0]), 0};
  for (unsigned i = 0; i < count; ++i) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (device_of(resources[i]) != made.device) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    made.multiprocessors += resources[i].sm.smCount;
  }
  // No call gives one back.
  static auto* const kDescriptors = new std::deque<CUdevResourceDesc_st>;
  *descriptor = &kDescriptors->emplace_back(made);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc descriptor, CUdevice device,
                          unsigned flags) {
  Call call(EntryPoint::k_cuGreenCtxCreate);
  if (call.refused()) return call.result();
  State& state = call.state();
  if (context == nullptr || descriptor == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (device < 0 || device >= state.config.devices) return CUDA_ERROR_INVALID_DEVICE;
  if (descriptor->device != device) return CUDA_ERROR_INVALID_VALUE;
  Context* primary = primary_context(state, device);
  if (primary == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Context* made = make_green_context(state, primary);
  made->multiprocessors = descriptor->multiprocessors;
  *context = green_handle_of(made);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  Call call(EntryPoint::k_cuGreenCtxDestroy);
  if (call.refused()) return call.result();
  State& state = call.state();
  Context* context = find_green_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Context* primary = context->green_of;
  destroy_green_context(state, context, call.lock());
  if (primary->retained == 0) {
    state.primary[static_cast<size_t>(primary->device)] = nullptr;
    destroy_context(state, primary, call.lock());
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  Call call(EntryPoint::k_cuCtxFromGreenCtx);
  if (call.refused()) return call.result();
  Context* green = find_green_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = handle_of(green);
  return CUDA_SUCCESS;
}

}  // extern "C"
