// The frame of every entry point: takes the lock, counts the call, and decides whether it may go on.
//
//   CUresult cuMemMap(...) {
//     Call call(EntryPoint::k_cuMemMap, kUnsafeInCapture);
//     if (call.refused()) return call.result();
//     State& state = call.state();
#pragma once

#include "sim/cuda/state.h"

namespace spillway::sim {

enum CallNeeds : unsigned {
  kNeedsNothing = 0,
  kNeedsContext = 1,     // refuse_context() unless one is current
  kUnsafeInCapture = 2,  // refused, and ends the captures it disturbs, unless the thread's mode permits
  kBeforeInit = 4,       // allowed before cuInit
  kVmmInCapture = 8,     // kUnsafeInCapture, unless configured otherwise
};

class Call {
 public:
  explicit Call(EntryPoint entry, unsigned needs = kNeedsNothing);

  bool refused() const { return result_ != CUDA_SUCCESS; }
  CUresult result() const { return result_; }
  State& state() { return state_; }
  Lock& lock() { return lock_; }
  Context* context() { return current_context(state_); }

 private:
  State& state_;
  Lock lock_;
  CUresult result_ = CUDA_SUCCESS;
};

// Device memory of the current context, on pages of its own, as blocks of a device's page size and more have;
// on another device than the context's where one is named.
constexpr int kContextDevice = -1;
CUresult allocate_block(Call& call, CUdeviceptr* dptr, uint64_t bytes, int device = kContextDevice);
// The same without memory, which a commit of it brings.
CUresult reserve_block(Call& call, CUdeviceptr* dptr, uint64_t bytes, int device);
uint64_t whole_pages(const State& state, uint64_t bytes);

// Fails with a line for spwSimLastError.
CUresult fail(CUresult result, std::string text);

}  // namespace spillway::sim
