// Communicators of any size whose collectives are complete as soon as they are called and move nothing.
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
