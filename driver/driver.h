// The one seam to CUDA: libcuda.so.1 opened at run time, and a table of its functions. Nothing is linked, so
// one binary runs where there is no driver at all and serves CUDA 12 and 13 alike.
//
// Each function of functions.inc is a public member by its plain name: driver.cuMemCreate(...). (cuda.h
// renames some of them by macro, cuMemAlloc to cuMemAlloc_v2; member and use are renamed alike, so write the
// plain name.) A member whose need is kVmm or kOptional may be null; see has_vmm().
//
// Invariants: a Driver is immutable once open returned it, and its library stays loaded until the process
// ends, because handles outlive their owners at exit. Cost: open resolves some 70 symbols once; a call is one
// indirect call. Thread-safety: any number of threads may use one Driver. It knows nothing of allocation
// policy.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <memory>
#include <string>

#include "driver/status.h"

namespace spillway {

class Driver {
 public:
  // The oldest driver that is accepted, as cuDriverGetVersion counts: CUDA 12.0, the oldest that current
  // frameworks run on.
  static constexpr int kMinVersion = 12000;

  // Opens the driver library and calls cuInit. An empty path means the environment's SPILLWAY_LIBCUDA, and
  // where that is unset or empty "libcuda.so.1". Errors: unsupported (no such library, too old, a required
  // function is missing: the text names the file and what is needed); driver (cuInit failed, for instance
  // because there is no device).
  static Result<std::shared_ptr<const Driver>> open(const std::string& path = {});

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Returns what cuDriverGetVersion says: 12040 is CUDA 12.4.
  int version() const { return version_; }
  // The name the library was opened by.
  const std::string& path() const { return path_; }
  // Tells whether every function of virtual memory management is there. A device may still lack it:
  // DeviceProperties.
  bool has_vmm() const { return has_vmm_; }

  // CUDA_SUCCESS is ok; CUDA_ERROR_OUT_OF_MEMORY becomes out_of_memory, anything else driver. The text reads
  // "cuMemCreate: CUDA_ERROR_INVALID_VALUE (invalid argument)"; `call` is its first word.
  Status check(CUresult result, const char* call) const noexcept {
    return result == CUDA_SUCCESS ? Status() : error(result, call);
  }

  // An entry point that is not in functions.inc, by its exported name; null where the library has none. Tests
  // reach the simulated device's own controls with it.
  void* find(const char* symbol) const;

#define SPW_DRIVER_FUNCTION(name, since, need, symbol) PFN_##name##_v##since name = nullptr;
#include "driver/functions.inc"
#undef SPW_DRIVER_FUNCTION

 private:
  Driver() = default;
  Status error(CUresult result, const char* call) const noexcept;
  Status load(const std::string& path);
  Status resolve();

  void* library_ = nullptr;
  std::string path_;
  int version_ = 0;
  bool has_vmm_ = true;
};

}  // namespace spillway
