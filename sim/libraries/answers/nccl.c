// Communicators of any size whose collectives move nothing, but for one: a small ncclAllGather answers as if
// every rank gave what this one gives. By such gathers ranks compare counts and sizes, and a program stops
// that reads other bytes there; in large ones are tensors, whose values nothing here computed.
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "handles.h"

struct Communicator {
  int ranks;
  int rank;
};

static int create(struct Communicator** out, int ranks, int rank) {
  *out = malloc(sizeof **out);
  if (*out == 0) return 2;  // ncclSystemError
  (*out)->ranks = ranks;
  (*out)->rank = rank;
  return 0;
}

struct UniqueId {
  char bytes[128];
};

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
int ncclGetUniqueId(struct UniqueId* id) {
  memset(id, 0x5b, sizeof *id);
  return 0;
}
int ncclCommInitRank(struct Communicator** out, int ranks, struct UniqueId id, int rank) {
  (void)id;
  return create(out, ranks, rank);
}
int ncclCommInitRankConfig(struct Communicator** out, int ranks, struct UniqueId id, int rank,
                           void* configuration) {
  (void)id, (void)configuration;
  return create(out, ranks, rank);
}
int ncclCommInitRankScalable(struct Communicator** out, int ranks, int rank, int ids, void* id,
                             void* configuration) {
  (void)ids, (void)id, (void)configuration;
  return create(out, ranks, rank);
}
int ncclCommInitAll(struct Communicator** out, int devices, const int* list) {
  (void)list;
  for (int i = 0; i < devices; ++i) {
    const int status = create(&out[i], devices, i);
    if (status != 0) return status;
  }
  return 0;
}
int ncclCommSplit(struct Communicator* parent, int colour, int key, struct Communicator** out,
                  void* configuration) {
  (void)colour, (void)key, (void)configuration;
  return create(out, parent->ranks, parent->rank);
}
int ncclCommDestroy(struct Communicator* communicator) {
  free(communicator);
  return 0;
}
int ncclCommAbort(struct Communicator* communicator) {
  free(communicator);
  return 0;
}
int ncclCommCount(const struct Communicator* communicator, int* count) {
  *count = communicator->ranks;
  return 0;
}
int ncclCommUserRank(const struct Communicator* communicator, int* rank) {
  *rank = communicator->rank;
  return 0;
}
int ncclCommGetAsyncError(struct Communicator* communicator, int* error) {
  (void)communicator;
  *error = 0;
  return 0;
}

// ncclDataType_t: 8, 8, 32, 32, 64, 64 bits of integers, 16, 32, 64 of floats, bfloat16, two floats of 8
// bits.
static const size_t kItemBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
static const size_t kMostGatheredBytes = 1 << 20;

typedef int (*CopyAsync)(void* to, const void* from, size_t bytes, int kind, void* stream);

int ncclAllGather(const void* from, void* to, size_t count, int type, struct Communicator* communicator,
                  void* stream) {
  if (type < 0 || (size_t)type >= sizeof kItemBytes / sizeof *kItemBytes) return 4;  // ncclInvalidArgument
  const size_t bytes = count * kItemBytes[type];
  const CopyAsync copy = (CopyAsync)dlsym(RTLD_DEFAULT, "cudaMemcpyAsync");
  if (copy == 0 || bytes == 0 || bytes > kMostGatheredBytes) return 0;
  for (int rank = 0; rank < communicator->ranks; ++rank) {
    char* const place = (char*)to + (size_t)rank * bytes;
    const int kind = 3;                                                          // cudaMemcpyDeviceToDevice
    if (place != from && copy(place, from, bytes, kind, stream) != 0) return 1;  // ncclUnhandledCudaError
  }
  return 0;
}
int ncclRedOpCreatePreMulSum(int* operation) {
  *operation = 5;
  return 0;
}
const char* ncclGetErrorString(int result) {
  return result == 0 ? "no error" : "error (simulated NCCL)";
}
const char* ncclGetLastError(struct Communicator* communicator) {
  (void)communicator;
  return "";
}
int ncclMemAlloc(void** pointer, size_t bytes) {
  (void)bytes;
  *pointer = 0;
  return 1;  // ncclUnhandledCudaError: not simulated
}
int ncclCommRegister(const struct Communicator* communicator, void* buffer, size_t bytes, void** handle) {
  (void)communicator, (void)buffer, (void)bytes;
  *handle = new_handle();
  return 0;
}
