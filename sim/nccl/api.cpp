// The functions of libnccl.so.2, without NCCL's header: it is not where this is built.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <mutex>

#include "sim/nccl/driver.h"
#include "sim/nccl/group.h"
#include "sim/nccl/reduce.h"

using namespace spillway::nccl;

struct ncclComm {
  MemberPtr member = std::make_shared<Member>();
};

namespace {

using Comm = ncclComm*;

struct UniqueId {
  char bytes[128];
};

EntryPtr join(Comm* out, int ranks, const UniqueId& id, int rank) {
  *out = new ncclComm;
  auto entry = std::make_shared<Entry>();
  entry->made = (*out)->member;
  entry->made->rank = rank;
  entry->made->size = ranks;
  entry->message.kind = Kind::kJoin;
  entry->message.operation = Operation::kJoin;
  entry->message.rank = rank;
  entry->message.size = ranks;
  entry->message.text.assign(id.bytes, sizeof id.bytes);
  return entry;
}

int initialise(Comm* out, int ranks, const UniqueId& id, int rank) {
  if (out == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return kInvalidArgument;
  return add(join(out, ranks, id, rank));
}

bool is_member(Comm comm) {
  return comm != nullptr && !comm->member->left;
}

// Counted when it is called, as streams may run it later.
int start(Call call, Comm comm) {
  if (!is_member(comm) || !is_type(call.type)) return kInvalidArgument;
  Member& member = *comm->member;
  if (call.root < 0 || call.root >= member.size) return kInvalidArgument;
  if (reduces(call.operation)) {
    const auto made = static_cast<size_t>(call.reduction - kPreMulSum);
    if (call.reduction < 0 || (call.reduction >= kPreMulSum && made >= member.scalars.size()))
      return kInvalidArgument;
    if (call.reduction >= kPreMulSum) call.scalar = member.scalars[made];
  }
  const auto peer = static_cast<size_t>(call.root);
  uint64_t& counter = call.operation == Operation::kSend      ? member.sends[peer]
                      : call.operation == Operation::kReceive ? member.receives[peer]
                                                              : member.collectives;
  call.sequence = counter++;
  call.member = comm->member;
  return add(std::move(call));
}

int leave(Comm comm, bool abort) {
  if (comm == nullptr) return kSuccess;
  comm->member->left = true;
  if (abort) comm->member->aborted = true;
  driver().progress();
  if (Client* client = Client::get(); client != nullptr && abort) client->stir();
  delete comm;
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  const int file = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  const bool read = file >= 0 && ::read(file, id->bytes, sizeof id->bytes) == sizeof id->bytes;
  if (file >= 0) ::close(file);
  return read ? kSuccess : kSystemError;
}

int ncclCommInitRank(Comm* out, int ranks, UniqueId id, int rank) {
  return initialise(out, ranks, id, rank);
}
int ncclCommInitRankConfig(Comm* out, int ranks, UniqueId id, int rank, void*) {
  return initialise(out, ranks, id, rank);
}
int ncclCommInitRankScalable(Comm* out, int ranks, int rank, int ids, UniqueId* id, void*) {
  return ids < 1 || id == nullptr ? kInvalidArgument : initialise(out, ranks, *id, rank);
}
int ncclCommInitAll(Comm* out, int devices, const int*) {
  UniqueId id;
  if (const int result = ncclGetUniqueId(&id); result != kSuccess) return result;
  start_group();
  for (int i = 0; i < devices; ++i) initialise(&out[i], devices, id, i);
  return end_group();
}

int ncclCommSplit(Comm parent, int colour, int key, Comm* out, void*) {
  if (!is_member(parent) || out == nullptr) return kInvalidArgument;
  *out = new ncclComm;
  auto entry = std::make_shared<Entry>();
  entry->made = (*out)->member;
  Message& message = entry->message;
  message.kind = Kind::kPost;
  message.operation = Operation::kSplit;
  message.communicator = parent->member->number;
  message.rank = parent->member->rank;
  message.sequence = parent->member->collectives++;
  const int32_t given[2] = {colour, key};
  message.bytes.assign(reinterpret_cast<const char*>(given), reinterpret_cast<const char*>(given + 2));
  const Result result = add(std::move(entry));
  if (colour >= 0) return result;
  delete *out;
  *out = nullptr;
  return result;
}

int ncclCommFinalize(Comm) {
  return kSuccess;
}
int ncclCommDestroy(Comm comm) {
  return leave(comm, false);
}
int ncclCommAbort(Comm comm) {
  return leave(comm, true);
}
int ncclCommCount(Comm comm, int* count) {
  *count = comm->member->size;
  return kSuccess;
}
int ncclCommUserRank(Comm comm, int* rank) {
  *rank = comm->member->rank;
  return kSuccess;
}
int ncclCommGetAsyncError(Comm, int* error) {
  *error = kSuccess;
  return kSuccess;
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, Comm comm,
                  CUstream_st* stream) {
  return start({Operation::kAllReduce, from, to, count, type, 0, reduction, 1, {}, stream}, comm);
}
int ncclReduce(const void* from, void* to, size_t count, int type, int reduction, int root, Comm comm,
               CUstream_st* stream) {
  return start({Operation::kReduce, from, to, count, type, root, reduction, 1, {}, stream}, comm);
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int reduction, Comm comm,
                      CUstream_st* stream) {
  return start({Operation::kReduceScatter, from, to, count, type, 0, reduction, 1, {}, stream}, comm);
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Comm comm,
                  CUstream_st* stream) {
  return start({Operation::kBroadcast, from, to, count, type, root, 0, 1, {}, stream}, comm);
}
int ncclBcast(void* buffer, size_t count, int type, int root, Comm comm, CUstream_st* stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
int ncclAllGather(const void* from, void* to, size_t count, int type, Comm comm, CUstream_st* stream) {
  return start({Operation::kAllGather, from, to, count, type, 0, 0, 1, {}, stream}, comm);
}
int ncclAlltoAll(const void* from, void* to, size_t count, int type, Comm comm, CUstream_st* stream) {
  return start({Operation::kAllToAll, from, to, count, type, 0, 0, 1, {}, stream}, comm);
}
int ncclSend(const void* from, size_t count, int type, int peer, Comm comm, CUstream_st* stream) {
  return start({Operation::kSend, from, nullptr, count, type, peer, 0, 1, {}, stream}, comm);
}
int ncclRecv(void* to, size_t count, int type, int peer, Comm comm, CUstream_st* stream) {
  return start({Operation::kReceive, nullptr, to, count, type, peer, 0, 1, {}, stream}, comm);
}

int ncclGroupStart() {
  start_group();
  return kSuccess;
}
int ncclGroupEnd() {
  return end_group();
}

int ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int residence, Comm comm) {
  if (!is_member(comm) || !is_type(type)) return kInvalidArgument;
  double value = 1;
  char bytes[8] = {};
  constexpr int kHostImmediate = 1;
  if (residence == kHostImmediate) {
    std::memcpy(bytes, scalar, item_bytes(type));
    value = read_number(type, bytes);
  } else if (driver().read(scalar, bytes, item_bytes(type))) {
    value = read_number(type, bytes);
  }
  comm->member->scalars.push_back(value);
  *operation = kPreMulSum + static_cast<int>(comm->member->scalars.size()) - 1;
  return kSuccess;
}
int ncclRedOpDestroy(int, Comm) {
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kSuccess ? "no error" : "error (simulated NCCL)";
}
const char* ncclGetLastError(Comm) {
  return "";
}
int ncclMemAlloc(void** pointer, size_t) {
  *pointer = nullptr;
  return kUnhandledCudaError;  // not simulated
}
int ncclCommRegister(Comm, void*, size_t, void** handle) {
  *handle = new char;
  return kSuccess;
}
int ncclCommDeregister(Comm, void* handle) {
  delete static_cast<char*>(handle);
  return kSuccess;
}

}  // extern "C"
