// Finds which library is the program's driver, and the next dlsym and dlopen.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "abi/preload/interpose.h"

namespace spillway::preload {
namespace {

std::atomic<LookUp> next_dlsym{nullptr};
std::atomic<Open> next_dlopen{nullptr};
std::atomic<void*> library{nullptr};
std::atomic<const void*> library_base{nullptr};

const char* file_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

const char* configured_driver() {
  const char* named = std::getenv("SPILLWAY_LIBCUDA");
  return named != nullptr && *named != '\0' ? named : "libcuda.so.1";
}

bool is_driver_file(const char* path) {
  constexpr const char* kDriver = "libcuda.so";
  const char* name = file_name(path);
  return std::strncmp(name, kDriver, std::strlen(kDriver)) == 0 ||
         std::strcmp(name, file_name(configured_driver())) == 0;
}

void* remember(void* handle) {
  void* expected = nullptr;
  return library.compare_exchange_strong(expected, handle) ? handle : expected;
}

template <typename Function>
Function keep(void* found, std::atomic<Function>& where) {
  Function function = nullptr;
  std::memcpy(&function, &found, sizeof found);
  where.store(function, std::memory_order_release);
  return function;
}

// Looks dlsym up by its versions on x86-64 and AArch64; a library without versions answers to any.
__attribute__((noinline)) LookUp find_next_dlsym() {
  constexpr const char* kVersions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
  void* found = nullptr;
  for (const char* version : kVersions) {
    if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", version);
  }
  return keep(found, next_dlsym);
}

// Another's that stands behind this library's too, which has no version as a rule.
__attribute__((noinline)) Open find_next_dlopen() {
  return keep(find_behind("dlopen"), next_dlopen);
}

}  // namespace

LookUp real_dlsym() {
  const LookUp known = next_dlsym.load(std::memory_order_acquire);
  return known != nullptr ? known : find_next_dlsym();
}

Open real_dlopen() {
  const Open known = next_dlopen.load(std::memory_order_acquire);
  return known != nullptr ? known : find_next_dlopen();
}

__attribute__((noinline)) void* find_behind(const char* symbol) {
  void* volatile found = real_dlsym()(RTLD_NEXT, symbol);
  return found;
}

bool is_driver_name(const char* symbol) {
  return symbol != nullptr && symbol[0] == 'c' && symbol[1] == 'u' && symbol[2] >= 'A' && symbol[2] <= 'Z';
}

bool is_in_driver(const void* address) {
  Dl_info where{};
  if (dladdr(address, &where) == 0 || where.dli_fname == nullptr) return false;
  if (where.dli_fbase == library_base.load(std::memory_order_acquire)) return true;
  if (!is_driver_file(where.dli_fname)) return false;
  void* handle = real_dlopen()(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr || remember(handle) != handle) return false;
  library_base.store(where.dli_fbase, std::memory_order_release);
  return true;
}

bool is_in_this_library(const void* address) {
  Dl_info own{};
  Dl_info where{};
  return dladdr(reinterpret_cast<const void*>(&is_in_driver), &own) != 0 && dladdr(address, &where) != 0 &&
         own.dli_fbase == where.dli_fbase;
}

void* driver_library() {
  if (void* known = library.load(std::memory_order_acquire); known != nullptr) return known;
  void* handle = real_dlopen()(configured_driver(), RTLD_LAZY | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : remember(handle);
}

}  // namespace spillway::preload
