#include <dlfcn.h>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

class ProcAddressTest : public DeviceTest {
 protected:
  static void* get(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT,
                   CUresult expected = CUDA_SUCCESS,
                   CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult got{};
    EXPECT_EQ(cuGetProcAddress(name, &found, version, flags, &got), expected) << name << " " << version;
    EXPECT_EQ(got, status) << name << " " << version;
    EXPECT_EQ(found != nullptr, expected == CUDA_SUCCESS) << name << " " << version;
    return found;
  }
  static void* exported(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    EXPECT_NE(found, nullptr) << name;
    return found;
  }
};

TEST_F(ProcAddressTest, BaseNamesGiveTheNewestFormOfTheVersion) {
  EXPECT_EQ(get("cuMemAlloc", 3020), exported("cuMemAlloc_v2"));
  EXPECT_EQ(get("cuMemAlloc", 12000), exported("cuMemAlloc_v2"));
  EXPECT_EQ(get("cuGetProcAddress", 11030), exported("cuGetProcAddress"));
  EXPECT_EQ(get("cuGetProcAddress", 12000), exported("cuGetProcAddress_v2"));
  EXPECT_EQ(get("cuStreamGetCaptureInfo", 12020), exported("cuStreamGetCaptureInfo_v2"));
  EXPECT_EQ(get("cuStreamGetCaptureInfo", 12030), exported("cuStreamGetCaptureInfo_v3"));
  EXPECT_EQ(get("cuMemCreate", 13000), exported("cuMemCreate"));
}

TEST_F(ProcAddressTest, UnknownAndTooNewNamesAreNotFound) {
  get("cuMemAlloc", 2000, 0, CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  get("cuMemCreate", 10010, 0, CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  get("cuMemAlloc_v2", 13000, 0, CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  get("cuNothing", 13000, 0, CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  get("", 0, 0, CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  get("cuMemAlloc", 13010, 0, CUDA_ERROR_INVALID_VALUE, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST_F(ProcAddressTest, AnOlderDriverLacksWhatIsNewer) {
  start("version:11080");
  get("cuStreamGetId", 11080, 0, CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(get("cuMemMap", 11080), exported("cuMemMap"));
}

TEST_F(ProcAddressTest, FlagsChooseTheDefaultStream) {
  EXPECT_EQ(get("cuMemcpyAsync", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM), exported("cuMemcpyAsync"));
  EXPECT_EQ(get("cuMemcpyAsync", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            exported("cuMemcpyAsync_ptsz"));
  EXPECT_EQ(get("cuMemcpyHtoD", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            exported("cuMemcpyHtoD_v2_ptds"));
  EXPECT_EQ(get("cuMemAlloc", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            exported("cuMemAlloc_v2"));
}

TEST_F(ProcAddressTest, ThePerThreadFormsMeanThePerThreadStream) {
  using GetId = CUresult (*)(CUstream, unsigned long long*);
  const auto get_id =
      reinterpret_cast<GetId>(get("cuStreamGetId", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
  unsigned long long by_form = 0;
  unsigned long long by_handle = 0;
  SIM_OK(get_id(nullptr, &by_form));
  SIM_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &by_handle));
  EXPECT_EQ(by_form, by_handle);
}

TEST_F(ProcAddressTest, OldNamesAreExportedToo) {
  using Destroy = CUresult (*)(CUstream);
  const auto destroy = reinterpret_cast<Destroy>(exported("cuStreamDestroy"));
  EXPECT_EQ(destroy(stream()), CUDA_SUCCESS);
  // A 32-bit entry point is no silent trap.
  using Alloc = CUresult (*)(CUdeviceptr*, size_t);
  CUdeviceptr block = 0;
  EXPECT_EQ(reinterpret_cast<Alloc>(exported("cuMemAlloc"))(&block, 1), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_NE(std::string(spwSimLastError()).find("cuMemAlloc_v2"), std::string::npos);
}

TEST_F(ProcAddressTest, ErrorsHaveNames) {
  const char* text = nullptr;
  SIM_OK(cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
  SIM_OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(555), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

TEST_F(ProcAddressTest, ContextsAreAStackPerThread) {
  CUcontext primary = nullptr;
  CUcontext made = nullptr;
  CUcontext current = nullptr;
  SIM_OK(cuCtxGetCurrent(&primary));
  SIM_OK(cuCtxCreate(&made, nullptr, 0, 0));
  SIM_OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, made);
  SIM_OK(cuCtxPopCurrent(&current));
  EXPECT_EQ(current, made);
  SIM_OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, primary);
  SIM_OK(cuCtxPushCurrent(made));
  SIM_OK(cuCtxDestroy(made));
  SIM_OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, primary);
  EXPECT_EQ(cuCtxSetCurrent(made), CUDA_ERROR_INVALID_CONTEXT);
  unsigned flags = 0;
  int active = 0;
  SIM_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 1);
  SIM_OK(cuDevicePrimaryCtxRelease(0));
  SIM_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
  SIM_OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, nullptr);
}

}  // namespace
}  // namespace spillway::sim_test
