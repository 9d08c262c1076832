// The table of what a program calls instead of its driver.
#include "abi/preload/hooks.h"

#include <cstdio>
#include <cstring>

#include "abi/preload/ipc_requests.h"

namespace spillway {

const DriverCalls* real_calls = nullptr;

namespace {

Status check(const DriverCalls& real) {
  Result<std::shared_ptr<const Driver>> driver = Process::instance().driver();
  if (!driver.ok()) return driver.take_status();
  const auto program = reinterpret_cast<void*>(real.cuMemAlloc_v2);
  if (driver.value()->find("cuMemAlloc_v2") == program) return {};
  return Status::unsupported(
      driver.value()->path() +
      ": the program uses another driver library than this one, which SPILLWAY_LIBCUDA or "
      "the dynamic loader names");
}

}  // namespace
}  // namespace spillway

extern "C" const void* spw_preload_hooks(const void* real, size_t size, char* why, size_t why_size) {
  using namespace spillway;
  static DriverCalls calls;
  try {
    if (size != sizeof calls) {
      std::snprintf(why, why_size, "libspillway and libspillway_preload are of different versions");
      return nullptr;
    }
    real_calls = static_cast<const DriverCalls*>(real);
    if (Status status = check(*real_calls); !status.ok()) {
      std::snprintf(why, why_size, "%s", status.text().c_str());
      return nullptr;
    }
    IpcRequests::instance().set_policy(Process::instance().config().preload_ipc);
    calls = *real_calls;
    fill_served_hooks(calls);
    fill_answer_hooks(calls);
    fill_lifetime_hooks(calls);
    fill_accounted_hooks(calls);
    return &calls;
  } catch (...) {
    std::snprintf(why, why_size, "the host has no memory left");
    return nullptr;
  }
}
