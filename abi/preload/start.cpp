// The first hooked call: finds the driver's functions, loads libspillway, and decides once whether it serves.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/preload/interpose.h"

namespace spillway::preload {
namespace {

constexpr const char* kLibrary = "libspillway.so.0";

std::atomic<const DriverCalls*> active{nullptr};
std::atomic<bool> aside{false};
DriverCalls real;
std::atomic<bool> real_is_known{false};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
// Tells whether this thread is in start(): what the driver calls of its own then goes to itself.
thread_local bool starting __attribute__((tls_model("initial-exec"))) = false;

bool has_value(const char* variable, const char* value) {
  const char* found = std::getenv(variable);
  return found != nullptr && std::strcmp(found, value) == 0;
}

bool find_real_calls() {
  if (real_is_known.load(std::memory_order_acquire)) return true;
  void* library = driver_library();
  if (library == nullptr) return false;
  DriverCalls found;
  for (const Hook& hook : hooks()) {
    if (hook.is_old) continue;
    void* address = real_dlsym()(library, hook.symbol);
    std::memcpy(reinterpret_cast<char*>(&found) + hook.offset, &address, sizeof address);
  }
  real = found;
  real_is_known.store(true, std::memory_order_release);
  return true;
}

// The first name that the driver must have and has not; or null.
const char* missing_call() {
  for (const Hook& hook : hooks()) {
    void* address = nullptr;
    std::memcpy(&address, reinterpret_cast<const char*>(&real) + hook.offset, sizeof address);
    if (hook.required && address == nullptr) return hook.symbol;
  }
  return nullptr;
}

bool is_too_old() {
  void* found = real_dlsym()(driver_library(), "cuDriverGetVersion");
  PFN_cuDriverGetVersion_v2020 get_version = nullptr;
  std::memcpy(&get_version, &found, sizeof found);
  int version = 0;
  return get_version != nullptr && get_version(&version) == CUDA_SUCCESS && version < 12000;
}

// The one that is in the process already, as PyTorch's; else $SPILLWAY_LIBRARY; else the one beside this
// library.
void* load_library() {
  if (void* loaded = real_dlopen()(kLibrary, RTLD_NOW | RTLD_NOLOAD); loaded != nullptr) return loaded;
  const char* named = std::getenv("SPILLWAY_LIBRARY");
  if (named != nullptr && *named != '\0') return real_dlopen()(named, RTLD_NOW | RTLD_LOCAL);
  Dl_info own{};
  char path[4096];
  if (dladdr(reinterpret_cast<const void*>(&calls), &own) == 0 || own.dli_fname == nullptr) return nullptr;
  const char* slash = std::strrchr(own.dli_fname, '/');
  const int folder = slash == nullptr ? 0 : static_cast<int>(slash - own.dli_fname) + 1;
  std::snprintf(path, sizeof path, "%.*s%s", folder, own.dli_fname, kLibrary);
  return real_dlopen()(path, RTLD_NOW | RTLD_LOCAL);
}

const DriverCalls* stand_aside() {
  aside.store(true, std::memory_order_release);
  active.store(&real, std::memory_order_release);
  return &real;
}

// A child has its parent's memory and none of its device.
void leave_child() {
  mutex = PTHREAD_MUTEX_INITIALIZER;
  starting = false;
  stand_aside();
}

const DriverCalls* start() {
  if (is_disabled()) return stand_aside();
  if (const char* missing = missing_call(); missing != nullptr) {
    if (!is_driver_known_unusable()) say("the driver lacks %s", missing);
    return stand_aside();
  }
  void* library = load_library();
  if (library == nullptr) {
    const char* reason = dlerror();
    say("%s cannot be loaded (%s)", kLibrary, reason == nullptr ? "no reason given" : reason);
    return stand_aside();
  }
  using Hooks = decltype(&spw_preload_hooks);
  void* found = real_dlsym()(library, "spw_preload_hooks");
  if (found == nullptr) {
    say("the %s in this process is of another version", kLibrary);
    return stand_aside();
  }
  Hooks hooks = nullptr;
  std::memcpy(&hooks, &found, sizeof found);
  char why[768] = "";
  const void* answer = hooks(&real, sizeof real, why, sizeof why);
  if (answer == nullptr) {
    if (!is_driver_known_unusable() || !is_too_old()) say("%s", why);
    return stand_aside();
  }
  pthread_atfork(nullptr, nullptr, leave_child);
  active.store(static_cast<const DriverCalls*>(answer), std::memory_order_release);
  return static_cast<const DriverCalls*>(answer);
}

// Before cuInit there is nothing to serve, and its error is the driver's to give.
bool is_initialised() {
  using GetCount = PFN_cuDeviceGetCount_v2000;
  void* found = real_dlsym()(driver_library(), "cuDeviceGetCount");
  GetCount get_count = nullptr;
  std::memcpy(&get_count, &found, sizeof found);
  int count = 0;
  return get_count == nullptr || get_count(&count) == CUDA_SUCCESS;
}

__attribute__((noinline, cold)) const DriverCalls* first_call() {
  if (starting) return &real;
  pthread_mutex_lock(&mutex);
  const DriverCalls* now = active.load(std::memory_order_acquire);
  if (now == nullptr && find_real_calls()) {
    if (is_initialised()) {
      starting = true;
      now = start();
      starting = false;
    } else {
      now = &real;
    }
  }
  pthread_mutex_unlock(&mutex);
  return now;
}

}  // namespace

const DriverCalls* calls() {
  const DriverCalls* now = active.load(std::memory_order_acquire);
  return now != nullptr ? now : first_call();
}

bool is_driver_known_unusable() {
  return has_value("SPILLWAY_DRIVER", "unusable");
}

bool is_disabled() {
  return has_value("SPILLWAY_DISABLE", "1");
}

void say(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  dprintf(STDERR_FILENO, "spillway: preload: %s; the program runs without Spillway\n", line);
}

bool stands_aside() {
  return aside.load(std::memory_order_acquire);
}

}  // namespace spillway::preload
