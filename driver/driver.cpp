#include "driver/driver.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>

namespace spillway {
namespace {

constexpr const char* kDefaultLibrary = "libcuda.so.1";

// Where Spillway's preload library stands before dlsym for the program, this is how the real one is reached.
constexpr const char* kRealLookUp = "spw_preload_dlsym";

void* look_up(void* library, const char* symbol) {
  using LookUp = void* (*)(void*, const char*);
  static const auto kReal = reinterpret_cast<LookUp>(dlsym(RTLD_DEFAULT, kRealLookUp));
  return kReal != nullptr ? kReal(library, symbol) : dlsym(library, symbol);
}

enum class Need { kRequired, kVmm, kOptional };

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// cuGetProcAddress in whichever of its two shapes the library has; neither is an error, since a symbol can
// also be found by its exported name.
class Resolver {
 public:
  explicit Resolver(void* library)
      : library_(library),
        modern_(reinterpret_cast<PFN_cuGetProcAddress_v12000>(look_up(library, "cuGetProcAddress_v2"))),
        first_(reinterpret_cast<PFN_cuGetProcAddress_v11030>(look_up(library, "cuGetProcAddress"))) {}

  void* find(const char* name, int version, const char* symbol) const {
    void* function = nullptr;
    constexpr cuuint64_t kFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    if (modern_ != nullptr) {
      CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
      if (modern_(name, &function, version, kFlags, &found) != CUDA_SUCCESS) function = nullptr;
    } else if (first_ != nullptr) {
      if (first_(name, &function, version, kFlags) != CUDA_SUCCESS) function = nullptr;
    }
    return function != nullptr ? function : look_up(library_, symbol);
  }

 private:
  void* library_;
  PFN_cuGetProcAddress_v12000 modern_;
  PFN_cuGetProcAddress_v11030 first_;
};

}  // namespace

Result<std::shared_ptr<const Driver>> Driver::open(const std::string& path) {
  std::string file = path;
  if (file.empty()) {
    const char* chosen = std::getenv("SPILLWAY_LIBCUDA");
    file = chosen != nullptr && *chosen != '\0' ? chosen : kDefaultLibrary;
  }
  std::shared_ptr<Driver> driver(new Driver());
  if (Status status = driver->load(file); !status.ok()) return status;
  return std::shared_ptr<const Driver>(std::move(driver));
}

Status Driver::load(const std::string& path) {
  path_ = path;
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* reason = dlerror();
    return Status::unsupported(fmt::format(
        "{}: the CUDA driver could not be opened ({}); install an NVIDIA driver for CUDA {} or newer, "
        "or name its library in SPILLWAY_LIBCUDA",
        path, reason != nullptr ? reason : "no reason given", version_text(kMinVersion)));
  }
  auto init = reinterpret_cast<PFN_cuInit_v2000>(look_up(library_, "cuInit"));
  auto get_version = reinterpret_cast<PFN_cuDriverGetVersion_v2020>(look_up(library_, "cuDriverGetVersion"));
  if (init == nullptr || get_version == nullptr) {
    return Status::unsupported(fmt::format("{}: this is no CUDA driver: it has no function {}", path,
                                           init == nullptr ? "cuInit" : "cuDriverGetVersion"));
  }
  // The version is asked for first: it needs no cuInit, and "too old" explains more than a missing function
  // does.
  if (get_version(&version_) != CUDA_SUCCESS) {
    return Status::unsupported(fmt::format("{}: cuDriverGetVersion failed", path));
  }
  if (version_ < kMinVersion) {
    return Status::unsupported(fmt::format("{}: the driver serves CUDA {}; {} or newer is needed", path,
                                           version_text(version_), version_text(kMinVersion)));
  }
  if (Status status = resolve(); !status.ok()) return status;
  return check(init(0), "cuInit");
}

Status Driver::resolve() {
  const Resolver resolver(library_);
  std::string missing;
  const auto note = [&](const char* name, Need need) {
    if (need == Need::kVmm) has_vmm_ = false;
    if (need == Need::kRequired) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
#define SPW_DRIVER_FUNCTION(name, since, need, symbol)                                  \
  name = reinterpret_cast<PFN_##name##_v##since>(resolver.find(#name, since, #symbol)); \
  if (name == nullptr) note(#name, Need::need);
#include "driver/functions.inc"
#undef SPW_DRIVER_FUNCTION
  if (missing.empty()) return {};
  return Status::unsupported(fmt::format("{}: the driver lacks {}; one for CUDA {} or newer is needed", path_,
                                         missing, version_text(kMinVersion)));
}

Status Driver::error(CUresult result, const char* call) const noexcept try {
  const char* name = nullptr;
  const char* meaning = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  if (cuGetErrorString(result, &meaning) != CUDA_SUCCESS) meaning = nullptr;
  std::string text = name != nullptr ? fmt::format("{}: {}", call, name)
                                     : fmt::format("{}: unknown error {}", call, static_cast<int>(result));
  if (meaning != nullptr) text += fmt::format(" ({})", meaning);
  return result == CUDA_ERROR_OUT_OF_MEMORY ? Status::out_of_memory(std::move(text))
                                            : Status::driver(std::move(text));
} catch (const std::exception&) {
  return Status::without_text(result == CUDA_ERROR_OUT_OF_MEMORY ? SPW_ERROR_OUT_OF_MEMORY
                                                                 : SPW_ERROR_DRIVER);
}

void* Driver::find(const char* symbol) const {
  return look_up(library_, symbol);
}

}  // namespace spillway
