// Virtual memory management: reservations, handles, mappings, access. The rules are those of cuda.h's
// documentation.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "sim/cuda/call.h"
#include "sim/cuda/foreign_memory.h"

using namespace spillway::sim;

namespace {

constexpr int kLocationHost = 2;  // CU_MEM_LOCATION_TYPE_HOST, newer than the oldest header
constexpr int kLocationHostNuma = 3;

// Tells whether memory can be created there; its device, or kHostDevice.
bool resolve_location(const State& state, const CUmemAllocationProp& prop, int* device) {
  const int type = static_cast<int>(prop.location.type);
  *device = type == CU_MEM_LOCATION_TYPE_DEVICE ? prop.location.id : kHostDevice;
  if (type == CU_MEM_LOCATION_TYPE_DEVICE) return *device >= 0 && *device < state.config.devices;
  if (type == kLocationHost)
    return state.config.host_vmm && prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE;
  if (type != kLocationHostNuma || !offers_host_numa(state.config)) return false;
  if (state.config.host_numa == HostNuma::kFault) std::raise(SIGSEGV);
  return prop.location.id == 0;
}

CUresult check_properties(const State& state, const CUmemAllocationProp* prop, int* device) {
  if (!state.config.vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const int handle_types = static_cast<int>(prop->requestedHandleTypes);
  if (handle_types != CU_MEM_HANDLE_TYPE_NONE && handle_types != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return resolve_location(state, *prop, device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

bool aligned(const State& state, uint64_t value) {
  return value % state.config.granularity_bytes == 0;
}

CUresult set_access_of(State& state, Mapping* mapping, const CUmemAccessDesc& desc) {
  const int type = static_cast<int>(desc.location.type);
  const auto flags = static_cast<unsigned>(desc.flags);
  if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (desc.location.id < 0 || desc.location.id >= state.config.devices) return CUDA_ERROR_INVALID_DEVICE;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && !state.memory.make_tables(*mapping, desc.location.id)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mapping->access[static_cast<size_t>(desc.location.id)] = static_cast<uint8_t>(flags);
    return CUDA_SUCCESS;
  }
  if (type != kLocationHost && type != kLocationHostNuma) return CUDA_ERROR_INVALID_VALUE;
  // The host cannot be given access to device memory.
  if (mapping->physical->device != kHostDevice) return CUDA_ERROR_INVALID_VALUE;
  return state.memory.open_to_host(mapping, (flags & 1) != 0, (flags & 2) != 0) ? CUDA_SUCCESS
                                                                                : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  Call call(EntryPoint::k_cuMemGetAllocationGranularity);
  if (call.refused()) return call.result();
  if (granularity == nullptr || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
    return CUDA_ERROR_INVALID_VALUE;
  int device = 0;
  *granularity = call.state().config.granularity_bytes;
  return check_properties(call.state(), prop, &device);
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  Call call(EntryPoint::k_cuMemAddressReserve);
  if (call.refused()) return call.result();
  State& state = call.state();
  if (!state.config.vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (ptr == nullptr || size == 0 || size % 4096 != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t start =
      state.memory.reserve(size, std::max<uint64_t>(alignment, state.config.granularity_bytes), addr);
  if (start == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *ptr = start;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  Call call(EntryPoint::k_cuMemAddressFree);
  if (call.refused()) return call.result();
  return call.state().memory.unreserve(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  Call call(EntryPoint::k_cuMemCreate, kVmmInCapture);
  if (call.refused()) return call.result();
  State& state = call.state();
  int device = 0;
  if (const CUresult result = check_properties(state, prop, &device); result != CUDA_SUCCESS) return result;
  if (handle == nullptr || size == 0 || !aligned(state, size) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Physical* physical = state.memory.create(Physical::Kind::kHandle, device, size);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  physical->properties = *prop;
  *handle = physical->id;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Call call(EntryPoint::k_cuMemRelease);
  if (call.refused()) return call.result();
  Physical* physical = call.state().memory.find_handle(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  call.state().memory.release(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  Call call(EntryPoint::k_cuMemMap, kVmmInCapture);
  if (call.refused()) return call.result();
  State& state = call.state();
  Physical* physical = state.memory.find_handle(handle);
  if (physical == nullptr || size != physical->bytes || offset != 0 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!aligned(state, ptr) || !state.memory.inside_reservation(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  if (state.memory.any_mapped(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  Mapping* mapping = state.memory.map(ptr, size, physical);
  if (physical->device != kHostDevice && !state.memory.make_tables(*mapping, physical->device)) {
    state.memory.unmap(mapping);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  Call call(EntryPoint::k_cuMemUnmap, kVmmInCapture);
  State& state = call.state();
  if (state.initialized) ++state.host_waits;
  if (call.refused()) return call.result();
  const std::vector<Mapping*> mappings = state.memory.exactly(ptr, size);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  state.calls.charge_mappings(EntryPoint::k_cuMemUnmap, mappings.size());
  for (Mapping* mapping : mappings) {
    state.detector.before_unmap(*mapping);
    state.memory.unmap(mapping);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  Call call(EntryPoint::k_cuMemSetAccess, kVmmInCapture);
  if (call.refused()) return call.result();
  State& state = call.state();
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<Mapping*> mappings = state.memory.exactly(ptr, size);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  const auto changes = [&](const Mapping* mapping) {
    return std::any_of(desc, desc + count, [&](const CUmemAccessDesc& one) {
      const bool is_device = one.location.type == CU_MEM_LOCATION_TYPE_DEVICE && one.location.id >= 0 &&
                             one.location.id < state.config.devices;
      return !is_device || mapping->access[static_cast<size_t>(one.location.id)] != one.flags;
    });
  };
  const auto changed = std::count_if(mappings.begin(), mappings.end(), changes);
  state.calls.charge_mappings(EntryPoint::k_cuMemSetAccess, static_cast<uint64_t>(changed));
  if (state.memory.live_mappings() > state.config.max_mappings) return CUDA_ERROR_OUT_OF_MEMORY;
  for (size_t i = 0; i < count; ++i) {
    for (Mapping* mapping : mappings) {
      if (const CUresult result = set_access_of(state, mapping, desc[i]); result != CUDA_SUCCESS)
        return result;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  Call call(EntryPoint::k_cuMemGetAccess);
  if (call.refused()) return call.result();
  State& state = call.state();
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Mapping* mapping = state.memory.find(ptr);
  if (mapping == nullptr || mapping->physical->kind != Physical::Kind::kHandle)
    return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (location->id < 0 || location->id >= state.config.devices) return CUDA_ERROR_INVALID_DEVICE;
    *flags = mapping->access[static_cast<size_t>(location->id)];
  } else {
    *flags = mapping->host_access;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  Call call(EntryPoint::k_cuMemRetainAllocationHandle);
  if (call.refused()) return call.result();
  const Mapping* mapping = call.state().memory.find(reinterpret_cast<uint64_t>(addr));
  if (handle == nullptr || mapping == nullptr || mapping->physical->kind != Physical::Kind::kHandle) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++mapping->physical->references;
  *handle = mapping->physical->id;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  Call call(EntryPoint::k_cuMemGetAllocationPropertiesFromHandle);
  if (call.refused()) return call.result();
  const Physical* physical = call.state().memory.find_handle(handle);
  if (prop == nullptr || physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->properties;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  Call call(EntryPoint::k_cuMemExportToShareableHandle);
  if (call.refused()) return call.result();
  State& state = call.state();
  const Physical* physical = state.memory.find_handle(handle);
  if (shareable == nullptr || physical == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || physical->properties.requestedHandleTypes != type) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const ForeignMemory exported = describe(state, *physical);
  const int file = memfd_create("spillway-sim-handle", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (pwrite(file, &exported, sizeof exported, 0) != static_cast<ssize_t>(sizeof exported)) {
    close(file);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(shareable) = file;
  return CUDA_SUCCESS;
}

// A dma-buf in name only: a file that nothing can be read from. What the driver's documentation asks of the
// range is asked: whole pages of the host, mapped throughout, of one device and alike.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr start, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  Call call(EntryPoint::k_cuMemGetHandleForAddressRange);
  if (call.refused()) return call.result();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (handle == nullptr || bytes == 0 || start % page != 0 || bytes % page != 0 ||
      type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
      (flags & ~uint64_t{CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Memory& memory = call.state().memory;
  const Physical* first = nullptr;
  for (uint64_t at = start; at < start + bytes;) {
    const Mapping* mapping = memory.find(at);
    if (mapping == nullptr || mapping->physical->device < 0) return CUDA_ERROR_INVALID_VALUE;
    const Physical& physical = *mapping->physical;
    if (first == nullptr) first = &physical;
    if (physical.device != first->device || physical.kind != first->kind) return CUDA_ERROR_INVALID_VALUE;
    at = mapping->end();
  }
  const int file = memfd_create("spillway-sim-dma-buf", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(handle) = file;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type) {
  Call call(EntryPoint::k_cuMemImportFromShareableHandle);
  if (call.refused()) return call.result();
  State& state = call.state();
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int file = static_cast<int>(reinterpret_cast<intptr_t>(os_handle));
  ForeignMemory exported{};
  if (pread(file, &exported, sizeof exported, 0) != static_cast<ssize_t>(sizeof exported) ||
      exported.magic != ForeignMemory::kMagic) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is_own(exported)) {
    Physical* physical =
        exported.generation == state.generation ? state.memory.find_handle(exported.id) : nullptr;
    if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ++physical->references;
    *handle = physical->id;
    return CUDA_SUCCESS;
  }
  Physical* physical = open_foreign(state, exported, Physical::Kind::kHandle);
  if (physical == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  physical->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical->properties.requestedHandleTypes = type;
  physical->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  physical->properties.location.id = static_cast<int>(exported.device);
  *handle = physical->id;
  return CUDA_SUCCESS;
}

}  // extern "C"
