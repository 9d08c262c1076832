// Communicators of any size whose collectives move nothing, but for one: a small gather, by ncclAllGather or
// by a group of broadcasts, one from each rank, answers as if every rank gave what this one gives. By such
// gathers ranks compare counts and sizes, and a program stops that reads other bytes there; in large ones are
// tensors, whose values nothing here computed.
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

static const int kInvalidArgument = 4;     // ncclInvalidArgument
static const int kUnhandledCudaError = 1;  // ncclUnhandledCudaError

// False where nothing is to be moved.
static int is_small(size_t count, int type, size_t* bytes) {
  *bytes = count * kItemBytes[type];
  return *bytes > 0 && *bytes <= kMostGatheredBytes;
}

static int is_type(int type) {
  return type >= 0 && (size_t)type < sizeof kItemBytes / sizeof *kItemBytes;
}

typedef int (*CopyAsync)(void* to, const void* from, size_t bytes, int kind, void* stream);

static int copy(void* to, const void* from, size_t bytes, void* stream) {
  const CopyAsync copy_async = (CopyAsync)dlsym(RTLD_DEFAULT, "cudaMemcpyAsync");
  const int kind = 3;  // cudaMemcpyDeviceToDevice
  if (copy_async == 0 || to == from) return 0;
  return copy_async(to, from, bytes, kind, stream) == 0 ? 0 : kUnhandledCudaError;
}

int ncclAllGather(const void* from, void* to, size_t count, int type, struct Communicator* communicator,
                  void* stream) {
  size_t bytes = 0;
  if (!is_type(type)) return kInvalidArgument;
  if (!is_small(count, type, &bytes)) return 0;
  for (int rank = 0; rank < communicator->ranks; ++rank) {
    const int status = copy((char*)to + (size_t)rank * bytes, from, bytes, stream);
    if (status != 0) return status;
  }
  return 0;
}

// The broadcasts of the group that this thread has open, while there is one from each rank in turn.
enum { kMostRanks = 64 };
static _Thread_local struct {
  int depth;
  int ranks;  // so many were seen
  const void* given;
  void* places[kMostRanks];
  size_t bytes;
} group;

int ncclGroupStart(void) {
  if (group.depth++ == 0) group.ranks = 0;
  return 0;
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                  struct Communicator* communicator, void* stream) {
  size_t bytes = 0;
  if (!is_type(type)) return kInvalidArgument;
  if (group.depth == 0 || !is_small(count, type, &bytes)) return 0;
  if (root != group.ranks || root >= kMostRanks || (root > 0 && bytes != group.bytes)) return 0;
  if (root == communicator->rank) group.given = from;
  group.places[group.ranks++] = to;
  group.bytes = bytes;
  if (group.ranks < communicator->ranks) return 0;
  for (int rank = 0; rank < group.ranks; ++rank) {
    const int status = copy(group.places[rank], group.given, bytes, stream);
    if (status != 0) return status;
  }
  return 0;
}
int ncclGroupEnd(void) {
  if (group.depth > 0) --group.depth;
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
  return kUnhandledCudaError;  // not simulated
}
int ncclCommRegister(const struct Communicator* communicator, void* buffer, size_t bytes, void** handle) {
  (void)communicator, (void)buffer, (void)bytes;
  *handle = new_handle();
  return 0;
}
