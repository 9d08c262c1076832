/* What a program finds by name under the preload library: the mistakes of others, one by one. Each of them is
 * a word on the command line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

typedef CUresult (*First)(const char*, void**, int, cuuint64_t);
typedef CUresult (*Modern)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

static void* driver_library(void) {
  void* library = dlopen(getenv("SPILLWAY_LIBCUDA"), RTLD_NOW);
  CHECK(library != NULL);
  return library;
}

/* Which object an address lies in. */
static int is_in(const void* address, const char* object) {
  Dl_info where;
  CHECK(dladdr(address, &where) != 0);
  return strstr(where.dli_fname, object) != NULL;
}
static int is_hook(const void* address) {
  return is_in(address, "libspillway_preload");
}

/* Names that only begin like the driver's: of cuDNN, cuBLAS, curl, and of this program. */
void* cudnnCreate(void);
void* cudnnCreate(void) {
  return (void*)1;
}
void* curl_easy_init(void);
void* curl_easy_init(void) {
  return (void*)2;
}
void* cuMemFreeish(void);
void* cuMemFreeish(void) {
  return (void*)3;
}
static void prefix(void) {
  CHECK(dlsym(RTLD_DEFAULT, "cudnnCreate") == (void*)cudnnCreate);
  CHECK(dlsym(RTLD_DEFAULT, "curl_easy_init") == (void*)curl_easy_init);
  CHECK(dlsym(RTLD_DEFAULT, "cuMemFreeish") == (void*)cuMemFreeish);
  void* self = dlopen(NULL, RTLD_NOW);
  CHECK(dlsym(self, "cudnnCreate") == (void*)cudnnCreate);
  CHECK(dlsym(driver_library(), "cudnnCreate") == NULL);
}

/* A name in the driver that is no hook stays the driver's; one that nobody has stays unknown. */
static void fabricated(void) {
  void* library = driver_library();
  CHECK(is_in(dlsym(library, "cuInit"), "libcuda"));
  CHECK(dlsym(library, "cuNotThere") == NULL && dlerror() != NULL);
  Modern get = (Modern)dlsym(library, "cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  void* found = (void*)5;
  CHECK(get("cuNotThere", &found, 13000, 0, &status) == CUDA_ERROR_NOT_FOUND && found == NULL);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  /* Older than the function; older than its present signature. */
  found = (void*)5;
  CHECK(get("cuMemAllocAsync", &found, 11010, 0, &status) != CUDA_SUCCESS && found == NULL);
  CHECK(get("", &found, 0, 0, &status) != CUDA_SUCCESS);
  CHECK(get(NULL, &found, 12000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
  CHECK(get("cuMemAlloc", NULL, 12000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
  CHECK(get("cuMemAlloc", &found, 12000, 0, NULL) == CUDA_SUCCESS && is_hook(found));
}

/* Without a driver in the process there is nothing to find. */
static void absent(void) {
  CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
  CHECK(dlsym(dlopen(NULL, RTLD_NOW), "cuMemAlloc_v2") == NULL);
  CHECK(dlsym(RTLD_DEFAULT, "cuMemFree_v2") == NULL);
}

/* What the driver in the process lacks, nobody finds: this one has some of the functions that are hooked, and
 * is found by everybody. */
static void lacking(void) {
  void* library = dlopen(getenv("SPILLWAY_LIBCUDA"), RTLD_NOW | RTLD_GLOBAL);
  CHECK(library != NULL);
  void* const kWays[] = {library, RTLD_DEFAULT, dlopen(NULL, RTLD_NOW)};
  for (int i = 0; i < 3; ++i) {
    CHECK(is_hook(dlsym(kWays[i], "cuMemAlloc_v2")));
    CHECK(dlsym(kWays[i], "cuMemAllocAsync") == NULL && dlerror() != NULL);
    CHECK(dlsym(kWays[i], "cuGetProcAddress_v2") == NULL && dlerror() != NULL);
    CHECK(dlsym(kWays[i], "cuGetProcAddress") == NULL && dlerror() != NULL);
    CHECK(dlsym(kWays[i], "cudaGetDriverEntryPoint") == NULL);
    CHECK(dlsym(kWays[i], "cudaGetDriverEntryPointByVersion") == NULL);
  }
}

/* The flags choose the variant, in one process both. */
static void flags(void) {
  void* library = driver_library();
  Modern modern = (Modern)dlsym(library, "cuGetProcAddress_v2");
  First first = (First)dlsym(library, "cuGetProcAddress");
  CUdriverProcAddressQueryResult status;
  void* legacy = NULL;
  void* per_thread = NULL;
  CHECK(modern("cuMemAllocAsync", &legacy, 11020, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) ==
        CUDA_SUCCESS);
  CHECK(modern("cuMemAllocAsync", &per_thread, 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
               &status) == CUDA_SUCCESS);
  CHECK(is_hook(legacy) && is_hook(per_thread) && legacy != per_thread);
  CHECK(legacy == dlsym(library, "cuMemAllocAsync"));
  CHECK(per_thread == dlsym(library, "cuMemAllocAsync_ptsz"));
  void* again = NULL;
  CHECK(first("cuMemAllocAsync", &again, 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
        CUDA_SUCCESS);
  CHECK(again == per_thread);
  /* A function without a variant is the same for both. */
  CHECK(modern("cuMemAlloc", &again, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status) ==
        CUDA_SUCCESS);
  CHECK(again == dlsym(library, "cuMemAlloc_v2"));
}

/* cuGetProcAddress has two shapes, and is asked for itself. */
static void shapes(void) {
  void* library = driver_library();
  Modern modern = (Modern)dlsym(library, "cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult status;
  void* first = NULL;
  void* second = NULL;
  void* memory = NULL;
  CHECK(modern("cuGetProcAddress", &first, 11030, 0, &status) == CUDA_SUCCESS);
  CHECK(modern("cuGetProcAddress", &second, 12000, 0, &status) == CUDA_SUCCESS);
  CHECK(is_hook(first) && is_hook(second) && first != second);
  CHECK(((First)first)("cuMemAlloc", &memory, 3020, 0) == CUDA_SUCCESS && is_hook(memory));
  CHECK(((Modern)second)("cuMemFree", &memory, 3020, 0, &status) == CUDA_SUCCESS && is_hook(memory));
}

/* The driver exports some functions twice. */
static void old_names(void) {
  const struct {
    const char* name;
    const char* symbol;
    int since;
  } kOld[] = {{"cuStreamDestroy", "cuStreamDestroy_v2", 2000},
              {"cuCtxDestroy", "cuCtxDestroy_v2", 2000},
              {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 7000},
              {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 7000},
              {"cuMemHostRegister", "cuMemHostRegister_v2", 4000}};
  void* library = driver_library();
  Modern modern = (Modern)dlsym(library, "cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult status;
  for (size_t i = 0; i < sizeof kOld / sizeof kOld[0]; ++i) {
    void* found = NULL;
    CHECK(is_hook(dlsym(library, kOld[i].name)));
    CHECK(dlsym(library, kOld[i].name) == dlsym(library, kOld[i].symbol));
    CHECK(modern(kOld[i].name, &found, kOld[i].since, 0, &status) == CUDA_SUCCESS);
    CHECK(found == dlsym(library, kOld[i].name));
  }
}

/* RTLD_NEXT is relative to whoever asks, as often as he asks. */
static void next(void) {
  for (int i = 0; i < 3; ++i) {
    void* found = dlsym(RTLD_NEXT, "gnu_get_libc_version"); /* which nobody else has */
    CHECK(found != NULL && is_in(found, "libc"));
    CHECK(is_hook(dlsym(RTLD_NEXT, "cuMemAlloc_v2")));
    CHECK(dlsym(RTLD_NEXT, "cuNotThere") == NULL);
  }
}

/* A name with a version is the C library's business, and its own look-up stays within reach. */
static void versioned(void) {
  void* library = dlopen("libc.so.6", RTLD_NOW);
  void* found = dlvsym(library, "dlsym", "GLIBC_2.34");
  CHECK(found != NULL && is_in(found, "libc.so"));
  CHECK(is_hook(dlsym(RTLD_DEFAULT, "dlsym")));
  CHECK(!is_hook(dlsym(RTLD_DEFAULT, "dlvsym")));
  CHECK(dlvsym(driver_library(), "cuMemAlloc_v2", "NONE_1.0") == NULL && dlerror() != NULL);
}

/* The library opened where nobody else sees it, and asked for what it has, what others have, and what nobody
 * has: it is not the process's libcuda for itself. */
static void own_handle(void) {
  void* library = dlopen(getenv("TEST_PRELOAD"), RTLD_NOW | RTLD_LOCAL);
  CHECK(library != NULL);
  CHECK(is_hook(dlsym(library, "cuMemAlloc_v2")));
  CHECK(dlsym(library, "cuInit") == NULL && dlsym(library, "cudnnCreate") == NULL);
  void* (*look_up)(void*, const char*) = (void* (*)(void*, const char*))dlsym(library, "dlsym");
  CHECK(is_hook((void*)look_up));
  CHECK(look_up(RTLD_DEFAULT, "cudnnCreate") == (void*)cudnnCreate);
  CHECK(look_up(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
  CHECK(look_up(library, "cuNotThere") == NULL && look_up(library, "cudnnCreate") == NULL);
  CHECK(is_in(look_up(driver_library(), "cuInit"), "libcuda"));
  CHECK(is_hook(look_up(driver_library(), "cuMemAlloc_v2")));
}

/* Before cuInit, as the runtime asks. */
static void before_init(void) {
  Modern get = (Modern)dlsym(driver_library(), "cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult status;
  CUresult (*init)(unsigned) = NULL;
  CUresult (*allocate)(CUdeviceptr*, size_t) = NULL;
  CHECK(get("cuMemAlloc", (void**)&allocate, 12000, 0, &status) == CUDA_SUCCESS && is_hook((void*)allocate));
  CHECK(get("cuInit", (void**)&init, 12000, 0, &status) == CUDA_SUCCESS && is_in((void*)init, "libcuda"));
  CUdeviceptr block = 0;
  CHECK(allocate(&block, 4096) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(init(0) == CUDA_SUCCESS);
  CHECK(allocate(&block, 4096) == CUDA_ERROR_INVALID_CONTEXT);
}

/* A driver of days to come, where a name that is hooked has another signature since 14.0. */
static void newer(void) {
  void* library = driver_library();
  Modern get = (Modern)dlsym(library, "cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult status;
  void* found = NULL;
  CHECK(get("cuMemAlloc", &found, 13000, 0, &status) == CUDA_SUCCESS && is_hook(found));
  CHECK(get("cuMemAlloc", &found, 14000, 0, &status) == CUDA_SUCCESS && is_in(found, "libcuda"));
  CHECK(is_in(dlsym(library, "cuMemAlloc_v3"), "libcuda"));
}

/* A library by the driver's name that finds the driver behind it when it is called. */
static void forwarded(void) {
  CUresult (*allocate)(CUdeviceptr*, size_t) =
      (CUresult(*)(CUdeviceptr*, size_t))dlsym(driver_library(), "cuMemAlloc_v2");
  CUdeviceptr block = 0;
  CHECK(is_hook((void*)allocate));
  CHECK(allocate(&block, 4096) == CUDA_SUCCESS && block == 4096);
}

int main(int count, char** arguments) {
  const struct {
    const char* name;
    void (*run)(void);
  } kCases[] = {{"prefix", prefix},
                {"fabricated", fabricated},
                {"absent", absent},
                {"lacking", lacking},
                {"flags", flags},
                {"shapes", shapes},
                {"next", next},
                {"old-names", old_names},
                {"versioned", versioned},
                {"own-handle", own_handle},
                {"before-init", before_init},
                {"newer", newer},
                {"forwarded", forwarded}};
  CHECK(count == 2);
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    if (strcmp(kCases[i].name, arguments[1]) != 0) continue;
    kCases[i].run();
    return 0;
  }
  return 1;
}
