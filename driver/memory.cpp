#include "driver/memory.h"

#include <bit>
#include <cstdint>
#include <memory>

namespace spillway {
namespace {

constexpr int kLocationHost = 2;  // CU_MEM_LOCATION_TYPE_HOST, newer than the oldest header

constexpr size_t kStackDevices = 16;

Status require_vmm(const Driver& driver, const char* call) {
  if (driver.has_vmm()) return {};
  return Status::unsupported(std::string(call) + ": this driver has no virtual memory management");
}

CUmemAccessDesc read_write(int device) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

}  // namespace

Result<PhysicalHandle> PhysicalHandle::create(const Driver& driver, const CUmemAllocationProp& properties,
                                              size_t bytes) {
  if (Status status = require_vmm(driver, "cuMemCreate"); !status.ok()) return status;
  CUmemGenericAllocationHandle handle = 0;
  Status status = driver.check(driver.cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate");
  if (!status.ok()) return status;
  return PhysicalHandle(driver, handle, bytes);
}

Result<PhysicalHandle> PhysicalHandle::create(const Driver& driver, int device, size_t bytes,
                                              Sharing sharing) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  if (is_for_processes(sharing)) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.allocFlags.gpuDirectRDMACapable = is_for_network(sharing) ? 1 : 0;
  return create(driver, properties, bytes);
}

Result<PhysicalHandle> PhysicalHandle::create_on_host(const Driver& driver, size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = static_cast<CUmemLocationType>(kLocationHost);
  return create(driver, properties, bytes);
}

Result<PhysicalHandle> PhysicalHandle::create_on_node(const Driver& driver, int node, size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  properties.location.id = node;
  return create(driver, properties, bytes);
}

Status PhysicalHandle::release() {
  PhysicalHandle gone;
  gone.swap(*this);
  const Driver* driver = std::exchange(gone.driver_, nullptr);
  return driver == nullptr ? Status() : driver->check(driver->cuMemRelease(gone.handle_), "cuMemRelease");
}

void PhysicalHandle::reset() noexcept {
  if (driver_ != nullptr) driver_->cuMemRelease(handle_);
  driver_ = nullptr;
  handle_ = 0;
  bytes_ = 0;
}

Result<AddressRange> AddressRange::reserve(const Driver& driver, size_t bytes, size_t alignment,
                                           CUdeviceptr hint) {
  if (Status status = require_vmm(driver, "cuMemAddressReserve"); !status.ok()) return status;
  AddressRange range;
  Status status = driver.check(driver.cuMemAddressReserve(&range.base_, bytes, alignment, hint, 0),
                               "cuMemAddressReserve");
  if (!status.ok()) return status;
  range.driver_ = &driver;
  range.bytes_ = bytes;
  return range;
}

void AddressRange::reset() noexcept {
  if (driver_ != nullptr) driver_->cuMemAddressFree(base_, bytes_);
  driver_ = nullptr;
  base_ = 0;
  bytes_ = 0;
}

Result<DeviceBlock> DeviceBlock::allocate(const Driver& driver, size_t bytes) {
  DeviceBlock block;
  Status status = driver.check(driver.cuMemAlloc(&block.base_, bytes), "cuMemAlloc");
  if (!status.ok()) return status;
  block.driver_ = &driver;
  block.bytes_ = bytes;
  return block;
}

Status DeviceBlock::release() {
  DeviceBlock gone;
  gone.swap(*this);
  const Driver* driver = std::exchange(gone.driver_, nullptr);
  return driver == nullptr ? Status() : driver->check(driver->cuMemFree(gone.base_), "cuMemFree");
}

void DeviceBlock::reset() noexcept {
  if (driver_ != nullptr) driver_->cuMemFree(base_);
  driver_ = nullptr;
  base_ = 0;
  bytes_ = 0;
}

Status map(const Driver& driver, CUdeviceptr va, const PhysicalHandle& handle) {
  return map(driver, va, handle.bytes(), handle.get());
}

Status map(const Driver& driver, CUdeviceptr va, size_t bytes, CUmemGenericAllocationHandle handle) {
  return driver.check(driver.cuMemMap(va, bytes, 0, handle, 0), "cuMemMap");
}

Status set_access(const Driver& driver, CUdeviceptr va, size_t bytes, int device) {
  const CUmemAccessDesc access = read_write(device);
  return driver.check(driver.cuMemSetAccess(va, bytes, &access, 1), "cuMemSetAccess");
}

Status set_access(const Driver& driver, CUdeviceptr va, size_t bytes, const int* devices, size_t count) {
  CUmemAccessDesc few[kStackDevices];
  std::unique_ptr<CUmemAccessDesc[]> many;
  CUmemAccessDesc* access = few;
  if (count > kStackDevices) {
    many = std::make_unique<CUmemAccessDesc[]>(count);
    access = many.get();
  }
  for (size_t i = 0; i < count; ++i) access[i] = read_write(devices[i]);
  return driver.check(driver.cuMemSetAccess(va, bytes, access, count), "cuMemSetAccess");
}

Status deny_access(const Driver& driver, CUdeviceptr va, size_t bytes, int device) {
  CUmemAccessDesc access = read_write(device);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return driver.check(driver.cuMemSetAccess(va, bytes, &access, 1), "cuMemSetAccess");
}

Status unmap(const Driver& driver, CUdeviceptr va, size_t bytes) {
  return driver.check(driver.cuMemUnmap(va, bytes), "cuMemUnmap");
}

Result<PhysicalHandle> import_file_descriptor(const Driver& driver, int descriptor, size_t bytes) {
  if (driver.cuMemImportFromShareableHandle == nullptr) {
    return Status::unsupported("cuMemImportFromShareableHandle: this driver does not have it");
  }
  CUmemGenericAllocationHandle handle = 0;
  // The driver takes the descriptor itself for a pointer.
  Status status = driver.check(
      driver.cuMemImportFromShareableHandle(&handle, std::bit_cast<void*>(static_cast<intptr_t>(descriptor)),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  if (!status.ok()) return status;
  return PhysicalHandle(driver, handle, bytes);
}

Result<int> export_file_descriptor(const Driver& driver, CUmemGenericAllocationHandle handle) {
  if (driver.cuMemExportToShareableHandle == nullptr) {
    return Status::unsupported("cuMemExportToShareableHandle: this driver does not have it");
  }
  int descriptor = -1;
  Status status = driver.check(
      driver.cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  if (!status.ok()) return status;
  return descriptor;
}

}  // namespace spillway
