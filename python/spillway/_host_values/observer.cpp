// Kernels of PyTorch compute nothing on the simulated device. Here operators are computed on the host beside
// them, on the bytes that the device keeps, where that is cheap: docs/decisions/values.md says how, and why
// so.
//
// An observer of the dispatcher (RecordFunction) is called for each operator, on each thread. Work of the
// device is complete when it is enqueued, as `spillway dryrun` configures it, so values can be read and
// written at once.
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dlfcn.h>

#include <cstring>
#include <mutex>

#include "../_operands/tensors.h"
#include "call.h"
#include "footprint.h"

namespace spillway::values {
namespace {

// Says what the tensors of a call are.
struct Operands {
  bool any = false;
  bool on_device = false;
  bool strange = false;  // fake ones, wrappers of others: what they are made of is called in turn
  bool sparse = false;
  uint64_t bytes = 0;
  uint64_t largest = 0;
  bool integers_alone = true;
  bool writes_integers = false;
  c10::Device device{at::kCUDA, 0};
};

Operands operands_of(const Operator& op, Arguments arguments) {
  Operands all;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isDevice() && arguments[i].toDevice().is_cuda() && !all.any) all.on_device = true;
    if (!op.arguments[i].may_be_tensors) continue;
    operands::each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      all.any = true;
      const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
      if (impl.layout() != at::kStrided && impl.device().is_cuda()) {
        all.on_device = all.sparse = true;
        return;
      }
      if (impl.key_set().has(c10::DispatchKey::Python) || !impl.has_storage() ||
          impl.has_symbolic_sizes_strides() || !(impl.device().is_cpu() || impl.device().is_cuda())) {
        all.strange = true;
        return;
      }
      if (impl.device().is_cuda()) {
        all.on_device = true;
        all.device = impl.device();
      }
      all.bytes += tensor.nbytes();
      all.largest = std::max<uint64_t>(all.largest, tensor.nbytes());
      const bool is_integer = at::isIntegralType(tensor.scalar_type(), true);
      all.integers_alone &= is_integer;
      if (op.arguments[i].written) all.writes_integers = is_integer;
    });
  }
  return all;
}

// Tells whether the operator comes again, for the tensors that its kernels will get.
bool is_called_again(const Operator& op) {
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  const auto is_on = [&](c10::DispatchKey key) {
    return local.included_.has(key) && !local.excluded_.has(key);
  };
  return (op.autocasts && !local.excluded_.has(c10::DispatchKey::AutocastCUDA)) ||
         is_on(c10::DispatchKey::Python) || is_on(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// As far as the arguments tell.
bool may_give_integers(const Operator& op, const Operands& operands) {
  if (op.writes_any) return operands.writes_integers;
  return operands.integers_alone || op.picks || op.makes_integers != 0;
}

bool may_be_wanted(const Operator& op, const Operands& operands) {
  if (settings.wanted == Wanted::kAll || operands.bytes <= settings.small_bytes) return true;
  if (op.counts != Counts::kNothing) return operands.largest <= settings.counted_bytes;
  return may_give_integers(op, operands) && operands.largest <= settings.integer_bytes;
}

// What is made of nothing that is known needs no computing.
bool reads_unknown(const Operator& op, Arguments arguments) {
  bool found = false;
  for (size_t i = 0; i < arguments.size() && !found; ++i) {
    if (!op.arguments[i].read || !op.arguments[i].may_be_tensors) continue;
    operands::each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      found |= operands::device_base_of(tensor) != 0 && reality.is_all_unknown(tensor);
    });
  }
  return found;
}

// Makes a single value another: what is not zero becomes zero, and zero becomes one.
void change(const at::Tensor& tensor) {
  const Unobserved unobserved;
  const at::Tensor now = tensor.is_cuda() ? mirror_of(tensor) : tensor;
  if (!now.defined()) return;
  const at::Tensor changed = now.eq(0).to(tensor.scalar_type());
  if (tensor.is_cuda()) {
    write_back(tensor, changed);
  } else {
    std::memcpy(tensor.mutable_data_ptr(), changed.const_data_ptr(), tensor.nbytes());
  }
}

void check_read(const Operator& op, const at::Tensor& tensor) {
  if (Call::is_answered() || reality.is_real(tensor)) return;
  const bool is_awaited = report_read(op, static_cast<int64_t>(tensor.nbytes()));
  if (is_awaited && op.kind == Kind::kReads && tensor.numel() == 1) change(tensor);
}

// The host gets few values only to look at them.
void note_copy(const Operator& op, Arguments arguments) {
  const at::Tensor& to = arguments[0].toTensor();
  const at::Tensor& from = arguments[1].toTensor();
  if (!to.is_cuda() && from.is_cuda() && from.nbytes() <= settings.small_bytes) check_read(op, from);
}

// Pages of earlier values would be copied with what is in none, again and again, until the host has no memory
// left.
bool moves_nothing(const Operator& op, Call::Way way, Arguments arguments) {
  if (op.kind != Kind::kCopies || way != Call::Way::kMark) return false;
  const at::Tensor& from = arguments[1].toTensor();
  return from.layout() == at::kStrided && operands::device_base_of(from) != 0 &&
         from.nbytes() > settings.small_bytes && reality.is_all_unknown(from);
}

std::unique_ptr<at::ObserverContext> begin_on_host(const Operator& op, Arguments arguments) {
  if (!reality.doubts_host()) return nullptr;
  if (op.kind == Kind::kReads) {
    check_read(op, arguments[0].toTensor());
    return nullptr;
  }
  auto call = std::make_unique<Call>(op, Call::Way::kFollow, arguments);
  call->prepare(at::kCPU);
  return call;
}

Call::Way way_of(const Operator& op, const Operands& operands, Arguments arguments) {
  const bool can_be = op.kind == Kind::kComputes || op.kind == Kind::kCopies;
  if (!can_be || operands.sparse || !op.is_worth_trying() || !may_be_wanted(op, operands))
    return Call::Way::kMark;
  const bool is_idle = settings.wanted == Wanted::kSmall && op.counts == Counts::kNothing &&
                       !may_give_integers(op, operands) && reads_unknown(op, arguments);
  return is_idle || driver.is_capturing() != 0 ? Call::Way::kMark : Call::Way::kCompute;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const Operator* const op = operator_of(function);
  if (op == nullptr || op->kind == Kind::kIgnored) return nullptr;
  const Arguments arguments = function.inputs();
  if (is_called_again(*op) || arguments.size() != op->arguments.size()) return nullptr;
  const Operands operands = operands_of(*op, arguments);
  if (operands.strange) return nullptr;
  if (!operands.on_device) return operands.any ? begin_on_host(*op, arguments) : nullptr;
  if (op->kind == Kind::kReads) {
    check_read(*op, arguments[0].toTensor());
    return nullptr;
  }
  if (op->kind == Kind::kCopies && !operands.sparse) note_copy(*op, arguments);
  const Call::Way way = way_of(*op, operands, arguments);
  if (way == Call::Way::kMark && op->only_makes_results) return std::make_unique<Unknown>(*op);
  auto call = std::make_unique<Call>(*op, way, arguments);
  if (!op->writes_any && !operands.integers_alone) call->note_type_of_results();
  if (moves_nothing(*op, way, arguments)) call->move_nothing();
  call->prepare(operands.device);
  return call;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context != nullptr) static_cast<Beside*>(context)->finish(function.outputs());
}

template <typename Function>
bool find(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  return *out != nullptr;
}

}  // namespace
}  // namespace spillway::values

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

using spillway::values::driver;
using spillway::values::settings;

// Once per process, for all threads and to the end. NULL, or why not.
EXPORTED const char* spillway_values_start(int all, int (*report_read)(const char*, int64_t),
                                           void (*report_failure)(const char*, const char*)) {
  void* libcuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (libcuda == nullptr) return "libcuda.so.1 is not loaded";
  using spillway::values::find;
  if (!find(libcuda, "spwSimPeek", &driver.peek) || !find(libcuda, "spwSimPoke", &driver.poke) ||
      !find(libcuda, "spwSimAnswer", &driver.answer) ||
      !find(libcuda, "spwSimCopyNothing", &driver.copy_nothing) ||
      !find(libcuda, "spwSimIsCapturing", &driver.is_capturing)) {
    return "libcuda.so.1 is no simulated driver of this release";
  }
  settings.wanted = all != 0 ? spillway::values::Wanted::kAll : spillway::values::Wanted::kSmall;
  settings.report_read = report_read;
  settings.report_failure = report_failure;
  static std::once_flag once;
  std::call_once(once, [] {
    at::addGlobalCallback(at::RecordFunctionCallback(spillway::values::begin, spillway::values::end)
                              .needsInputs(true)
                              .needsOutputs(true)
                              .scopes({at::RecordScope::FUNCTION}));
  });
  return nullptr;
}

// Nobody is told any more: the interpreter ends.
EXPORTED void spillway_values_end_reports() {
  settings.report_read = nullptr;
  settings.report_failure = nullptr;
}

// Operators computed, too large to be, and failed to be.
// For collectives.
EXPORTED int spillway_values_is_real(uint64_t ptr, uint64_t bytes) {
  return spillway::values::reality.is_real(ptr, ptr + bytes) ? 1 : 0;
}
EXPORTED void spillway_values_set_real(uint64_t ptr, uint64_t bytes, int real) {
  using spillway::values::Level;
  spillway::values::reality.set(ptr, ptr + bytes, real != 0 ? Level::kReal : Level::kUnknown);
}

EXPORTED void spillway_values_totals(uint64_t* out) {
  const auto& totals = spillway::values::totals;
  out[0] = totals.computed.load();
  out[1] = totals.too_large.load();
  out[2] = totals.failed.load();
}

}  // extern "C"
