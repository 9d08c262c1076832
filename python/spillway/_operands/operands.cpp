// Kernels of PyTorch do nothing on the simulated device. Here every operator tells the device what its
// kernels would have read and written, so that the device's race detector judges a PyTorch program as it
// would a real one.
//
// An observer of the dispatcher (RecordFunction) is called for each operator, on each thread, with the stream
// current that its kernels go to. Before the operator one grid is enqueued that reads its inputs and writes
// the arguments that its schema marks as written; after it, one that writes its new outputs. In that order,
// because an operator that waits for its own work (a copy to the host) leaves nothing pending. Bytes stay as
// they are: copies and zeros are moved by the driver, and fill_ and _foreach_copy_ are done here.
//
// Hooks for saved tensors run inside the operator, after its kernels. One that gives an output to another
// stream says so (record_stream) before it enqueues work there: then the output is written.
//
// Judged are operators that have a kernel of their own for CUDA; others are made of such. Views, and what
// makes or resizes memory, touch nothing. Never too much is touched, so a report is a race; not seen are
// temporaries that a kernel keeps to itself, and what libraries (NCCL) use on streams of their own.
#include <ATen/Dispatch_v2.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/cuda/sim_control.h"
#include "tensors.h"

namespace {

using c10::IValue;
using spillway::operands::device_base_of;
using spillway::operands::each_tensor;
using Ranges = std::vector<SpwSimRange>;

constexpr uint32_t kWrites = SPW_SIM_WRITE | SPW_SIM_KEEP_BYTES;

struct Device {
  decltype(&spwSimTouch) touch = nullptr;
  decltype(&spwSimFill) fill = nullptr;
} device;

std::atomic<uint64_t> grids{0};
std::atomic<uint64_t> refused{0};

// ---- What a tensor covers ---------------------------------------------------------------------------------

// A tensor of more separate runs than this is touched in part: too little is no false report.
constexpr size_t kMostRuns = 4096;

// Appends the bytes that the elements occupy, as runs without gaps.
void add_runs(const at::Tensor& tensor, uint32_t access, Ranges& out) {
  const uint64_t base = device_base_of(tensor);
  if (base == 0) return;
  const auto item = static_cast<uint64_t>(tensor.itemsize());
  struct Dimension {
    uint64_t step;
    uint64_t size;
  };
  std::vector<Dimension> dimensions;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) > 0) {
      dimensions.push_back(
          {static_cast<uint64_t>(tensor.stride(i)) * item, static_cast<uint64_t>(tensor.size(i))});
    }
  }
  std::sort(dimensions.begin(), dimensions.end(), [](auto& a, auto& b) { return a.step < b.step; });
  uint64_t run = item;
  size_t outer = 0;
  for (; outer < dimensions.size() && dimensions[outer].step <= run; ++outer) {
    run += dimensions[outer].step * (dimensions[outer].size - 1);
  }
  std::vector<uint64_t> index(dimensions.size(), 0);
  uint64_t at = base + static_cast<uint64_t>(tensor.storage_offset()) * item;
  for (size_t count = 0; count < kMostRuns; ++count) {
    out.push_back({at, run, access, 0});
    size_t i = outer;
    for (; i < dimensions.size(); ++i) {
      at += dimensions[i].step;
      if (++index[i] < dimensions[i].size) break;
      at -= dimensions[i].step * dimensions[i].size;
      index[i] = 0;
    }
    if (i == dimensions.size()) return;
  }
}

// ---- Grids ------------------------------------------------------------------------------------------------

// `enqueue` gets the stream that is current for the device. The thread may not have used the device before.
template <typename Enqueue>
void launch(c10::DeviceIndex index, const Enqueue& enqueue) {
  const c10::cuda::CUDAGuard guard(index);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index).stream();
  int result = enqueue(stream);
  if (result != 0 && cudaFree(nullptr) == cudaSuccess) result = enqueue(stream);
  (result == 0 ? grids : refused).fetch_add(1, std::memory_order_relaxed);
}

// Holds what one operator touches, by device.
class Grid {
 public:
  void add(const at::Tensor& tensor, uint32_t access) {
    if (device_base_of(tensor) != 0) add_runs(tensor, access, ranges_[tensor.device().index()]);
  }
  bool covers(const at::Tensor& tensor) const {
    const auto found = ranges_.find(tensor.device().index());
    if (found == ranges_.end()) return false;
    Ranges own;
    add_runs(tensor, 0, own);
    return own.empty() ||
           std::any_of(found->second.begin(), found->second.end(), [&](const SpwSimRange& range) {
             return range.ptr == own[0].ptr && range.bytes == own[0].bytes;
           });
  }
  void enqueue() const {
    for (const auto& [index, ranges] : ranges_) {
      launch(index, [&ranges = ranges](cudaStream_t stream) {
        return device.touch(stream, ranges.data(), ranges.size(), 0);
      });
    }
  }

 private:
  std::unordered_map<c10::DeviceIndex, Ranges> ranges_;
};

// ---- Operators --------------------------------------------------------------------------------------------

struct Operator {
  bool is_judged = false;
  bool fills = false;
  bool copies_each = false;
  bool records_stream = false;
  std::vector<bool> writes;  // by argument
};

bool only_makes_memory(std::string_view name) {
  static constexpr std::array kNames = {"aten::empty", "aten::empty_strided",   "aten::resize_",
                                        "aten::set_",  "aten::_resize_output_", "aten::record_stream",
                                        "aten::resize"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Operator describe(const c10::OperatorName& name) {
  Operator out;
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  out.records_stream = name.name == "aten::record_stream";
  if (!handle.has_value() || only_makes_memory(name.name)) return out;
  // copy_ has one kernel for all devices.
  if (!handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA) && name.name != "aten::copy_") return out;
  const c10::FunctionSchema& schema = handle->schema();
  const auto is_written = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  bool has_effect = false;
  for (const c10::Argument& argument : schema.arguments()) {
    out.writes.push_back(is_written(argument));
    has_effect |= out.writes.back();
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !is_written(result)) return out;  // a view
    has_effect |= result.type()->isSubtypeOf(*c10::TensorType::get()) ||
                  result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  }
  out.is_judged = has_effect;
  out.fills = name.name == "aten::fill_";
  out.copies_each = name.name == "aten::_foreach_copy_";
  return out;
}

// The operator's description, which lives for ever.
const Operator& operator_of(const c10::OperatorName& name) {
  static std::mutex mutex;
  static auto* const kKnown = new std::unordered_map<c10::OperatorName, Operator>;
  const std::lock_guard lock(mutex);
  auto found = kKnown->find(name);
  if (found == kKnown->end()) found = kKnown->emplace(name, describe(name)).first;
  return found->second;
}

// fill_ with a value that the host knows. The element's size divides every run's.
void fill(const at::Tensor& tensor, const IValue& value) {
  if (device_base_of(tensor) == 0) return;
  c10::Scalar scalar;
  if (value.isScalar()) {
    scalar = value.toScalar();
  } else if (value.isTensor() && value.toTensor().is_cpu()) {
    scalar = value.toTensor().item();
  } else {
    return;
  }
  std::array<char, 16> bytes{};
  AT_DISPATCH_V2(tensor.scalar_type(), "fill", AT_WRAP([&] {
                   const auto element = scalar.to<scalar_t>();
                   static_assert(sizeof element <= sizeof bytes);
                   std::memcpy(bytes.data(), &element, sizeof element);
                 }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_FLOAT8_TYPES), c10::kHalf, c10::kBFloat16,
                 c10::kBool, c10::kComplexHalf);
  Ranges ranges;
  add_runs(tensor, SPW_SIM_WRITE, ranges);
  const auto item = static_cast<unsigned>(tensor.itemsize());
  launch(tensor.device().index(), [&](cudaStream_t stream) {
    return device.fill(stream, ranges.data(), ranges.size(), bytes.data(), item);
  });
}

// One of the copies of _foreach_copy_, where the bytes are the same.
void copy(const at::Tensor& to, const at::Tensor& from) {
  if (device_base_of(to) == 0 || device_base_of(from) == 0) return;
  if (to.scalar_type() != from.scalar_type() || !to.sizes().equals(from.sizes())) return;
  if (!to.is_contiguous() || !from.is_contiguous()) return;
  const auto begin_of = [](const at::Tensor& tensor) {
    return reinterpret_cast<void*>(device_base_of(tensor) + static_cast<uint64_t>(tensor.storage_offset()) *
                                                                static_cast<uint64_t>(tensor.itemsize()));
  };
  launch(to.device().index(), [&](cudaStream_t stream) {
    return static_cast<int>(
        cudaMemcpyAsync(begin_of(to), begin_of(from), to.nbytes(), cudaMemcpyDefault, stream));
  });
}

struct Call final : at::ObserverContext {
  Call() : outer(innermost) { innermost = this; }
  ~Call() override { innermost = outer; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Grid before;
  Call* outer;
  static thread_local Call* innermost;
};

thread_local Call* Call::innermost = nullptr;

// An output of the operator that is under way, for which its kernels are enqueued already.
void write_early(const at::Tensor& tensor) {
  Call* const call = Call::innermost;
  if (call == nullptr || device_base_of(tensor) == 0 || call->before.covers(tensor)) return;
  Grid output;
  output.add(tensor, kWrites);
  output.enqueue();
  call->before.add(tensor, kWrites);  // so it is not written again at the end
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (!name.has_value()) return nullptr;
  const Operator& described = operator_of(*name);
  if (described.records_stream) write_early(function.inputs()[0].toTensor());
  if (!described.is_judged) return nullptr;
  auto call = std::make_unique<Call>();
  const auto inputs = function.inputs();
  for (size_t i = 0; i < inputs.size() && i < described.writes.size(); ++i) {
    const uint32_t access = described.writes[i] ? kWrites : uint32_t{SPW_SIM_READ};
    each_tensor(inputs[i], [&](const at::Tensor& tensor) { call->before.add(tensor, access); });
  }
  call->before.enqueue();
  if (described.fills && inputs.size() == 2) fill(inputs[0].toTensor(), inputs[1]);
  if (described.copies_each && inputs.size() >= 2) {
    std::vector<at::Tensor> to;
    std::vector<at::Tensor> from;
    each_tensor(inputs[0], [&](const at::Tensor& tensor) { to.push_back(tensor); });
    each_tensor(inputs[1], [&](const at::Tensor& tensor) { from.push_back(tensor); });
    for (size_t i = 0; i < std::min(to.size(), from.size()); ++i) copy(to[i], from[i]);
  }
  return call;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  const Grid& before = static_cast<Call*>(context)->before;
  Grid after;
  for (const IValue& output : function.outputs()) {
    each_tensor(output, [&](const at::Tensor& tensor) {
      if (device_base_of(tensor) != 0 && !before.covers(tensor)) after.add(tensor, kWrites);
    });
  }
  after.enqueue();
}

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

// Once per process, for all threads and to the end. NULL, or why not.
EXPORTED const char* spillway_operands_start() {
  static std::once_flag once;
  void* libcuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (libcuda == nullptr) return "libcuda.so.1 is not loaded";
  device.touch = reinterpret_cast<decltype(device.touch)>(dlsym(libcuda, "spwSimTouch"));
  device.fill = reinterpret_cast<decltype(device.fill)>(dlsym(libcuda, "spwSimFill"));
  if (device.touch == nullptr || device.fill == nullptr) return "libcuda.so.1 is no simulated driver";
  std::call_once(once, [] {
    at::addGlobalCallback(at::RecordFunctionCallback(begin, end)
                              .needsInputs(true)
                              .needsOutputs(true)
                              .scopes({at::RecordScope::FUNCTION}));
  });
  return nullptr;
}

// Grids enqueued, and grids that the device refused.
EXPORTED uint64_t spillway_operands_grids() {
  return grids.load();
}
EXPORTED uint64_t spillway_operands_refused() {
  return refused.load();
}

}  // extern "C"
