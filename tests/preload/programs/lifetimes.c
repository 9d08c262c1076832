/* usage: lifetimes CASE: contexts that end, memory that must be plain. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "include/spillway/offload.h"
#include "include/spillway/spillway.h"

static void use_memory(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    CUdeviceptr pointer = 0;
    CHECK(cuMemAlloc(&pointer, ((size_t)i + 1) << 16) == CUDA_SUCCESS);
    CHECK(cuMemsetD8(pointer, 1, ((size_t)i + 1) << 16) == CUDA_SUCCESS);
    CHECK(cuMemFree(pointer) == CUDA_SUCCESS);
  }
}

static size_t free_bytes(void) {
  size_t free_now = 0;
  size_t total = 0;
  CHECK(cuMemGetInfo(&free_now, &total) == CUDA_SUCCESS);
  return free_now;
}

static void retain(void) {
  CUcontext context = NULL;
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

/* The driver refuses to destroy a primary context: nothing has happened then. */
static void refused_end(void) {
  CUcontext primary = NULL;
  CUdeviceptr kept = 0;
  unsigned char byte = 0;
  retain();
  CHECK(cuCtxGetCurrent(&primary) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&kept, 1 << 20) == CUDA_SUCCESS && cuMemsetD8(kept, 7, 1 << 20) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy(primary) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemcpyDtoH(&byte, kept, 1) == CUDA_SUCCESS && byte == 7);
  CHECK(cuMemFree(kept) == CUDA_SUCCESS);
  use_memory(3);
}

/* What was freed behind a stream that is done is free, whoever asks first. */
static void freed_on_another_stream(void) {
  retain();
  CUstream stream = NULL;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const size_t before = free_bytes();
  for (size_t mebibytes = 32; mebibytes <= 512; mebibytes *= 4) {
    CUdeviceptr pointer = 0;
    CHECK(cuMemAllocAsync(&pointer, mebibytes << 20, stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD8Async(pointer, 1, mebibytes << 20, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(pointer, NULL) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(free_bytes() == before);
  }
  CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

/* Memory goes with its context, and the next one has all of it. */
static void reset(void) {
  for (int i = 0; i < 3; ++i) {
    CUdeviceptr forgotten = 0;
    retain();
    const size_t before = free_bytes();
    CHECK(cuMemAlloc(&forgotten, (size_t)64 << 20) == CUDA_SUCCESS);
    use_memory(20);
    CHECK(before - free_bytes() >= (size_t)64 << 20);
    CHECK((i == 0 ? cuDevicePrimaryCtxRelease(0) : cuDevicePrimaryCtxReset(0)) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
  }
  retain();
  use_memory(3);
}

static uint64_t give_nothing(int device, uint64_t bytes, void* context) {
  (void)device, (void)bytes, (void)context;
  return 0;
}

/* Something of Spillway's own depends on the memory of a context that ends. */
static void depended_on(void) {
  spw_status (*add)(int, spw_oom_callback, void*) = NULL;
  retain();
  use_memory(20);
  *(void**)&add = dlsym(dlopen("libspillway.so.0", RTLD_NOW | RTLD_NOLOAD), "spw_add_oom_callback");
  CHECK(add != NULL && add(0, give_nothing, NULL) == SPW_OK);
  for (int i = 0; i < 2; ++i) {
    CHECK(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    retain();
    use_memory(3);
  }
}

static void* spillway_function(const char* name) {
  void* found = dlsym(dlopen("libspillway.so.0", RTLD_NOW | RTLD_NOLOAD), name);
  CHECK(found != NULL);
  return found;
}

/* A region of a context that ends is left alone, though the next context may have the handle of that one. */
static void watched(void) {
  enum { kMost = 6000 };
  spw_status (*begin)(int, const char*) = NULL;
  spw_status (*end)(int, const char*) = NULL;
  spw_status (*prefer)(int, const char*, int) = NULL;
  spw_status (*restore)(int, const char*) = NULL;
  spw_status (*get)(int, const char*, spw_region_stats*) = NULL;
  spw_status (*allocate)(size_t, int, spw_stream, void**) = NULL;
  spw_region_stats stats;
  void* block = NULL;
  retain();
  use_memory(3);
  *(void**)&begin = spillway_function("spw_region_begin");
  *(void**)&end = spillway_function("spw_region_end");
  *(void**)&prefer = spillway_function("spw_region_set_priority");
  *(void**)&restore = spillway_function("spw_region_restore");
  *(void**)&get = spillway_function("spw_region_stats_get");
  *(void**)&allocate = spillway_function("spw_alloc");
  CHECK(begin(0, "cold") == SPW_OK && allocate(8 << 20, 0, NULL, &block) == SPW_OK &&
        end(0, "cold") == SPW_OK);
  CHECK(prefer(0, "cold", 1) == SPW_OK);
  memset(&stats, 0, sizeof stats);
  stats.size = sizeof stats;
  for (int i = 0; i < kMost && stats.host_bytes == 0; ++i) {
    usleep(5000);
    CHECK(get(0, "cold", &stats) == SPW_OK);
  }
  CHECK(stats.host_bytes >= 8 << 20);
  CHECK(restore(0, "cold") == SPW_OK);
  CHECK(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  retain();
  for (int i = 0; i < 100; ++i) {
    usleep(5000);
    CHECK(get(0, "cold", &stats) == SPW_OK && stats.host_bytes == 0);
  }
}

static void created(void) {
  for (int i = 0; i < 3; ++i) {
    CUcontext context = NULL;
    CUdeviceptr forgotten = 0;
    CHECK(cuCtxCreate(&context, NULL, 0, 0) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&forgotten, 5 << 20) == CUDA_SUCCESS);
    use_memory(20);
    CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
  }
}

/* A dump is asked for just before each end, so that it meets the end. */
static void churned(void) {
  for (int i = 0; i < 50; ++i) {
    CUcontext context = NULL;
    CHECK(cuCtxCreate(&context, NULL, 0, 0) == CUDA_SUCCESS);
    use_memory(3);
    CHECK(raise(SIGUSR2) == 0);
    CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
  }
}

/* They are named by the file's own table of symbols: static functions are not exported. */
static __attribute__((noinline)) CUdeviceptr held_without_a_stream(void) {
  CUdeviceptr block = 0;
  CHECK(cuMemAlloc(&block, 5 << 20) == CUDA_SUCCESS);
  return block;
}
static __attribute__((noinline)) CUdeviceptr held_on_a_stream(void) {
  CUdeviceptr block = 0;
  CHECK(cuMemAllocAsync(&block, 3 << 20, NULL) == CUDA_SUCCESS);
  return block;
}

/* Holds blocks when memory runs out, and when it ends. */
static void held(void) {
  CUdeviceptr blocks[2] = {0, 0};
  CUdeviceptr refused = 0;
  retain();
  blocks[0] = held_without_a_stream();
  blocks[1] = held_on_a_stream();
  CHECK(cuMemAlloc(&refused, (size_t)1 << 40) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(blocks[0] != blocks[1]);
}

/* Two contexts of one device: the second is the driver's. */
static void second(void) {
  CUcontext other = NULL;
  CUdeviceptr forgotten = 0;
  retain();
  use_memory(3);
  CHECK(cuCtxCreate(&other, NULL, 0, 0) == CUDA_SUCCESS);
  use_memory(3);
  CHECK(cuMemAlloc(&forgotten, 3 << 20) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy(other) == CUDA_SUCCESS);
  CHECK(cuCtxCreate(&other, NULL, 0, 0) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&forgotten, 5 << 20) == CUDA_SUCCESS);
  CHECK(cuCtxPopCurrent(&other) == CUDA_SUCCESS);
  use_memory(3);
}

/* The primary context is the second here, and what was forgotten in it goes with it. */
static void second_is_primary(void) {
  CUcontext first = NULL;
  CUdeviceptr forgotten = 0;
  CHECK(cuCtxCreate(&first, NULL, 0, 0) == CUDA_SUCCESS);
  use_memory(3);
  for (int i = 0; i < 2; ++i) {
    retain();
    CHECK(cuMemAlloc(&forgotten, 7 << 20) == CUDA_SUCCESS);
    CHECK((i == 0 ? cuDevicePrimaryCtxRelease(0) : cuDevicePrimaryCtxReset(0)) == CUDA_SUCCESS);
  }
  CHECK(cuCtxSetCurrent(first) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&forgotten, 1 << 20) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy(NULL) != CUDA_SUCCESS);
}

/* A function of the driver's that goes by no hook, as those in its private tables do. */
static void* unseen(const char* name) {
  void* (*look_up)(void*, const char*) = NULL;
  void* driver = dlopen(getenv("SPILLWAY_LIBCUDA"), RTLD_NOW);
  *(void**)&look_up = dlsym(RTLD_DEFAULT, "spw_preload_dlsym");
  CHECK(driver != NULL && look_up != NULL);
  void* found = look_up(driver, name);
  CHECK(found != NULL);
  return found;
}

typedef struct ContextTable {
  size_t size;
  CUresult (*create)(CUcontext*, unsigned, CUdevice);
} ContextTable;

static const ContextTable* context_table(void) {
  const CUuuid id = {"\x0c\xa5\x0b\x8c\x10\x04\x92\x9a\x89\xa7\xd0\xdf\x10\xe7\x72\x86"};
  const void* table = NULL;
  CHECK(cuGetExportTable(&table, &id) == CUDA_SUCCESS);
  return table;
}

static void use_default_stream(CUdevice expected) {
  CUdeviceptr pointer = 0;
  CUdevice device = -1;
  CHECK(cuMemAllocAsync(&pointer, 1 << 20, NULL) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) == CUDA_SUCCESS);
  CHECK(device == expected);
  CHECK(cuMemsetD8Async(pointer, 1, 1 << 20, NULL) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(pointer, NULL) == CUDA_SUCCESS);
}

/* Default streams are those of the context that is current, whoever made it so. */
static void switched(void) {
  CUcontext contexts[2];
  CUcontext made = NULL;
  CUdeviceptr none = 0;
  CUresult (*set_current)(CUcontext) = NULL;
  *(void**)&set_current = unseen("cuCtxSetCurrent");
  CHECK(cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRetain(&contexts[1], 1) == CUDA_SUCCESS);
  for (int i = 0; i < 40; ++i) {
    CHECK(set_current(contexts[i % 2]) == CUDA_SUCCESS);
    use_default_stream(i % 2);
  }
  CHECK(context_table()->create(&made, 0, 2) == CUDA_SUCCESS);
  use_default_stream(2);
  CHECK(cuCtxPopCurrent(NULL) == CUDA_SUCCESS);
  use_default_stream(1);
  CHECK(set_current(NULL) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&none, 1 << 20, NULL) == CUDA_ERROR_INVALID_CONTEXT);
}

/* A stream is destroyed by a call that nobody sees, and the next one to have its handle is another device's.
 */
static void recycled(void) {
  CUcontext contexts[2];
  CUstream streams[2];
  CUdeviceptr block = 0;
  CUdevice device = -1;
  CUresult (*destroy)(CUstream) = NULL;
  *(void**)&destroy = unseen("cuStreamDestroy_v2");
  for (int i = 0; i < 2; ++i) CHECK(cuDevicePrimaryCtxRetain(&contexts[i], i) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    CHECK(cuCtxSetCurrent(contexts[i]) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(streams[i] == streams[0]);
    CHECK(cuMemAllocAsync(&block, 1 << 20, streams[i]) == CUDA_SUCCESS);
    CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block) == CUDA_SUCCESS);
    CHECK(device == i);
    CHECK(cuMemFreeAsync(block, streams[i]) == CUDA_SUCCESS);
    if (i == 0) CHECK(destroy(streams[i]) == CUDA_SUCCESS);
  }
}

/* A runtime retains the context by a table; the program's own last release leaves it its memory. */
static void shared_context(void) {
  CUcontext context = NULL;
  CUdeviceptr kept = 0;
  unsigned char byte = 0;
  CUresult (*unseen_retain)(CUcontext*, CUdevice) = NULL;
  *(void**)&unseen_retain = unseen("cuDevicePrimaryCtxRetain");
  CHECK(context_table() != NULL && unseen_retain(&context, 0) == CUDA_SUCCESS);
  retain();
  CHECK(cuMemAlloc(&kept, 1 << 20) == CUDA_SUCCESS);
  CHECK(cuMemsetD8(kept, 7, 1 << 20) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH(&byte, kept, 1) == CUDA_SUCCESS && byte == 7);
  use_memory(3);
  CHECK(cuMemFree(kept) == CUDA_SUCCESS);
}

/* The first handle is refused; memory asked for again at that place has one. */
static void ipc(void) {
  CUipcMemHandle handle;
  retain();
  for (int i = 0; i < 2; ++i) {
    CUdeviceptr pointer = 0;
    CUdeviceptr different = 0;
    CHECK(cuMemAlloc(&pointer, 4 << 20) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&different, 3 << 20) == CUDA_SUCCESS);
    printf("%s\n", cuIpcGetMemHandle(&handle, pointer) == CUDA_SUCCESS ? "shown" : "refused");
    CHECK(cuMemFree(pointer) == CUDA_SUCCESS && cuMemFree(different) == CUDA_SUCCESS);
  }
}

/* A dma-buf is of whole pages of the host. One of them that is refused is learned as well. */
static void ranged(void) {
  enum { kBytes = 68 * 1024 };
  CUdeviceptr aligned = 0;
  int file = -1;
  retain();
  CHECK(cuMemAlloc(&aligned, 4 << 20) == CUDA_SUCCESS);
  CHECK(cuMemGetHandleForAddressRange(&file, aligned, 4 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) ==
        CUDA_SUCCESS);
  CHECK(close(file) == 0);
  for (int round = 0; round < 2; ++round) {
    CUdeviceptr blocks[8];
    int shown = 0;
    for (int i = 0; i < 8; ++i) {
      CHECK(cuMemAlloc(&blocks[i], kBytes + 512) == CUDA_SUCCESS);
      if (cuMemGetHandleForAddressRange(&file, blocks[i], kBytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) !=
          CUDA_SUCCESS) {
        continue;
      }
      ++shown;
      CHECK(close(file) == 0);
    }
    printf("%s\n", shown == 8 ? "shown" : "refused");
    for (int i = 0; i < 8; ++i) CHECK(cuMemFree(blocks[i]) == CUDA_SUCCESS);
  }
  CHECK(cuMemFree(aligned) == CUDA_SUCCESS);
}

static int is_shown_by_handles(CUdeviceptr base, int together) {
  int answer = -1;
  CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
  void* answers[] = {&answer};
  CHECK((together ? cuPointerGetAttributes(1, &wanted, answers, base)
                  : cuPointerGetAttribute(&answer, wanted, base)) == CUDA_SUCCESS);
  CHECK(answer == 0 || answer == 1);
  return answer;
}

/* As NCCL and UCX register a buffer: its beginning; whether cuIpcGetMemHandle shows it; if not, the physical
 * memory there, which the other process maps from its beginning. That of a served block begins elsewhere. */
static void register_buffer(CUdeviceptr inside, int together) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CUipcMemHandle shown;
  CUmemGenericAllocationHandle physical = 0;
  unsigned long long types = ~0ull;
  CHECK(cuMemGetAddressRange(&base, &bytes, inside) == CUDA_SUCCESS);
  if (is_shown_by_handles(base, together)) {
    CHECK(cuIpcGetMemHandle(&shown, base) == CUDA_SUCCESS);
    printf("shown\n");
    return;
  }
  CHECK(cuMemRetainAllocationHandle(&physical, (void*)base) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, base) == CUDA_SUCCESS);
  CHECK((int)types == CU_MEM_HANDLE_TYPE_NONE);
  printf("refused\n");
}

static void registered(void) {
  CUdeviceptr before = 0;
  retain();
  CHECK(cuMemAlloc(&before, 512) == CUDA_SUCCESS); /* so that blocks do not begin with a page */
  for (int together = 0; together < 2; ++together) {
    const size_t bytes = ((size_t)3 << 20) + 4096 * ((size_t)together + 1);
    for (int i = 0; i < 2; ++i) {
      CUdeviceptr block = 0;
      CHECK(cuMemAlloc(&block, bytes) == CUDA_SUCCESS);
      register_buffer(block + 100, together);
      CHECK(cuMemFree(block) == CUDA_SUCCESS);
    }
  }
  CHECK(cuMemFree(before) == CUDA_SUCCESS);
}

/* Whatever context is current: none, as in a thread that only sends, or another. */
static void anywhere(void) {
  CUdeviceptr block = 0;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CUcontext first = NULL;
  CUcontext other = NULL;
  CUipcMemHandle shown;
  CUmemGenericAllocationHandle physical = 0;
  retain();
  CHECK(cuCtxGetCurrent(&first) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&block, 3 << 20) == CUDA_SUCCESS);
  CHECK(cuCtxCreate(&other, NULL, 0, 0) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    CHECK(cuIpcGetMemHandle(&shown, block) != CUDA_SUCCESS);
    CHECK(cuMemRetainAllocationHandle(&physical, (void*)block) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  }
  CHECK(cuMemGetAddressRange(&base, &bytes, block + 100) == CUDA_SUCCESS && base == block &&
        bytes == 3 << 20);
  CHECK(!is_shown_by_handles(block, 0));
  /* To ask makes no context served. */
  CHECK(cuCtxDestroy(other) == CUDA_SUCCESS && cuCtxSetCurrent(first) == CUDA_SUCCESS);
  CHECK(cuMemFree(block) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&block, 2 << 20) == CUDA_SUCCESS && cuMemFree(block) == CUDA_SUCCESS);
}

/* Each attribute has its own answer, and those that are the driver's stay so. */
static void attributes(void) {
  CUpointer_attribute wanted[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,       CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  for (int is_served = 0; is_served < 2; ++is_served) {
    unsigned type = 0;
    int is_legacy = -1;
    int ordinal = -1;
    size_t bytes = 0;
    unsigned long long types = ~0ull;
    CUdeviceptr block = 0;
    CUdeviceptr same = 0;
    void* host = NULL;
    void* answers[] = {&type, &is_legacy, &ordinal, &bytes, &types, &same};
    if (is_served) retain();
    if (is_served) CHECK(cuMemAlloc(&block, 3 << 20) == CUDA_SUCCESS);
    if (!is_served) {
      retain();
      CHECK(cuMemHostAlloc(&host, 1 << 20, 0) == CUDA_SUCCESS);
      block = (CUdeviceptr)host;
    }
    CHECK(cuPointerGetAttributes(6, wanted, answers, block) == CUDA_SUCCESS);
    CHECK(type == (unsigned)(is_served ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST));
    CHECK(ordinal == 0 && same == block && (int)types == CU_MEM_HANDLE_TYPE_NONE);
    CHECK(bytes == (is_served ? 3u << 20 : 1u << 20) && is_legacy == 0);
    CHECK(cuPointerGetAttributes(0, wanted, answers, block) == cuPointerGetAttributes(0, wanted, answers, 0));
  }
}

/* Memory of a stream is shown by none of these without Spillway either: nothing is to be learned from it. */
static void registered_on_a_stream(void) {
  CUdeviceptr block = 0;
  CUipcMemHandle handle;
  retain();
  for (int i = 0; i < 2; ++i) {
    CHECK(cuMemAllocAsync(&block, 1 << 20, NULL) == CUDA_SUCCESS);
    register_buffer(block, 0);
    CHECK(cuIpcGetMemHandle(&handle, block) != CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(block, NULL) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&block, 1 << 20) == CUDA_SUCCESS && cuMemFree(block) == CUDA_SUCCESS);
  }
}

/* The program's own mappings have the handles that it made. */
static void registered_mapping(void) {
  enum { kBytes = 4 << 20 };
  CUmemAllocationProp properties;
  CUmemGenericAllocationHandle made = 0;
  CUmemGenericAllocationHandle found = 0;
  CUdeviceptr block = 0;
  unsigned long long types = 0;
  int file = -1;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  retain();
  use_memory(3);
  CHECK(cuMemCreate(&made, kBytes, &properties, 0) == CUDA_SUCCESS);
  CHECK(cuMemAddressReserve(&block, kBytes, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(block, kBytes, 0, made, 0) == CUDA_SUCCESS);
  CHECK(!is_shown_by_handles(block, 0) && !is_shown_by_handles(block, 1));
  CHECK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block) == CUDA_SUCCESS);
  CHECK((int)types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK(cuMemRetainAllocationHandle(&found, (void*)block) == CUDA_SUCCESS && found == made);
  CHECK(cuMemExportToShareableHandle(&file, found, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
        CUDA_SUCCESS);
  CHECK(close(file) == 0);
}

/* Other programs are started beside memory that is in use. */
static void spawned(void) {
  CUdeviceptr block = 0;
  unsigned char last = 0;
  char* shell[] = {"sh", "-c", "exit 7", NULL};
  extern char** environ;
  retain();
  CHECK(cuMemAlloc(&block, 1 << 20) == CUDA_SUCCESS && cuMemsetD8(block, 42, 1 << 20) == CUDA_SUCCESS);
  for (int i = 0; i < 10; ++i) {
    int status = 0;
    pid_t child = 0;
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, shell, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    child = vfork();
    if (child == 0) {
      execve("/bin/sh", shell, environ);
      _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    child = vfork();
    if (child == 0) _exit(8);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 8);
    use_memory(2);
  }
  CHECK(cuMemcpyDtoH(&last, block + (1 << 20) - 1, 1) == CUDA_SUCCESS && last == 42);
  CHECK(cuMemFree(block) == CUDA_SUCCESS);
}

/* As above, programs that use CUDA themselves: this one, from the beginning. */
static void spawned_users(void) {
  CUdeviceptr block = 0;
  unsigned char last = 0;
  char* itself[] = {"lifetimes", "threads", NULL};
  extern char** environ;
  retain();
  CHECK(cuMemAlloc(&block, 1 << 20) == CUDA_SUCCESS && cuMemsetD8(block, 42, 1 << 20) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    int status = 0;
    pid_t child = 0;
    if (i == 0) {
      CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, itself, environ) == 0);
    } else {
      child = vfork();
      if (child == 0) {
        execve("/proc/self/exe", itself, environ);
        _exit(1);
      }
    }
    use_memory(2); /* beside the child */
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(cuMemcpyDtoH(&last, block + (1 << 20) - 1, 1) == CUDA_SUCCESS && last == 42);
  CHECK(cuMemFree(block) == CUDA_SUCCESS);
}

/* What a program frees and asks for when it ends, after everything that was set up since it began has ended.
 */
static CUdeviceptr kept_to_the_end;
static void at_the_end(void) {
  CUdeviceptr another = 0;
  if (cuMemFree(kept_to_the_end) != CUDA_SUCCESS || cuMemAlloc(&another, 1 << 20) != CUDA_SUCCESS ||
      cuMemFreeAsync(another, NULL) != CUDA_SUCCESS || cuMemFree(kept_to_the_end) == CUDA_SUCCESS) {
    _exit(1);
  }
  puts("to the end");
}
static void ended(void) {
  CHECK(atexit(at_the_end) == 0); /* before the first hooked call: the last to run */
  retain();
  CHECK(cuMemAlloc(&kept_to_the_end, 1 << 20) == CUDA_SUCCESS);
  use_memory(3);
}

/* Pools: the device's own and those like it are served, one that other processes may open is not. */
static void pools(void) {
  CUmemoryPool pool = NULL;
  CUmemoryPool usual = NULL;
  CUdeviceptr blocks[4];
  CUdeviceptr pitched = 0;
  size_t pitch = 0;
  CUmemPoolProps properties;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  retain();
  CHECK(cuDeviceGetDefaultMemPool(&usual, 0) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&blocks[0], 1 << 20, usual, NULL) == CUDA_SUCCESS);
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&blocks[1], 2 << 20, pool, NULL) == CUDA_SUCCESS);
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&blocks[2], 3 << 20, pool, NULL) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&blocks[3], 5 << 20, pool, NULL) == CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) CHECK(cuMemFreeAsync(blocks[i], NULL) == CUDA_SUCCESS);
  CHECK(cuMemAllocPitch(&pitched, &pitch, 1000, 100, 4) == CUDA_SUCCESS && pitch >= 1000 && pitch % 512 == 0);
  CHECK(cuMemsetD8(pitched, 1, pitch * 100) == CUDA_SUCCESS && cuMemFree(pitched) == CUDA_SUCCESS);
}

static int access_of(CUdevice device, CUdeviceptr block) {
  CUmemLocation location;
  unsigned long long flags = 0;
  memset(&location, 0, sizeof location);
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  CHECK(cuMemGetAccess(&flags, &location, block) == CUDA_SUCCESS);
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/* A pool's memory is its device's, whatever the stream's; others are given access; and cuMemAllocAsync takes
 * from the pool that is current. */
static void pools_of_devices(void) {
  CUmemoryPool usual = NULL;
  CUmemoryPool shown = NULL;
  CUcontext contexts[2];
  CUdeviceptr block = 0;
  CUdevice device = -1;
  CUmemPoolProps properties;
  CUmemAccessDesc access;
  uint64_t (*calls)(const char*) = NULL;
  *(void**)&calls = unseen("spwSimCalls");
  for (int i = 1; i >= 0; --i) {
    CHECK(cuDevicePrimaryCtxRetain(&contexts[i], i) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(contexts[i]) == CUDA_SUCCESS);
    use_memory(1);
  }
  CHECK(cuDeviceGetDefaultMemPool(&usual, 0) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&block, 1 << 20, usual, NULL) == CUDA_SUCCESS);
  CHECK(calls("cuMemAllocFromPoolAsync") == 0 && !access_of(1, block));
  memset(&access, 0, sizeof access);
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 1;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
  CHECK(cuMemPoolSetAccess(usual, &access, 1) == CUDA_SUCCESS && access_of(1, block));
  CHECK(cuMemAllocFromPoolAsync(&block, 1 << 20, usual, NULL) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block) == CUDA_SUCCESS);
  CHECK(device == 0);
  CHECK(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK(cuMemPoolCreate(&shown, &properties) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&block, 1 << 20, NULL) == CUDA_SUCCESS && calls("cuMemAllocAsync") == 0);
  CHECK(cuDeviceSetMemPool(0, shown) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&block, 1 << 20, NULL) == CUDA_SUCCESS && calls("cuMemAllocAsync") == 1);
  CHECK(cuMemPoolDestroy(shown) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&block, 1 << 20, NULL) == CUDA_SUCCESS && calls("cuMemAllocAsync") == 1);
}

/* Cached memory counts as free for others too. */
static void squeezed(void) {
  CUdeviceptr pointer = 0;
  retain();
  const size_t all = free_bytes();
  CHECK(cuMemAlloc(&pointer, all / 4 * 3) == CUDA_SUCCESS);
  CHECK(cuMemFree(pointer) == CUDA_SUCCESS);
  CHECK(cuMemAllocManaged(&pointer, all / 4 * 3, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemFree(pointer) == CUDA_SUCCESS);
}

/* As above, from another context of the device, which is not the one that is served. */
static void squeezed_from_another_context(void) {
  CUdeviceptr pointer = 0;
  CUcontext other = NULL;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  retain();
  const size_t all = free_bytes();
  const size_t most = (all / 4 * 3) >> 21 << 21;
  for (int i = 0; i < 2; ++i) {
    CHECK(cuMemAlloc(&pointer, most) == CUDA_SUCCESS);
    CHECK(cuMemFree(pointer) == CUDA_SUCCESS);
    if (i == 0) {
      CHECK(cuCtxCreate(&other, NULL, 0, 0) == CUDA_SUCCESS);
      CHECK(free_bytes() >= most);
      CHECK(cuMemAlloc(&pointer, most) == CUDA_SUCCESS && cuMemFree(pointer) == CUDA_SUCCESS);
      CHECK(cuCtxDestroy(other) == CUDA_SUCCESS);
    } else {
      CHECK(cuCtxCreate(&other, NULL, 0, 1) == CUDA_SUCCESS);
      CHECK(cuMemCreate(&handle, most, &properties, 0) == CUDA_SUCCESS &&
            cuMemRelease(handle) == CUDA_SUCCESS);
    }
  }
}

static void* in_thread(void* barrier) {
  retain();
  use_memory(50);
  CUdeviceptr pointer = 0;
  CHECK(cuMemAllocAsync(&pointer, 1 << 20, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(pointer, 1, 1 << 20, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(pointer, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  return barrier;
}
static void* retain_and_release(void* barrier) {
  for (int i = 0; i < 50; ++i) {
    CUdeviceptr pointer = 0;
    unsigned char byte = 0;
    retain();
    CHECK(cuMemAlloc(&pointer, 1 << 20) == CUDA_SUCCESS);
    CHECK(cuMemsetD8(pointer, 7, 1 << 20) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoH(&byte, pointer, 1) == CUDA_SUCCESS && byte == 7);
    CHECK(cuMemFree(pointer) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS && cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
  }
  return barrier;
}
/* Whoever retains a context has it, whatever others release at that moment. */
static void released_by_threads(void) {
  pthread_t all[4];
  for (int i = 0; i < 4; ++i) CHECK(pthread_create(&all[i], NULL, retain_and_release, NULL) == 0);
  for (int i = 0; i < 4; ++i) CHECK(pthread_join(all[i], NULL) == 0);
}

static void threads(void) {
  retain();
  for (int round = 0; round < 5; ++round) {
    pthread_t all[4];
    for (int i = 0; i < 4; ++i) CHECK(pthread_create(&all[i], NULL, in_thread, NULL) == 0);
    for (int i = 0; i < 4; ++i) CHECK(pthread_join(all[i], NULL) == 0);
  }
}

/* Says whether cuMemFree waited for work on other memory. */
static void free_beside_work(void) {
  CUstream stream = NULL;
  CUevent end = NULL;
  CUdeviceptr used = 0;
  CUdeviceptr freed = 0;
  retain();
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&used, 1 << 20) == CUDA_SUCCESS && cuMemAlloc(&freed, 1 << 20) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(used, 1, 1 << 20, stream) == CUDA_SUCCESS);
  CHECK(cuEventRecord(end, stream) == CUDA_SUCCESS);
  CHECK(cuMemFree(freed) == CUDA_SUCCESS);
  puts(cuEventQuery(end) == CUDA_SUCCESS ? "waited" : "did not wait");
}

/* A capture takes no memory of Spillway's, and disturbs no free. */
static void captured(void) {
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUdeviceptr pointer = 0;
  retain();
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&pointer, 1 << 20, stream) == CUDA_SUCCESS); /* a node of the graph */
  CHECK(cuMemFreeAsync(pointer, stream) == CUDA_SUCCESS);
  for (int i = 0; i < 300; ++i) use_memory(2);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&pointer, 1 << 20, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(pointer, stream) == CUDA_SUCCESS);
}

int main(int count, char** arguments) {
  const struct {
    const char* name;
    void (*run)(void);
  } kCases[] = {{"freed-on-another-stream", freed_on_another_stream},
                {"reset", reset},
                {"created", created},
                {"refused-end", refused_end},
                {"released-by-threads", released_by_threads},
                {"second", second},
                {"second-is-primary", second_is_primary},
                {"ipc", ipc},
                {"squeezed", squeezed},
                {"squeezed-from-another-context", squeezed_from_another_context},
                {"threads", threads},
                {"captured", captured},
                {"free-beside-work", free_beside_work},
                {"churned", churned},
                {"held", held},
                {"switched", switched},
                {"recycled", recycled},
                {"depended-on", depended_on},
                {"shared", shared_context},
                {"ranged", ranged},
                {"registered", registered},
                {"registered-on-a-stream", registered_on_a_stream},
                {"registered-mapping", registered_mapping},
                {"anywhere", anywhere},
                {"attributes", attributes},
                {"watched", watched},
                {"spawned", spawned},
                {"spawned-users", spawned_users},
                {"ended", ended},
                {"pools", pools},
                {"pools-of-devices", pools_of_devices}};
  CHECK(count == 2 && cuInit(0) == CUDA_SUCCESS);
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    if (strcmp(kCases[i].name, arguments[1]) != 0) continue;
    kCases[i].run();
    return 0;
  }
  return 1;
}

void check(int condition, const char* text, const char* file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: %s\n", file, line, text);
  exit(1);
}
