#include "offload/spill/copy_lanes.h"

namespace spillway {

Result<std::unique_ptr<CopyLanes>> CopyLanes::create(const Driver& driver) {
  std::unique_ptr<CopyLanes> lanes(new CopyLanes(driver));
  for (CUstream* stream : {&lanes->out_, &lanes->in_}) {
    Status status = driver.check(driver.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (!status.ok()) return status;
  }
  return lanes;
}

CopyLanes::~CopyLanes() {
  for (const CUstream stream : {out_, in_}) {
    if (stream != nullptr) (void)driver_.cuStreamDestroy(stream);
  }
}

Status CopyLanes::copy_out(std::byte* host, CUdeviceptr device, size_t bytes) {
  out_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return driver_.check(driver_.cuMemcpyDtoHAsync(host, device, bytes, out_), "cuMemcpyDtoHAsync");
}

Status CopyLanes::copy_in(CUdeviceptr device, const std::byte* host, size_t bytes) {
  in_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return driver_.check(driver_.cuMemcpyHtoDAsync(device, host, bytes, in_), "cuMemcpyHtoDAsync");
}

Status CopyLanes::drain_out() const {
  return driver_.check(driver_.cuStreamSynchronize(out_), "cuStreamSynchronize");
}

Status CopyLanes::drain_in() const {
  return driver_.check(driver_.cuStreamSynchronize(in_), "cuStreamSynchronize");
}

}  // namespace spillway
