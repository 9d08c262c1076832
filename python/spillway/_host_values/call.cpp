#include "call.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <exception>

#include "footprint.h"

namespace spillway::values {

Settings settings;
Reality reality;
Totals totals;
thread_local int Call::answered_ = 0;

namespace {

c10::DispatchKeySet all_but_kernels() {
  using Key = c10::DispatchKey;
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset | c10::python_ks |
         c10::DispatchKeySet({Key::ADInplaceOrView, Key::Functionalize, Key::PythonTLSSnapshot,
                              Key::PreDispatch, Key::PythonDispatcher, Key::FuncTorchDynamicLayerFrontMode,
                              Key::FuncTorchDynamicLayerBackMode, Key::FuncTorchVmapMode, Key::VmapMode,
                              Key::FuncTorchBatched, Key::FuncTorchGradWrapper});
}

}  // namespace

bool report_read(const Operator& op, int64_t bytes) {
  const auto report = settings.report_read.load();
  return report != nullptr && report(op.handle.schema().name().c_str(), bytes) != 0;
}

void report_failure(const Operator& op, const char* why) {
  if (const auto report = settings.report_failure.load()) report(op.handle.schema().name().c_str(), why);
}

Unobserved::Unobserved() : exclude_(all_but_kernels()) {}

Call::Call(const Operator& op, Way way, Arguments arguments)
    : op_(op), way_(way), exceptions_(std::uncaught_exceptions()) {
  if (way != Way::kMark || op.writes_any || op.kind == Kind::kTalks)
    arguments_.assign(arguments.begin(), arguments.end());
}

Call::~Call() {
  if (is_counted_ && --answered_ == 0) driver.answer(0, 0);
  if (moves_nothing_) driver.copy_nothing(0);
}

void Call::move_nothing() {
  moves_nothing_ = true;
  driver.copy_nothing(1);
}

void Call::fail(const char* why) const {
  totals.failed.fetch_add(1, std::memory_order_relaxed);
  op_.failures.fetch_add(1, std::memory_order_relaxed);
  report_failure(op_, why);
}

}  // namespace spillway::values
