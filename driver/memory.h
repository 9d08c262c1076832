// Owners of what the driver hands out for memory: physical handles, address ranges, plain allocations; and
// the three calls that join the first two. A mapping has no handle of its own in CUDA, so it has no owner
// here: whoever holds the address range keeps the list of what is mapped in it.
//
// Every owner is move-only, 24 bytes, and refers to a Driver that must outlive it. Destructors ignore the
// driver's answer: at process exit the driver may be gone (CUDA_ERROR_DEINITIALIZED), and an error there has
// no one left to handle it. Cost: one driver call each, tens of microseconds for a mapping
// (docs/hardware-proof.md). None takes a lock or waits for streams: unmapping memory that running work still
// uses is a fatal fault of the device, and the caller's to prevent. Thread-safety: calls on different objects
// may run at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "driver/driver.h"

namespace spillway {

// Says who else a handle may be given to: other processes, as a POSIX file descriptor, and network cards,
// which the driver refuses where a device does not allow it (attribute 110, DeviceProperties::rdma_vmm).
enum class Sharing : uint8_t { kNone, kProcesses, kNetwork, kProcessesAndNetwork };
constexpr bool is_for_processes(Sharing sharing) {
  return sharing == Sharing::kProcesses || sharing == Sharing::kProcessesAndNetwork;
}
constexpr bool is_for_network(Sharing sharing) {
  return sharing == Sharing::kNetwork || sharing == Sharing::kProcessesAndNetwork;
}
constexpr Sharing sharing_of(bool processes, bool network) {
  if (processes) return network ? Sharing::kProcessesAndNetwork : Sharing::kProcesses;
  return network ? Sharing::kNetwork : Sharing::kNone;
}

// Device memory without an address (cuMemCreate). It lives until it is released and unmapped everywhere.
class PhysicalHandle {
 public:
  PhysicalHandle() = default;
  PhysicalHandle(PhysicalHandle&& other) noexcept { swap(other); }
  PhysicalHandle& operator=(PhysicalHandle&& other) noexcept {
    PhysicalHandle(std::move(other)).swap(*this);
    return *this;
  }
  ~PhysicalHandle() { reset(); }

  // `bytes` is a multiple of the device's granularity. Errors: unsupported (no VMM), out_of_memory, driver.
  static Result<PhysicalHandle> create(const Driver& driver, int device, size_t bytes,
                                       Sharing sharing = Sharing::kNone);
  // Creates the same in the host's memory; mapped, the device reaches it over its bus. For drivers that
  // answer attribute 145.
  static Result<PhysicalHandle> create_on_host(const Driver& driver, size_t bytes);
  // The same of NUMA node `node`. For drivers that answer attribute 141; even so, those before 595 may fault
  // (https://github.com/NVIDIA/nccl/issues/2106), and nodes without processors are refused.
  static Result<PhysicalHandle> create_on_node(const Driver& driver, int node, size_t bytes);

  CUmemGenericAllocationHandle get() const { return handle_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return driver_ != nullptr; }

  // Hands the handle itself to the caller, who releases it; empty afterwards.
  CUmemGenericAllocationHandle detach() {
    driver_ = nullptr;
    return std::exchange(handle_, 0);
  }
  // Gives the memory back now, with the driver's answer; empty afterwards in any case.
  Status release();
  void reset() noexcept;
  void swap(PhysicalHandle& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(handle_, other.handle_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  PhysicalHandle(const Driver& driver, CUmemGenericAllocationHandle handle, size_t bytes)
      : driver_(&driver), handle_(handle), bytes_(bytes) {}
  static Result<PhysicalHandle> create(const Driver& driver, const CUmemAllocationProp& properties,
                                       size_t bytes);
  friend Result<PhysicalHandle> import_file_descriptor(const Driver& driver, int descriptor, size_t bytes);

  const Driver* driver_ = nullptr;
  CUmemGenericAllocationHandle handle_ = 0;
  size_t bytes_ = 0;
};

// Reserved addresses (cuMemAddressReserve). Everything mapped in it must be unmapped before it is freed.
class AddressRange {
 public:
  AddressRange() = default;
  AddressRange(AddressRange&& other) noexcept { swap(other); }
  AddressRange& operator=(AddressRange&& other) noexcept {
    AddressRange(std::move(other)).swap(*this);
    return *this;
  }
  ~AddressRange() { reset(); }

  // `bytes` and `alignment` are multiples of the granularity; alignment 0 leaves it to the driver. `hint` is
  // where the range is wanted; the driver may choose otherwise. Errors: unsupported (no VMM), out_of_memory,
  // driver.
  static Result<AddressRange> reserve(const Driver& driver, size_t bytes, size_t alignment = 0,
                                      CUdeviceptr hint = 0);

  CUdeviceptr base() const { return base_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return driver_ != nullptr; }

  void reset() noexcept;
  void swap(AddressRange& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  const Driver* driver_ = nullptr;
  CUdeviceptr base_ = 0;
  size_t bytes_ = 0;
};

// Device memory with an address of the driver's choosing (cuMemAlloc), for devices without VMM. It lives in
// the context that was current at allocate. Freeing it waits for all work of the device.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(DeviceBlock&& other) noexcept { swap(other); }
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    DeviceBlock(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceBlock() { reset(); }

  // Errors: out_of_memory, driver.
  static Result<DeviceBlock> allocate(const Driver& driver, size_t bytes);

  CUdeviceptr base() const { return base_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return driver_ != nullptr; }

  // Gives the memory back now, with the driver's answer; empty afterwards in any case.
  Status release();
  void reset() noexcept;
  void swap(DeviceBlock& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  const Driver* driver_ = nullptr;
  CUdeviceptr base_ = 0;
  size_t bytes_ = 0;
};

// Maps the whole handle at `va`. The driver accepts no part of a handle (cuda.h, cuMemMap: offset must be
// zero), and one handle may be mapped at several addresses. The memory is not accessible before set_access.
Status map(const Driver& driver, CUdeviceptr va, const PhysicalHandle& handle);
// Does the same for a handle held elsewhere; `bytes` is the handle's size.
Status map(const Driver& driver, CUdeviceptr va, size_t bytes, CUmemGenericAllocationHandle handle);

// Makes every mapping in the range readable and writable by the device, or by each of `count` devices. One
// call may cover many neighbouring mappings, all of which must be mapped.
Status set_access(const Driver& driver, CUdeviceptr va, size_t bytes, int device);
Status set_access(const Driver& driver, CUdeviceptr va, size_t bytes, const int* devices, size_t count);

// Takes that from one device.
Status deny_access(const Driver& driver, CUdeviceptr va, size_t bytes, int device);

// Removes every mapping in the range, which must begin and end with one. It does not wait for work that uses
// them.
Status unmap(const Driver& driver, CUdeviceptr va, size_t bytes);

// The handle behind a descriptor that another process exported; `bytes` is its size there. The descriptor
// stays the caller's. Errors: unsupported, driver (it is no such descriptor).
Result<PhysicalHandle> import_file_descriptor(const Driver& driver, int descriptor, size_t bytes);

// A POSIX file descriptor for an exportable handle, owned by the caller.
Result<int> export_file_descriptor(const Driver& driver, CUmemGenericAllocationHandle handle);

}  // namespace spillway
