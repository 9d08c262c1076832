#include "offload/spill/copy_streams.h"

#include <algorithm>
#include <utility>

#include "driver/capture.h"
#include "driver/lasting_error.h"

namespace spillway {

CopyStreams::CopyStreams(const Driver& driver)
    : driver_(driver),
      events_(driver),
      outward_(events_, [this] { return depth_out(); }),
      inward_(events_, [] { return kDepth; }) {}

Result<std::unique_ptr<CopyStreams>> CopyStreams::create(const Driver& driver) {
  std::unique_ptr<CopyStreams> copy_streams(new CopyStreams(driver));
  for (CUstream* stream : {&copy_streams->out_, &copy_streams->in_}) {
    Status status = driver.check(driver.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (!status.ok()) return status;
  }
  return copy_streams;
}

CopyStreams::~CopyStreams() {
  for (const CUstream stream : {out_, in_}) {
    if (stream != nullptr) (void)driver_.cuStreamDestroy(stream);
  }
}

// ---- Who goes first

void CopyStreams::wait(Urgency& urgency, int change) {
  urgency.waiting_.fetch_add(change);
  waiting_.fetch_add(change);
  inward_.reorder();
}

void CopyStreams::begin_inbound(const Urgency& urgency) {
  const Lock lock(mutex_);
  inbound_.push_back(&urgency);
}

void CopyStreams::end_inbound(const Urgency& urgency) {
  const Lock lock(mutex_);
  inbound_.erase(std::find(inbound_.begin(), inbound_.end(), &urgency));
}

size_t CopyStreams::depth_out() const {
  const Lock lock(mutex_);
  const bool is_needed = std::any_of(inbound_.begin(), inbound_.end(),
                                     [](const Urgency* urgency) { return urgency->is_waited_for(); });
  return is_needed ? 1 : kDepth;
}

// ---- Off

Status CopyStreams::note_failure(Status failed) {
  if (failed.ok() || lasting_error() != 0) return failed;
  const RelaxedCapture relaxed(driver_);
  const CUresult answer = driver_.cuStreamQuery(in_);
  if (!is_lasting(answer)) return failed;
  // Every call answers the same from now on: what the move met first says where.
  const std::string said =
      failed.code() == SPW_ERROR_DRIVER ? failed.text() : driver_.check(answer, "cuStreamQuery").text();
  const Lock lock(mutex_);
  if (lasting_error() != 0) return failed;
  why_off_ = "nothing is moved on this device any more, since an error of the driver that lasts: " + said;
  lasting_error_ = answer;
  return failed;
}

Status CopyStreams::why_off() const {
  if (lasting_error() == 0) return {};
  const Lock lock(mutex_);
  return Status::driver(why_off_);
}

// ---- Copies

namespace {

// Hands the parts of copies to `copy`, one for each call.
template <typename CopyPart>
CopyQueue::Enqueue in_parts(std::span<const CopyStreams::Copy> copies, CopyPart copy) {
  return [copies, copy, index = size_t{0}, at = size_t{0}]() mutable -> Result<bool> {
    const CopyStreams::Copy& now = copies[index];
    const size_t part = std::min(CopyStreams::kPartBytes, now.bytes - at);
    if (Status status = copy(now.host + at, now.device + at, part); !status.ok()) return status;
    at += part;
    if (at == now.bytes) {
      at = 0;
      ++index;
    }
    return index < copies.size();
  };
}

}  // namespace

Status CopyStreams::move_out(std::span<const Copy> copies) {
  static const Urgency kNone;
  if (copies.empty()) return {};
  return outward_.run(out_, kNone,
                      in_parts(copies, [this](std::byte* host, CUdeviceptr device, size_t bytes) {
                        return copy_out(host, device, bytes);
                      }));
}

Status CopyStreams::move_in(std::span<const Copy> copies, const Urgency& urgency) {
  if (copies.empty()) return {};
  return inward_.run(in_, urgency,
                     in_parts(copies, [this](std::byte* host, CUdeviceptr device, size_t bytes) {
                       return copy_in(device, host, bytes);
                     }));
}

Status CopyStreams::copy_out(std::byte* host, CUdeviceptr device, size_t bytes) {
  out_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return driver_.check(driver_.cuMemcpyDtoHAsync(host, device, bytes, out_), "cuMemcpyDtoHAsync");
}

Status CopyStreams::copy_in(CUdeviceptr device, const std::byte* host, size_t bytes) {
  in_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return driver_.check(driver_.cuMemcpyHtoDAsync(device, host, bytes, in_), "cuMemcpyHtoDAsync");
}

Status CopyStreams::drain_out() const {
  return driver_.check(driver_.cuStreamSynchronize(out_), "cuStreamSynchronize");
}

Status CopyStreams::drain_in() const {
  return driver_.check(driver_.cuStreamSynchronize(in_), "cuStreamSynchronize");
}

}  // namespace spillway
