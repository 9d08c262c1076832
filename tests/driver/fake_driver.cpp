// A libcuda.so.1 of a few lines, for what the simulated device never is: too old, incomplete, without a
// device, gone. Built several times with different FAKE_ settings (CMakeLists.txt). It takes no cuda.h, since
// it exports the names themselves.
#include <dlfcn.h>

#include <cstddef>
#include <cstring>

#ifndef FAKE_VERSION
#define FAKE_VERSION 12040
#endif
#ifndef FAKE_INIT
#define FAKE_INIT 0
#endif

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kDeinitialized = 4;
constexpr int kNoDevice = 100;
constexpr int kNotFound = 500;

bool gone = false;
int released = 0;
int oldest_memcpy_calls = 0;

}  // namespace

// Tests ask these of the fake itself.
FAKE_EXPORT void fake_go_away() {
  gone = true;
}
FAKE_EXPORT int fake_released() {
  return released;
}

FAKE_EXPORT int cuInit(unsigned) {
  return FAKE_INIT;
}
FAKE_EXPORT int cuDriverGetVersion(int* version) {
  *version = FAKE_VERSION;
  return 0;
}
FAKE_EXPORT int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kNoDevice  ? "CUDA_ERROR_NO_DEVICE"
                                : nullptr;
  return *name != nullptr ? 0 : kInvalidValue;
}
FAKE_EXPORT int cuGetErrorString(int error, const char** text) {
  *text = error == kOutOfMemory ? "out of memory"
          : error == kNoDevice  ? "no CUDA-capable device is detected"
                                : nullptr;
  return *text != nullptr ? 0 : kInvalidValue;
}
FAKE_EXPORT int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
FAKE_EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
FAKE_EXPORT int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "fake", static_cast<size_t>(size));
  return 0;
}
FAKE_EXPORT int cuDeviceGetUuid_v2(char* uuid, int) {
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<char>(i * 16 + i);
  return 0;
}
FAKE_EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{1} << 30;
  return 0;
}
FAKE_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kHostVmm = 145;
  if (attribute == kHostVmm) return kInvalidValue;  // as a driver answers that is older than the attribute
  *value = 1;
  return 0;
}

#ifndef FAKE_WITHOUT_VMM
FAKE_EXPORT int cuMemCreate(unsigned long long* handle, size_t, const void*, unsigned long long) {
  *handle = 7;
  return gone ? kDeinitialized : 0;
}
FAKE_EXPORT int cuMemRelease(unsigned long long) {
  ++released;
  return gone ? kDeinitialized : 0;
}
#endif

#ifdef FAKE_PROC_ADDRESS
namespace {

int newest_memcpy_async() {
  return kOutOfMemory;
}

}  // namespace

// The exported name is an older signature here, as cuMemAlloc's is in NVIDIA's library: it must not be the
// one used.
FAKE_EXPORT int cuMemcpyAsync() {
  ++oldest_memcpy_calls;
  return kInvalidValue;
}
FAKE_EXPORT int fake_oldest_memcpy_calls() {
  return oldest_memcpy_calls;
}

// Knows one function, in the version that brought it; everything else must be found by its exported name.
FAKE_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long,
                                    int* found) {
  constexpr int kMemcpyAsyncSince = 4000;
  const bool known = std::strcmp(name, "cuMemcpyAsync") == 0 && version == kMemcpyAsyncSince;
  *function = known ? reinterpret_cast<void*>(newest_memcpy_async) : nullptr;
  if (found != nullptr) *found = known ? 0 : 1;
  return known ? 0 : kNotFound;
}
#endif
