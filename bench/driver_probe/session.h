// Holds what every measurement of the probe works with: a device, two streams, and work to put on them.
//
// Failures are exceptions here, unlike in the library: a measurement is given up as a whole, its section of
// the report says why, and the next one goes on. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/driver_probe/arguments.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "driver/event.h"
#include "driver/memory.h"

namespace spillway::probe {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The driver is too old for what was to be asked.
struct Absent : Failure {
  using Failure::Failure;
};

inline void require(const Status& status) {
  if (!status.ok()) throw Failure(status.text());
}

template <typename T>
T require(Result<T> result) {
  if (!result.ok()) throw Failure(result.status().text());
  return std::move(result.value());
}

class Session {
 public:
  explicit Session(const Options& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  const Driver& driver() const { return *driver_; }
  const DeviceProperties& properties() const { return properties_; }
  const Options& options() const { return options_; }
  // The smallest unit of physical memory; without VMM, the usual one, as a size for plain memory.
  size_t granule() const {
    return properties_.vmm_supported ? properties_.granularity_bytes : size_t{2} << 20;
  }
  int device() const { return properties_.ordinal; }
  // A few MiB of device memory that hold nothing.
  CUdeviceptr scratch() const { return scratch_.base(); }
  CUstream stream(int which) const { return streams_[which]; }
  // False where the driver takes no PTX or runs none: fill and copy are then the driver's own, and occupy
  // gives short work.
  bool has_kernels() const { return spin_ != nullptr; }

  void check(CUresult result, const char* call) const { require(driver_->check(result, call)); }
  // "works", or what the driver says that it does not.
  std::string answer(CUresult result, const char* call) const {
    return result == CUDA_SUCCESS ? "works" : driver_->check(result, call).text();
  }
  // An entry point that the allocator does not use. Throws Failure where the driver lacks it.
  template <typename Function>
  Function entry(const char* name) const {
    void* found = driver_->find(name);
    if (found == nullptr) throw Absent(std::string("this driver has no ") + name);
    return reinterpret_cast<Function>(found);
  }
  // Puts `milliseconds` of work on stream 0; without kernels, a few fills.
  void occupy(unsigned milliseconds);
  // Every 32-bit word of the range becomes `value`; enqueued.
  void fill(CUdeviceptr dst, size_t bytes, uint32_t value, CUstream stream) const;
  // Enqueued; sizes are multiples of 16.
  void copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) const;
  void wait() const { check(driver_->cuCtxSynchronize(), "cuCtxSynchronize"); }
  // Returns what cuMemGetInfo says is free.
  size_t free_bytes() const;
  // Counts how many of the range's words differ from `value`; waits for the device.
  size_t mismatches(CUdeviceptr src, size_t bytes, uint32_t value) const;

 private:
  void launch(CUfunction function, unsigned blocks, void** arguments, CUstream stream) const;
  void launch_fill(CUdeviceptr dst, size_t bytes, uint32_t value, CUstream stream) const;
  void load_kernels();
  bool kernels_compute() const;

  Options options_;
  std::shared_ptr<const Driver> driver_;
  DeviceProperties properties_;
  bool retained_ = false;
  CUstream streams_[2] = {};
  CUmodule module_ = nullptr;
  CUfunction spin_ = nullptr;
  CUfunction fill_ = nullptr;
  CUfunction copy_ = nullptr;
  DeviceBlock scratch_;
};

// Addresses with memory mapped into them from handles of one size; unmapped when it goes.
class Mapped {
 public:
  // Maps each handle behind the other and makes all readable and writable by the session's device.
  Mapped(const Session& session, const std::vector<const PhysicalHandle*>& handles);
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { driver_->cuMemUnmap(range_.base(), mapped_); }

  CUdeviceptr base() const { return range_.base(); }
  size_t bytes() const { return mapped_; }

 private:
  const Driver* driver_;
  AddressRange range_;
  size_t mapped_ = 0;
};

}  // namespace spillway::probe
