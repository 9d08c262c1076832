// A program that asks for a driver and finds none runs as it would, and is told so once. Whether dlopen found
// it cannot be seen where it is asked: that call must end in a jump. So what was asked for is noted, and an
// exit handler, which only such a program gets, looks whether there is a driver by then.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/preload/interpose.h"

namespace spillway::preload {
namespace {

std::atomic<pid_t> asker{0};
char asked_for[256];

void say_what_is_missing() {
  // A child of fork has the handler of its parent, which says it for both.
  if (asker.load(std::memory_order_acquire) != getpid()) return;
  if (driver_library() != nullptr || is_disabled()) return;
  // Found: it is open under another name, or was closed again.
  if (real_dlopen()(asked_for, RTLD_LAZY | RTLD_LOCAL) != nullptr) return;
  const char* reason = dlerror();
  say("no driver was found (%s)", reason == nullptr ? asked_for : reason);
}

bool names_driver(const char* file) {
  constexpr const char* kDriver = "libcuda.so";
  const char* slash = std::strrchr(file, '/');
  return std::strncmp(slash == nullptr ? file : slash + 1, kDriver, std::strlen(kDriver)) == 0;
}

}  // namespace

void note_opened(const char* file, int flags) {
  if (file == nullptr || (flags & RTLD_NOLOAD) != 0 || !names_driver(file)) return;
  pid_t nobody = 0;
  if (asker.load(std::memory_order_relaxed) != 0 || !asker.compare_exchange_strong(nobody, getpid())) return;
  std::snprintf(asked_for, sizeof asked_for, "%s", file);
  std::atexit(say_what_is_missing);
}

}  // namespace spillway::preload
