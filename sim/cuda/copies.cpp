#include "sim/cuda/copies.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "sim/cuda/addresses.h"
#include "sim/cuda/bytes.h"
#include "sim/cuda/shared_events.h"
#include "sim/cuda/sparse.h"
#include "sim/cuda/work.h"

namespace spillway::sim {
namespace {

// What spwSimAnswer said for this thread takes the place of what is copied.
void answer_copy(Work& work, bool to_host) {
  ThreadState& thread = this_thread();
  if (thread.answered_copies == 0 || !to_host || work.bytes > sizeof thread.answer) return;
  --thread.answered_copies;
  work.staged.resize(work.bytes);
  std::memcpy(work.staged.data(), &thread.answer, work.bytes);
}

bool device_visible(State& state, uint64_t address) {
  return state.memory.find(address) != nullptr;
}

// Finds where the bytes at an address are; ordinary host memory is where it is.
Piece locate(State& state, uint64_t address, bool pageable, uint64_t* contiguous) {
  if (!pageable) return state.memory.piece_at(address, contiguous);
  *contiguous = UINT64_MAX;
  return {pointer_to(address), -1, 0};
}

void run_copy(State& state, Work& work) {
  if (work.moves_nothing) return;
  for (uint64_t done = 0; done < work.bytes;) {
    uint64_t to_left = 0;
    uint64_t from_left = 0;
    const Piece to = locate(state, work.to + done, work.to_pageable, &to_left);
    const Piece from = work.staged.empty() ? locate(state, work.from + done, work.from_pageable, &from_left)
                                           : Piece{work.staged.data() + done, -1, 0};
    if (!work.staged.empty()) from_left = work.staged.size() - done;
    if (to.bytes != nullptr && !state.config.backed) {
      // Device memory without bytes reads as zeros.
      fill_bytes(to.bytes, 0, work.bytes - done);
      return;
    }
    if (to.bytes == nullptr || from.bytes == nullptr) return;  // unmapped by now, or nothing is backed
    const uint64_t part = std::min({work.bytes - done, to_left, from_left});
    if (kSparseWork) {
      move_sparse(to, from, part);
    } else {
      move_bytes(to.bytes, from.bytes, part);
    }
    done += part;
  }
}

void run_fill(State& state, uint64_t start, uint64_t bytes, const char* value, uint32_t width) {
  const bool is_zero = kSparseWork && std::all_of(value, value + width, [](char each) { return each == 0; });
  for (uint64_t done = 0; done < bytes;) {
    uint64_t left = 0;
    const Piece to = state.memory.piece_at(start + done, &left);
    if (to.bytes == nullptr) return;
    const uint64_t part = std::min(bytes - done, left);
    if (is_zero) {
      clear_sparse(to, part);
    } else if (width == 1) {
      fill_bytes(to.bytes, value[0], part);
    } else {
      for (uint64_t i = 0; i + width <= part; i += width) std::memcpy(to.bytes + i, value, width);
    }
    done += part;
  }
}

void run_on_host(Work& work, Lock& lock) {
  lock.unlock();
  this_thread().in_host_function = true;
  if (work.kind == Work::Kind::kCallback) {
    work.callback(work.stream, CUDA_SUCCESS, work.argument);
  } else if (work.kind == Work::Kind::kExternal) {
    work.run(work.argument);
  } else {
    work.function(work.argument);
  }
  this_thread().in_host_function = false;
  lock.lock();
}

// The side must be known to the device, or be ordinary host memory where that is allowed, which addresses
// that the driver has reserved are not.
bool side_is_valid(State& state, uint64_t address, CopySide side, bool* pageable) {
  *pageable = !device_visible(state, address);
  if (!*pageable) return true;
  return side != CopySide::kDevice && state.memory.reservation_of(address).second == 0;
}

CUresult refuse_address(State& state, EntryPoint entry, uint64_t address) {
  const std::string name = entry_point_name(entry);
  state.detector.report(name + " with an address that is not device memory");
  char hex[32];
  std::snprintf(hex, sizeof hex, "0x%llx", static_cast<unsigned long long>(address));
  return fail(CUDA_ERROR_INVALID_VALUE,
              name + " of memory that is not there: " + hex + " is " + state.memory.fate_of(address));
}

// False for a context that is none. Without one, *device stays.
bool context_device(CUcontext handle, int* device) {
  if (handle == nullptr) return true;
  const Context* context = find_context(handle);
  if (context == nullptr) return false;
  *device = context->device;
  return true;
}

}  // namespace

bool is_ready(const Work& work) {
  if (work.kind == Work::Kind::kExternal) return work.ready == nullptr || work.ready(work.argument) != 0;
  if (work.kind != Work::Kind::kWaitValue) return true;
  uint64_t left = 0;
  char* bytes = State::get().memory.bytes_at(work.to, &left);
  if (bytes == nullptr) return true;  // unmapped by now
  // The program writes it when it likes.
  const uint32_t value = std::atomic_ref(*reinterpret_cast<uint32_t*>(bytes)).load(std::memory_order_acquire);
  switch (work.comparison) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<int32_t>(value - work.awaited) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return value == work.awaited;
    case CU_STREAM_WAIT_VALUE_AND:
      return (value & work.awaited) != 0;
    default:  // CU_STREAM_WAIT_VALUE_NOR
      return (value | work.awaited) != UINT32_MAX;
  }
}

void run_work(Work& work, Lock& lock) {
  State& state = State::get();
  switch (work.kind) {
    case Work::Kind::kCopy:
      run_copy(state, work);
      break;
    case Work::Kind::kFill:
      run_fill(state, work.to, work.bytes, work.value.data(), work.width);
      break;
    case Work::Kind::kTouch:
      for (const SpwSimRange& range : work.ranges) {
        run_fill(state, range.ptr, range.bytes, work.value.data(), work.width);
      }
      break;
    case Work::Kind::kHostFunction:
    case Work::Kind::kCallback:
    case Work::Kind::kExternal:
      run_on_host(work, lock);
      break;
    case Work::Kind::kWait:
      wait_for_record(*work.event, work.record, lock);
      break;
    case Work::Kind::kWaitValue:
      break;
  }
}

CUresult copy_on(const Copy& copy, CUstream handle, bool synchronous) {
  Call call(copy.entry, kNeedsContext | (synchronous ? kUnsafeInCapture : 0u));
  if (call.refused()) return call.result();
  State& state = call.state();
  Stream* stream = find_stream(state, handle);
  if (stream == nullptr) return refuse_stream(handle);
  if (copy.bytes == 0) return CUDA_SUCCESS;
  bool to_pageable = false;
  bool from_pageable = false;
  if (!side_is_valid(state, copy.to, copy.to_side, &to_pageable))
    return refuse_address(state, copy.entry, copy.to);
  if (!side_is_valid(state, copy.from, copy.from_side, &from_pageable))
    return refuse_address(state, copy.entry, copy.from);
  int to_device = -1;
  int from_device = -1;
  if (!context_device(copy.to_context, &to_device) || !context_device(copy.from_context, &from_device)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  WorkPtr work(new Work);
  work->kind = Work::Kind::kCopy;
  work->to = copy.to;
  work->from = copy.from;
  work->bytes = copy.bytes;
  work->to_pageable = to_pageable;
  work->from_pageable = from_pageable;
  const bool capturing = stream->capture != nullptr;
  const Mapping* target = to_pageable ? nullptr : state.memory.find(copy.to);
  const bool to_host = to_pageable || target->physical->kind == Physical::Kind::kPinned;
  work->moves_nothing = this_thread().copies_nothing && !capturing && !to_host;
  answer_copy(*work, to_host && !from_pageable);
  // Ordinary host memory is read before the call returns: the program may change it at once.
  if (from_pageable && !capturing && state.config.backed && !work->moves_nothing) {
    const char* source = pointer_to(copy.from);
    work->staged.assign(source, source + copy.bytes);
  }
  std::vector<RangeAccess> accesses{{copy.to, copy.bytes, true, to_pageable, to_device},
                                    {copy.from, copy.bytes, false, from_pageable, from_device}};
  const CUresult result =
      enqueue(state, stream, std::move(work), std::move(accesses), entry_point_name(copy.entry), call.lock());
  if (result != CUDA_SUCCESS) return result;
  // A copy to ordinary host memory has happened when the call returns.
  if ((synchronous || to_pageable) && !capturing) wait_stream(state, stream, call.lock());
  return CUDA_SUCCESS;
}

CUresult fill_on(EntryPoint entry, uint64_t to, uint32_t value, uint32_t width, uint64_t count,
                 CUstream handle) {
  Call call(entry, kNeedsContext);
  if (call.refused()) return call.result();
  State& state = call.state();
  Stream* stream = find_stream(state, handle);
  if (stream == nullptr) return refuse_stream(handle);
  if (to % width != 0) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  if (!device_visible(state, to)) return refuse_address(state, entry, to);
  WorkPtr work;
  if (state.config.backed) {
    work.reset(new Work);
    work->kind = Work::Kind::kFill;
    work->to = to;
    work->bytes = count * width;
    std::memcpy(work->value.data(), &value, sizeof value);
    work->width = width;
  }
  return enqueue(state, stream, std::move(work), {{to, count * width, true, false}}, entry_point_name(entry),
                 call.lock());
}

CUresult wait_value_on(CUdeviceptr address, uint32_t value, unsigned comparison, CUstream handle) {
  Call call(EntryPoint::k_cuStreamWaitValue32, kNeedsContext);
  if (call.refused()) return call.result();
  State& state = call.state();
  Stream* stream = find_stream(state, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t left = 0;
  const bool is_flag = comparison <= CU_STREAM_WAIT_VALUE_NOR && address % sizeof(uint32_t) == 0;
  if (!is_flag || !device_visible(state, address)) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr || state.memory.bytes_at(address, &left) == nullptr) {
    return fail(CUDA_ERROR_NOT_SUPPORTED, "cuStreamWaitValue32 in a capture, or of memory without bytes");
  }
  WorkPtr work(new Work);
  work->kind = Work::Kind::kWaitValue;
  work->to = address;
  work->awaited = value;
  work->comparison = comparison;
  return enqueue(state, stream, std::move(work), {}, "cuStreamWaitValue32", call.lock());
}

}  // namespace spillway::sim
