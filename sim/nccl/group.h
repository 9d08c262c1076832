// Operations between ncclGroupStart and ncclGroupEnd, or one alone: they start together.
//
// Those of one communicator on one stream are a batch: when the stream comes to it, it posts what its inputs
// hold then, and the stream stands still until all is answered. The host waits for that too, as long as
// anybody in the job moves: then memory is used again in the same order in every run. Where nobody does it
// goes on, as it would on a GPU.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "sim/nccl/client.h"

struct CUstream_st;

namespace spillway::nccl {

// This process's side of a communicator.
struct Member {
  uint64_t number = 0;
  int rank = 0;
  int size = 0;
  bool left = false;  // destroyed or aborted
  std::atomic<bool> aborted{false};
  uint64_t collectives = 0;        // so many were started
  std::vector<uint64_t> sends;     // to each peer
  std::vector<uint64_t> receives;  // from each
  std::vector<double> scalars;     // of the reductions that the program made
};
using MemberPtr = std::shared_ptr<Member>;

struct Call {
  Operation operation = Operation::kAllReduce;
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t count = 0;
  int type = 0;
  int root = 0;  // or peer
  int reduction = 0;
  double scalar = 1;
  MemberPtr member;
  CUstream_st* stream = nullptr;
  uint64_t sequence = 0;
};

// One rank that joins a communicator, or a member that splits it: the thread waits for it.
struct Entry {
  Message message;
  MemberPtr made;
  std::atomic<bool> is_over{false};
};
using EntryPtr = std::shared_ptr<Entry>;

// The thread's.
void start_group();
Result end_group();
Result add(Call call);
Result add(EntryPtr entry);

}  // namespace spillway::nccl
