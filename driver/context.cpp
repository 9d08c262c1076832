#include "driver/context.h"

#include <fmt/format.h>

#include <cstring>

namespace spillway {
namespace {

// Written as numbers: headers of CUDA 12.0 have no names for the last two.
constexpr int kHostNumaId = 134;
constexpr int kHostNumaVmm = 141;
constexpr int kHostVmm = 145;

Result<CUdevice> find_device(const Driver& driver, int ordinal) {
  int count = 0;
  if (Status status = driver.check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"); !status.ok())
    return status;
  if (ordinal < 0 || ordinal >= count) {
    return Status::invalid_argument(
        count == 0 ? fmt::format("device {}: this machine has no CUDA device", ordinal)
                   : fmt::format("device {}: there is no such device; allowed: 0 to {}", ordinal, count - 1));
  }
  CUdevice device = 0;
  if (Status status = driver.check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet"); !status.ok())
    return status;
  return device;
}

// The calling thread's context where it belongs to the device, else null.
CUcontext current_of(const Driver& driver, CUdevice device) {
  CUcontext current = nullptr;
  CUdevice owner = 0;
  if (driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr) return nullptr;
  if (driver.cuCtxGetDevice(&owner) != CUDA_SUCCESS || owner != device) return nullptr;
  return current;
}

int attribute(const Driver& driver, CUdevice device, int which) {
  int value = 0;
  const CUresult answer = driver.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(which), device);
  return answer == CUDA_SUCCESS ? value : DeviceProperties::kUnknown;
}

Status query_granularity(const Driver& driver, DeviceProperties& properties) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = properties.ordinal;
  Status status = driver.check(driver.cuMemGetAllocationGranularity(&properties.granularity_bytes, &wanted,
                                                                    CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                               "cuMemGetAllocationGranularity");
  if (!status.ok()) return status;
  return driver.check(driver.cuMemGetAllocationGranularity(&properties.recommended_granularity_bytes, &wanted,
                                                           CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                      "cuMemGetAllocationGranularity");
}

}  // namespace

Result<RetainedContext> RetainedContext::retain(std::shared_ptr<const Driver> driver, int device) {
  Result<CUdevice> found = find_device(*driver, device);
  if (!found.ok()) return found.take_status();

  unsigned int flags = 0;
  int active = 0;
  Status status = driver->check(driver->cuDevicePrimaryCtxGetState(found.value(), &flags, &active),
                                "cuDevicePrimaryCtxGetState");
  if (!status.ok()) return status;

  RetainedContext context;
  const CUcontext current = current_of(*driver, found.value());
  if (active != 0) {
    status = driver->check(driver->cuDevicePrimaryCtxRetain(&context.context_, found.value()),
                           "cuDevicePrimaryCtxRetain");
    if (!status.ok()) return status;
    context.primary_ = true;
    context.device_ = found.value();
    context.driver_ = driver;
    if (current == nullptr || current == context.context_) return context;
    context.reset();
  }
  if (current == nullptr) {
    return Status::invalid_state(fmt::format(
        "device {} has no active context; use the device once first (cudaSetDevice, cudaFree(nullptr) or "
        "cuDevicePrimaryCtxRetain), since Spillway creates no context of its own",
        device));
  }
  context.context_ = current;
  context.device_ = found.value();
  context.driver_ = std::move(driver);
  return context;
}

Status RetainedContext::check_alive() const {
  unsigned int flags = 0;
  int active = 1;
  if (!primary_ || driver_->cuDevicePrimaryCtxGetState(device_, &flags, &active) != CUDA_SUCCESS ||
      active != 0)
    return {};
  return driver_->check(CUDA_ERROR_CONTEXT_IS_DESTROYED, "cuDevicePrimaryCtxGetState");
}

void RetainedContext::reset() noexcept {
  if (primary_) driver_->cuDevicePrimaryCtxRelease(device_);
  primary_ = false;
  context_ = nullptr;
  driver_.reset();
}

ScopedContext::ScopedContext(const Driver& driver, CUcontext context) : driver_(driver) {
  CUcontext current = nullptr;
  status_ = driver.check(driver.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (!status_.ok() || current == context) return;
  status_ = driver.check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  pushed_ = status_.ok();
}

ScopedContext::~ScopedContext() {
  CUcontext popped = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent(&popped);
}

Status check_peer(const Driver& driver, int device, int owner) {
  CUdevice handles[2] = {};
  const int ordinals[2] = {device, owner};
  for (int i = 0; i < 2; ++i) {
    Result<DeviceProperties> properties = query_device(driver, ordinals[i]);
    if (!properties.ok()) return properties.take_status();
    if (properties->is_mig) {
      return Status::unsupported(
          fmt::format("device {} ({}) is a MIG instance, which has no peers", ordinals[i], properties->name));
    }
    handles[i] = properties->device;
  }
  int can = 0;
  if (driver.cuDeviceCanAccessPeer == nullptr) {
    return Status::unsupported("cuDeviceCanAccessPeer: this driver does not have it");
  }
  const CUresult answer = driver.cuDeviceCanAccessPeer(&can, handles[0], handles[1]);
  if (Status status = driver.check(answer, "cuDeviceCanAccessPeer"); !status.ok()) return status;
  if (can != 0) return {};
  return Status::unsupported(
      fmt::format("device {} cannot access the memory of device {} (cuDeviceCanAccessPeer)", device, owner));
}

std::string uuid_text(const std::array<unsigned char, 16>& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

Result<DeviceProperties> query_device(const Driver& driver, int ordinal) {
  Result<CUdevice> found = find_device(driver, ordinal);
  if (!found.ok()) return found.take_status();
  const CUdevice device = found.value();

  DeviceProperties properties;
  properties.ordinal = ordinal;
  properties.device = device;
  char name[256] = {};
  Status status = driver.check(driver.cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
  if (!status.ok()) return status;
  properties.name.assign(name, strnlen(name, sizeof name));
  properties.is_mig = properties.name.find(" MIG ") != std::string::npos;
  CUuuid uuid{};
  status = driver.check(driver.cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid");
  if (!status.ok()) return status;
  std::memcpy(properties.uuid.data(), uuid.bytes, properties.uuid.size());
  status = driver.check(driver.cuDeviceTotalMem(&properties.total_bytes, device), "cuDeviceTotalMem");
  if (!status.ok()) return status;

  properties.compute_major = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  properties.compute_minor = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  properties.multiprocessors = attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  properties.posix_handles =
      attribute(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  properties.compression = attribute(driver, device, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED);
  properties.rdma_vmm =
      attribute(driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  properties.host_numa_id = attribute(driver, device, kHostNumaId);
  properties.host_numa_vmm = attribute(driver, device, kHostNumaVmm);
  properties.host_vmm = attribute(driver, device, kHostVmm);
  properties.vmm_supported =
      driver.has_vmm() &&
      attribute(driver, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) > 0;
  if (properties.vmm_supported) {
    if (status = query_granularity(driver, properties); !status.ok()) return status;
  }
  return properties;
}

}  // namespace spillway
