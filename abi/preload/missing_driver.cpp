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
// A program asks by different names, since one may be there where another is not. Of a program that asks by
// more, nothing is said: what they would find is not known.
constexpr int kMostNames = 4;
struct Name {
  char text[256] = {};
  std::atomic<bool> is_written{false};
} names[kMostNames];
std::atomic<int> name_count{0};

void say_what_is_missing() {
  // A child of fork has the handler of its parent, which says it for both.
  if (asker.load(std::memory_order_acquire) != getpid()) return;
  if (driver_library() != nullptr || is_disabled()) return;
  // `spillway run --preload` has looked before the program began.
  if (is_driver_known_unusable() || name_count.load() > kMostNames) return;
  char first[sizeof(Name::text) + 800] = "";
  for (const Name& name : names) {
    if (!name.is_written.load(std::memory_order_acquire)) continue;
    // Found: it is open under another name, or was closed again.
    if (real_dlopen()(name.text, RTLD_LAZY | RTLD_LOCAL) != nullptr) return;
    const char* reason = dlerror();
    if (first[0] == '\0') std::snprintf(first, sizeof first, "%s", reason == nullptr ? name.text : reason);
  }
  say("no driver was found (%s)", first);
}

bool is_noted(const char* file) {
  for (const Name& name : names) {
    if (name.is_written.load(std::memory_order_acquire) && std::strcmp(name.text, file) == 0) return true;
  }
  return false;
}

bool names_driver(const char* file) {
  constexpr const char* kDriver = "libcuda.so";
  const char* slash = std::strrchr(file, '/');
  return std::strncmp(slash == nullptr ? file : slash + 1, kDriver, std::strlen(kDriver)) == 0;
}

}  // namespace

void note_opened(const char* file, int flags) {
  if (file == nullptr || (flags & RTLD_NOLOAD) != 0 || !names_driver(file)) return;
  if (is_noted(file) || name_count.load() > kMostNames) return;
  if (const int index = name_count.fetch_add(1); index < kMostNames) {
    std::snprintf(names[index].text, sizeof names[index].text, "%s", file);
    names[index].is_written.store(true, std::memory_order_release);
  }
  pid_t nobody = 0;
  if (asker.compare_exchange_strong(nobody, getpid())) std::atexit(say_what_is_missing);
}

}  // namespace spillway::preload
