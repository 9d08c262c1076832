// Contexts, and what a device is. Spillway works in the context the program already has: creating one behind
// its back would cost the device some hundred megabytes and change which device the program's next call
// means.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "driver/driver.h"

namespace spillway {

// The context in which a device is used. The device's primary context is kept alive while this object lives;
// a context that the program made itself (cuCtxCreate) is only borrowed, and its owner must not destroy it
// meanwhile. Move-only.
class RetainedContext {
 public:
  RetainedContext() = default;
  RetainedContext(RetainedContext&& other) noexcept { swap(other); }
  RetainedContext& operator=(RetainedContext&& other) noexcept {
    RetainedContext(std::move(other)).swap(*this);
    return *this;
  }
  ~RetainedContext() { reset(); }

  // The calling thread's context if it belongs to the device, else the device's primary context if it is
  // active. Errors: invalid_argument (no such device), invalid_state (the device has no context yet), driver.
  static Result<RetainedContext> retain(std::shared_ptr<const Driver> driver, int device);

  CUcontext get() const { return context_; }
  bool is_primary() const { return primary_; }
  explicit operator bool() const { return context_ != nullptr; }

  // An error of the driver's once the program has reset its device (cuDevicePrimaryCtxReset): then a question
  // about an event of the context is undefined. Costs one driver call; always ok of a context that is only
  // borrowed, and where the program has used the device again since.
  Status check_alive() const;

  void reset() noexcept;
  void swap(RetainedContext& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(context_, other.context_);
    std::swap(device_, other.device_);
    std::swap(primary_, other.primary_);
  }

 private:
  std::shared_ptr<const Driver> driver_;
  CUcontext context_ = nullptr;
  CUdevice device_ = 0;
  bool primary_ = false;
};

// Makes a context the calling thread's for one scope; nothing is pushed where it already is. Cost: one driver
// call, three where another context was current. The Driver must outlive it.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, CUcontext context);
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  ~ScopedContext();

  // Not ok where the context could not be made current; the thread's context is then as it was.
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  Status status_;
  bool pushed_ = false;
};

// Holds what a device offers. An attribute that the driver does not know is kUnknown: newer features must
// then be tried.
struct DeviceProperties {
  static constexpr int kUnknown = -1;

  int ordinal = 0;
  CUdevice device = 0;
  std::string name;
  std::array<unsigned char, 16> uuid{};
  size_t total_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;

  // A slice of a device (multi-instance GPU), told by its name: it has neither peers nor shared memory.
  bool is_mig = false;
  bool vmm_supported = false;                // attribute 102 and every function of VMM
  size_t granularity_bytes = 0;              // smallest unit of physical memory; 0 without VMM
  size_t recommended_granularity_bytes = 0;  // the driver's advice for speed; 0 without VMM
  int posix_handles = kUnknown;              // attribute 103: exportable as a file descriptor
  int compression = kUnknown;                // attribute 107
  int rdma_vmm = kUnknown;                   // attribute 110: GPUDirect RDMA with VMM memory
  int host_numa_id = kUnknown;               // attribute 134: the closest NUMA node
  int host_numa_vmm = kUnknown;              // attribute 141: VMM memory on a host NUMA node
  int host_vmm = kUnknown;                   // attribute 145: VMM memory on the host
};

// "GPU-" and the hexadecimal digits, as nvidia-smi prints it.
std::string uuid_text(const std::array<unsigned char, 16>& uuid);

// Checks whether device `device` can be given access to the memory of device `owner`. Errors:
// invalid_argument (no such device), unsupported (a text that says why not), driver.
Status check_peer(const Driver& driver, int device, int owner);

// Asks the driver about device `ordinal`; needs no context. Errors: invalid_argument (no such device: the
// text says how many there are), driver.
Result<DeviceProperties> query_device(const Driver& driver, int ordinal);

}  // namespace spillway
