// The simulated device as tests of the memory resource use it: with kLate it executes late, and it reports
// every use of memory out of order.
#pragma once

#include <dlfcn.h>

#include "sim/cuda/sim_control.h"
#include "tests/support/child.h"

namespace spillway::test {

inline const Environment kLate{{"SPILLWAY_SIM", "completion:run-ahead"}};

class LateDevice {
 public:
  LateDevice() : driver_(start_device()) {
    void* library = dlopen(std::getenv("SPILLWAY_LIBCUDA"), RTLD_NOW);
    SPW_CHECK(library != nullptr);
    *reinterpret_cast<void**>(&report_count_) = dlsym(library, "spwSimReportCount");
    SPW_CHECK(report_count_ != nullptr);
  }

  // Makes the device's context current in another thread than the one that made this.
  void enter() const {
    CUcontext context = nullptr;
    SPW_CHECK(driver_->cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    SPW_CHECK(driver_->cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }

  CUstream stream() const {
    CUstream made = nullptr;
    SPW_CHECK(driver_->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return made;
  }

  CUstream stream_of_another_context() const {
    using Create = CUresult (*)(CUcontext*, unsigned, CUdevice);
    CUcontext other = nullptr;
    const auto create = reinterpret_cast<Create>(driver_->find("cuCtxCreate_v2"));
    SPW_CHECK(create != nullptr && create(&other, 0, 0) == CUDA_SUCCESS);
    CUstream made = stream();
    SPW_CHECK(driver_->cuCtxPopCurrent(&other) == CUDA_SUCCESS);
    return made;
  }

  void write(void* block, size_t bytes, CUstream stream) const {
    const auto address = reinterpret_cast<CUdeviceptr>(block);
    SPW_CHECK(driver_->cuMemsetD8Async(address, 1, bytes, stream) == CUDA_SUCCESS);
  }

  bool is_device_memory(void* block) const {
    using Ask = CUresult (*)(void*, CUpointer_attribute, CUdeviceptr);
    const auto ask = reinterpret_cast<Ask>(driver_->find("cuPointerGetAttribute"));
    SPW_CHECK(ask != nullptr);
    int type = 0;
    const CUresult result =
        ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(block));
    return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
  }

  // What is enqueued on `later` from now on comes after all that is on `earlier`.
  void order(CUstream earlier, CUstream later) const { wait(later, record(earlier)); }

  // The same in two halves, for streams of two threads: an event after all that is on the stream, for wait.
  CUevent record(CUstream earlier) const {
    CUevent event = nullptr;
    SPW_CHECK(driver_->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    SPW_CHECK(driver_->cuEventRecord(event, earlier) == CUDA_SUCCESS);
    return event;
  }
  void wait(CUstream later, CUevent event) const {
    SPW_CHECK(driver_->cuStreamWaitEvent(later, event, 0) == CUDA_SUCCESS);
    SPW_CHECK(driver_->cuEventDestroy(event) == CUDA_SUCCESS);
  }

  // Waits for everything, and demands that all of it was in order.
  void finish() const {
    SPW_CHECK(driver_->cuCtxSynchronize() == CUDA_SUCCESS);
    SPW_CHECK(report_count_() == 0);
    SPW_CHECK(stats_of(0).allocated_bytes.all.current == 0);
    SPW_CHECK(spw_validate(0) == SPW_OK);
  }

 private:
  std::shared_ptr<const Driver> driver_;
  decltype(&spwSimReportCount) report_count_ = nullptr;
};

}  // namespace spillway::test
