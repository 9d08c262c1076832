// Defines what the program finds instead of the driver's entry points: dlsym, cuGetProcAddress, and the
// hooked names themselves; and dlopen.
#include "abi/preload/interpose.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstring>

#define SPW_EXPORT extern "C" __attribute__((visibility("default")))

using spillway::DriverCalls;
using spillway::preload::calls;

// ---- The hooked names

// Each goes where calls() says. The driver lacks what is null there, so nobody was given it; a program that
// is linked with the name alone learns it from the answer.
#define SPW_HOOK(name, since, symbol, need, parameters, arguments) \
  SPW_EXPORT CUresult symbol parameters {                          \
    const DriverCalls* to = calls();                               \
    if (to == nullptr || to->symbol == nullptr) [[unlikely]]       \
      return CUDA_ERROR_NOT_SUPPORTED;                             \
    return to->symbol arguments;                                   \
  }
#define SPW_HOOK_PTSZ(name, since, symbol, need, parameters, arguments) \
  extern "C" CUresult symbol parameters;                                \
  SPW_HOOK_BODY(name, since, symbol, need, parameters, arguments)
#define SPW_HOOK_BODY(name, since, symbol, need, parameters, arguments) \
  SPW_EXPORT CUresult symbol parameters {                               \
    const DriverCalls* to = calls();                                    \
    if (to == nullptr || to->symbol == nullptr) [[unlikely]]            \
      return CUDA_ERROR_NOT_SUPPORTED;                                  \
    return to->symbol arguments;                                        \
  }
#define SPW_HOOK_OLD(name, since, symbol, parameters) \
  SPW_EXPORT CUresult spw_old_##symbol parameters __asm__(#name) __attribute__((alias(#symbol)));
#include "abi/preload/hooks.inc"

namespace spillway::preload {

namespace {
constexpr bool kRequired = true;
constexpr bool kOptional = false;

// Written out twice: a name that cuda.h renames must become text before it becomes an argument.
const Hook kHooks[] = {
#define SPW_HOOK(name, since, symbol, need, parameters, arguments) \
  {#name, since, false, need, #symbol, reinterpret_cast<void*>(&(symbol)), offsetof(DriverCalls, symbol)},
#define SPW_HOOK_PTSZ(name, since, symbol, need, parameters, arguments) \
  {#name, since, true, need, #symbol, reinterpret_cast<void*>(&(symbol)), offsetof(DriverCalls, symbol)},
#define SPW_HOOK_OLD(name, since, symbol, parameters)                                                    \
  {#name, since, false, false, #name, reinterpret_cast<void*>(&(symbol)), offsetof(DriverCalls, symbol), \
   true},
#include "abi/preload/hooks.inc"
};

using GetFirst = PFN_cuGetProcAddress_v11030;
using GetModern = PFN_cuGetProcAddress_v12000;

// The driver's own, kept once it is found.
struct Resolver {
  const char* symbol;
  std::atomic<void*> address{nullptr};

  template <typename Function>
  Function get() {
    void* found = address.load(std::memory_order_acquire);
    if (found == nullptr) {
      void* library = driver_library();
      if (library != nullptr) found = real_dlsym()(library, symbol);
      address.store(found, std::memory_order_release);
    }
    Function function = nullptr;
    std::memcpy(&function, &found, sizeof found);
    return function;
  }
};
Resolver first_resolver{"cuGetProcAddress"};
Resolver modern_resolver{"cuGetProcAddress_v2"};

// Asks cuGetProcAddress by either of its shapes.
void* ask_driver(const char* name, int version, cuuint64_t flags) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (const auto modern = modern_resolver.get<GetModern>(); modern != nullptr) {
    result = modern(name, &found, version, flags, &status);
  } else if (const auto first = first_resolver.get<GetFirst>(); first != nullptr) {
    result = first(name, &found, version, flags);
  }
  return result == CUDA_SUCCESS ? found : nullptr;
}

CUresult get_first(const char* name, void** out, int version, cuuint64_t flags);
CUresult get_modern(const char* name, void** out, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult* status);

// The hook for what the driver has under this name and version: the newest signature, and per thread where
// that was asked for and exists.
const Hook* find_hook(const char* name, int version, bool per_thread) {
  const Hook* best = nullptr;
  for (const Hook& hook : kHooks) {
    if (std::strcmp(hook.name, name) != 0 || hook.since > version || (hook.per_thread && !per_thread))
      continue;
    if (best == nullptr || hook.since >= best->since) best = &hook;  // per thread comes second in the list
  }
  return best;
}

void* replace_found(const char* name, void* found, int version, cuuint64_t flags) {
  if (std::strcmp(name, "cuGetProcAddress") == 0) {
    constexpr int kModernSince = 12000;
    return version < kModernSince ? reinterpret_cast<void*>(&get_first)
                                  : reinterpret_cast<void*>(&get_modern);
  }
  const Hook* hook = find_hook(name, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
  // A newer signature of the name is not the hook's.
  if (hook == nullptr || ask_driver(name, hook->since, flags) != found) return found;
  return hook->address;
}

CUresult finish(CUresult result, const char* name, void** out, int version, cuuint64_t flags) {
  if (result != CUDA_SUCCESS || out == nullptr || *out == nullptr || name == nullptr || stands_aside()) {
    return result;
  }
  *out = replace_found(name, *out, version, flags);
  return result;
}

CUresult get_first(const char* name, void** out, int version, cuuint64_t flags) {
  const auto real = first_resolver.get<GetFirst>();
  if (real == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return finish(real(name, out, version, flags), name, out, version, flags);
}

CUresult get_modern(const char* name, void** out, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult* status) {
  const auto real = modern_resolver.get<GetModern>();
  if (real == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return finish(real(name, out, version, flags, status), name, out, version, flags);
}

// What is not there is nothing to stand before; in a process without a driver that is every name.
bool driver_has(const char* symbol) {
  void* library = driver_library();
  return library != nullptr && real_dlsym()(library, symbol) != nullptr;
}

__attribute__((noinline)) void* find_in(void* library, const char* symbol) {
  void* found = real_dlsym()(library, symbol);
  if (found == nullptr) return found;
  if (is_in_this_library(found)) return driver_has(symbol) ? found : find_behind(symbol);
  return !stands_aside() && is_in_driver(found) ? replace_exported(symbol, found) : found;
}

}  // namespace

std::span<const Hook> hooks() {
  return kHooks;
}

void* replace_exported(const char* symbol, void* found) {
  if (std::strcmp(symbol, "cuGetProcAddress") == 0) return reinterpret_cast<void*>(&get_first);
  if (std::strcmp(symbol, "cuGetProcAddress_v2") == 0) return reinterpret_cast<void*>(&get_modern);
  for (const Hook& hook : kHooks) {
    if (std::strcmp(hook.symbol, symbol) == 0) return hook.address;
  }
  return found;
}

}  // namespace spillway::preload

// ---- Looking names up

using spillway::preload::real_dlsym;

// Who asks decides what RTLD_NEXT and RTLD_DEFAULT mean, so those questions go on by a jump: the real dlsym
// sees the program's return address. Exported as dlsym, by the versions of the C library's: others that stand
// before it ask for the next one of a version.
SPW_EXPORT void* spw_dlsym(void* library, const char* symbol);
SPW_EXPORT void* spw_dlsym(void* library, const char* symbol) {
  using namespace spillway::preload;
  if (!is_driver_name(symbol) || library == RTLD_NEXT) return real_dlsym()(library, symbol);
  if (library == RTLD_DEFAULT) {
    // Names of this library that the driver lacks are nobody's.
    const bool is_ours = replace_exported(symbol, nullptr) != nullptr;
    if (!is_ours || driver_has(symbol)) return real_dlsym()(library, symbol);
  }
  return find_in(library, symbol);
}

extern "C" __attribute__((visibility("default"), alias("spw_dlsym"))) void* spw_dlsym_first(void*,
                                                                                            const char*);
#if defined(__x86_64__)
__asm__(".symver spw_dlsym_first, dlsym@GLIBC_2.2.5");
#else
__asm__(".symver spw_dlsym_first, dlsym@GLIBC_2.17");
#endif
__asm__(".symver spw_dlsym, dlsym@@GLIBC_2.34");

// The real one sees the program's return address too: it is searched by the caller's RUNPATH and $ORIGIN, in
// the caller's namespace.
SPW_EXPORT void* spw_dlopen(const char* file, int flags);
SPW_EXPORT void* spw_dlopen(const char* file, int flags) {
  spillway::preload::note_opened(file, flags);
  return spillway::preload::real_dlopen()(file, flags);
}

extern "C" __attribute__((visibility("default"), alias("spw_dlopen"))) void* spw_dlopen_first(const char*,
                                                                                              int);
#if defined(__x86_64__)
__asm__(".symver spw_dlopen_first, dlopen@GLIBC_2.2.5");
#else
__asm__(".symver spw_dlopen_first, dlopen@GLIBC_2.17");
#endif
__asm__(".symver spw_dlopen, dlopen@@GLIBC_2.34");

// For libspillway: a look-up that this library takes no part in.
SPW_EXPORT void* spw_preload_dlsym(void* library, const char* symbol);
SPW_EXPORT void* spw_preload_dlsym(void* library, const char* symbol) {
  return real_dlsym()(library, symbol);
}

#undef cuGetProcAddress
SPW_EXPORT CUresult cuGetProcAddress(const char* name, void** out, int version, cuuint64_t flags);
SPW_EXPORT CUresult cuGetProcAddress(const char* name, void** out, int version, cuuint64_t flags) {
  return spillway::preload::get_first(name, out, version, flags);
}
SPW_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** out, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult* status) {
  return spillway::preload::get_modern(name, out, version, flags, status);
}
