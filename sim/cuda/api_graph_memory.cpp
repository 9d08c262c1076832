// Answers what a device keeps for its graphs.
#include "sim/cuda/call.h"

using namespace spillway::sim;

namespace {

struct Gauges {
  Gauge& used;
  Gauge& reserved;
};

Gauges gauges_of(State& state, CUdevice device) {
  const auto index = static_cast<size_t>(device);
  return {state.graph_memory.used[index], state.graph_memory.reserved[index]};
}

// The frame of calls about one device.
struct DeviceCall {
  Call call;
  CUresult result;
  DeviceCall(EntryPoint entry, CUdevice device) : call(entry), result(call.result()) {
    const bool is_there = device >= 0 && device < call.state().config.devices;
    if (!call.refused() && !is_there) result = CUDA_ERROR_INVALID_DEVICE;
  }
};

}  // namespace

extern "C" {

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  DeviceCall in(EntryPoint::k_cuDeviceGraphMemTrim, device);
  if (in.result == CUDA_SUCCESS) trim_graph_memory(in.call.state(), device);
  return in.result;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  DeviceCall in(EntryPoint::k_cuDeviceGetGraphMemAttribute, device);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto [used, reserved] = gauges_of(in.call.state(), device);
  auto* bytes = static_cast<cuuint64_t*>(value);
  switch (static_cast<int>(attribute)) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *bytes = used.current;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *bytes = used.high;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *bytes = reserved.current;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *bytes = reserved.high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  DeviceCall in(EntryPoint::k_cuDeviceSetGraphMemAttribute, device);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto [used, reserved] = gauges_of(in.call.state(), device);
  switch (static_cast<int>(attribute)) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      return used.set_high(*static_cast<const cuuint64_t*>(value));
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      return reserved.set_high(*static_cast<const cuuint64_t*>(value));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // extern "C"
