#include "allocator/stream_identity.h"

#include <fmt/format.h>

#include "driver/capture.h"
#include "driver/context.h"

namespace spillway {
namespace {

// Holds what other threads may ask about one that is gone.
struct ThreadLife {
  std::shared_ptr<std::atomic<bool>> ended = std::make_shared<std::atomic<bool>>(false);
  ~ThreadLife() { ended->store(true, std::memory_order_release); }
};

CUresult ask_id(const Driver& driver, CUstream stream, uint64_t* id) {
  *id = kIdNotAsked;
  if (is_capturing(driver, stream)) return CUDA_SUCCESS;  // mutant: asks-captured
  if (driver.cuStreamGetId == nullptr) {
    *id = reinterpret_cast<uint64_t>(stream);
    return CUDA_SUCCESS;
  }
  unsigned long long answer = 0;
  const CUresult result = driver.cuStreamGetId(stream, &answer);
  *id = answer;
  return result;
}

}  // namespace

uint64_t thread_number() {
  static std::atomic<uint64_t> next{1};
  thread_local uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

std::shared_ptr<const std::atomic<bool>> thread_has_ended() {
  thread_local ThreadLife life;
  return life.ended;
}

Result<StreamIdentity> identify(const Driver& driver, CUstream stream) {
  StreamIdentity identity;
  if (stream == CU_STREAM_PER_THREAD) {
    identity.stream = stream;
    identity.thread = thread_number();
  } else if (!is_default_stream(stream)) {
    identity.stream = stream;
    const CUresult answer = ask_id(driver, stream, &identity.id);
    if (Status status = driver.check(answer, "cuStreamGetId"); !status.ok()) {
      return Status::invalid_argument(fmt::format("stream {}: the driver does not know it ({})",
                                                  static_cast<const void*>(stream), status.text()));
    }
  }
  return identity;
}

bool is_same(const Driver& driver, const StreamIdentity& stream) {
  if (is_default_stream(stream.stream)) return true;
  uint64_t id = 0;
  if (ask_id(driver, stream.stream, &id) != CUDA_SUCCESS || id == kIdNotAsked) return true;
  return id == stream.id || (stream.id == kIdNotAsked && !stream.ends_unseen);
}

// A green context is a part of its device's primary context, and uses the same memory.
bool is_of_green_context(const Driver& driver, CUstream stream, CUcontext owner, int device) {
  CUgreenCtx green = nullptr;
  if (is_default_stream(stream) || driver.cuStreamGetGreenCtx == nullptr) return false;
  if (driver.cuStreamGetGreenCtx(stream, &green) != CUDA_SUCCESS || green == nullptr) return false;
  const ScopedContext entered(driver, owner);
  CUdevice current = 0;
  return entered.status().ok() && driver.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device;
}

Status check_context(const Driver& driver, CUstream stream, CUcontext context, int device) {
  CUcontext owner = nullptr;
  if (is_default_stream(stream)) {
    CUdevice current = 0;
    if (driver.cuCtxGetCurrent(&owner) != CUDA_SUCCESS || owner == nullptr) return {};
    // The thread works on another device: its default stream there is not meant.
    if (driver.cuCtxGetDevice(&current) != CUDA_SUCCESS || current != device) return {};
  } else if (driver.cuStreamGetCtx == nullptr || driver.cuStreamGetCtx(stream, &owner) != CUDA_SUCCESS) {
    return {};
  }
  if (owner == context || is_of_green_context(driver, stream, owner, device)) return {};
  return Status::invalid_argument(fmt::format(
      "stream {}: it belongs to another context than the memory of device {}, which is that of the device's "
      "first use; use a stream of that context",
      static_cast<const void*>(stream), device));
}

}  // namespace spillway
