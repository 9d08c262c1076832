// Initialisation and devices.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sim/cuda/call.h"
#include "sim/cuda/flavour.h"

using namespace spillway::sim;

namespace {

void end_at_exit() {
  State& state = State::get();
  const Lock lock(state.mutex);
  state.ended = true;
}

CUresult check_device(State& state, CUdevice device) {
  return device >= 0 && device < state.config.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

struct AttributeValue {
  int attribute;
  int value;
};

// An H200 answers this, where a program under test may ask.
constexpr AttributeValue kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 39321600},
    {CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 134217728},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
};

int attribute_value(const State& state, int attribute, CUdevice device) {
  const int vmm = state.config.vmm ? 1 : 0;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return vmm;
    case 141:  // HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
      return offers_host_numa(state.config) ? vmm : 0;
    case 145:  // HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
      return state.config.host_vmm ? vmm : 0;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return device + 1;
    default:
      break;
  }
  for (const auto& [known, value] : kAttributes) {
    if (known == attribute) return value;
  }
  return 0;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  Call call(EntryPoint::k_cuInit, kBeforeInit);
  State& state = call.state();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!state.initialized && !state.ended) {
    const char* chosen = std::getenv(kFlavour.variable);
    const std::string text = kFlavour.defaults + std::string(chosen != nullptr ? chosen : "");
    const std::string problem = state.configure(text.c_str(), std::getenv("CUDA_VISIBLE_DEVICES"));
    if (!problem.empty()) {
      const std::string line = kFlavour.variable + (": " + problem);
      std::fprintf(stderr, "%s\n", line.c_str());
      return fail(CUDA_ERROR_INVALID_VALUE, line);
    }
    if (state.config.devices == 0) {
      state.initialized = false;
      return fail(CUDA_ERROR_NO_DEVICE, "CUDA_VISIBLE_DEVICES names no device of the simulated machine");
    }
    if (state.config.ends_at_exit) std::atexit(end_at_exit);
    // The configuration began the counts anew; this call is the first, and may be the one to fail.
    return static_cast<CUresult>(state.calls.enter(EntryPoint::k_cuInit));
  }
  return call.result();
}

CUresult cuDriverGetVersion(int* version) {
  Call call(EntryPoint::k_cuDriverGetVersion, kBeforeInit);
  if (call.refused()) return call.result();
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = call.state().config.version;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Call call(EntryPoint::k_cuDeviceGet);
  if (call.refused()) return call.result();
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = ordinal;
  return check_device(call.state(), ordinal);
}

CUresult cuDeviceGetCount(int* count) {
  Call call(EntryPoint::k_cuDeviceGetCount);
  if (call.refused()) return call.result();
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = call.state().config.devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice device) {
  Call call(EntryPoint::k_cuDeviceGetName);
  if (call.refused()) return call.result();
  if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<size_t>(len), "Spillway simulated device%s",
                call.state().config.mig ? " MIG 1g.18gb" : "");
  return check_device(call.state(), device);
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  Call call(EntryPoint::k_cuDeviceGetUuid);
  if (call.refused()) return call.result();
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::array<char, 16> bytes = uuid_of(machine_device(call.state().config.visible, device));
  std::memcpy(uuid->bytes, bytes.data(), bytes.size());
  return check_device(call.state(), device);
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  Call call(EntryPoint::k_cuDeviceTotalMem);
  if (call.refused()) return call.result();
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = call.state().config.capacity_bytes;
  return check_device(call.state(), device);
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  Call call(EntryPoint::k_cuDeviceGetAttribute);
  if (call.refused()) return call.result();
  const int number = static_cast<int>(attribute);
  if (value == nullptr || number < 1 || number >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute_value(call.state(), number, device);
  return check_device(call.state(), device);
}

CUresult cuDeviceGetPCIBusId(char* id, int len, CUdevice device) {
  Call call(EntryPoint::k_cuDeviceGetPCIBusId);
  if (call.refused()) return call.result();
  if (id == nullptr || len < 13) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(id, static_cast<size_t>(len), "0000:%02x:00.0",
                static_cast<unsigned>(machine_device(call.state().config.visible, device) + 1) & 0xff);
  return check_device(call.state(), device);
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  Call call(EntryPoint::k_cuDeviceGetByPCIBusId);
  if (call.refused()) return call.result();
  unsigned domain = 0;
  unsigned bus = 0;
  if (device == nullptr || id == nullptr || std::sscanf(id, "%x:%x", &domain, &bus) != 2) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device = ordinal_of(call.state().config.visible, static_cast<int>(bus) - 1);
  return check_device(call.state(), *device);
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  Call call(EntryPoint::k_cuDeviceCanAccessPeer);
  if (call.refused()) return call.result();
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *can = device != peer && !call.state().config.mig ? 1 : 0;
  const CUresult first = check_device(call.state(), device);
  return first != CUDA_SUCCESS ? first : check_device(call.state(), peer);
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device,
                                 CUdevice peer) {
  Call call(EntryPoint::k_cuDeviceGetP2PAttribute);
  if (call.refused()) return call.result();
  if (value == nullptr || device == peer) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
  const CUresult first = check_device(call.state(), device);
  return first != CUDA_SUCCESS ? first : check_device(call.state(), peer);
}

}  // extern "C"
