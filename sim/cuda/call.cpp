#include "sim/cuda/call.h"

#include "sim/cuda/capture.h"

namespace spillway::sim {
namespace {

bool is_unsafe(const State& state, unsigned needs) {
  return (needs & kUnsafeInCapture) != 0 || ((needs & kVmmInCapture) != 0 && !state.config.vmm_in_capture);
}

}  // namespace

Call::Call(EntryPoint entry, unsigned needs) : state_(State::get()), lock_(state_.mutex, std::defer_lock) {
  // Said without a look at the state. What needs no device answers a child too.
  if (state_.inherited && ((needs & kBeforeInit) == 0 || entry == EntryPoint::k_cuInit)) {
    result_ = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  lock_.lock();
  if (this_thread().in_host_function) {
    result_ = CUDA_ERROR_NOT_PERMITTED;
    return;
  }
  const int fault = state_.calls.enter(entry);
  if (state_.ended) {
    result_ = CUDA_ERROR_DEINITIALIZED;
  } else if (fault != 0) {
    result_ = static_cast<CUresult>(fault);
  } else if (!state_.initialized && (needs & kBeforeInit) == 0) {
    result_ = CUDA_ERROR_NOT_INITIALIZED;
  } else if ((needs & kNeedsContext) != 0 && current_context(state_) == nullptr) {
    result_ = refuse_context(state_);
  } else if (!state_.captures.empty() && is_unsafe(state_, needs)) {
    result_ = check_unsafe_call(state_);
  }
}

CUresult fail(CUresult result, std::string text) {
  this_thread().last_error = std::move(text);
  return result;
}

}  // namespace spillway::sim
