// Says what ranks and the meeting say to each other over a socket: a head of fixed size, a text and bytes.
// Both ends are of one build on one machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/nccl/types.h"

namespace spillway::nccl {

enum class Kind : uint8_t {
  kHello,  // of a process: text is its job, rank its own or -1, size that of the job or 0, count its process
  kJoin,   // a communicator: text is its id, rank and size the member's; answered with its number
  kPost,   // a member's part of an operation; text is the program's line
  kWait,   // a thread waits and has seen `count` answers; ticket names the thread's wait
  kLeave,  // a thread waits no more: something happened in its own process
  kDone,   // to a ticket: the operation is over, the bytes are its result
  kWake,   // to a wait: something changed; flag: nothing will, the thread need not wait
  kStore,  // a call of the job's store; `store`, text is the key, count a number
  kAsk,    // a process that says nothing: what does it do
  kTold,   // text is its program's line; flag: PyTorch waits for other ranks there
  kFatal,  // the job cannot go on: text says why
};

// These are what torch.distributed.Store has. Lists of keys, and the two values of compare_set, are one after
// the other in the bytes, each with its length first (pack_list).
enum class StoreCall : uint8_t { kSet, kGet, kAdd, kWait, kCheck, kDelete, kCompareSet, kAppend, kCount };

struct Head {
  Kind kind = Kind::kHello;
  Operation operation = Operation::kAllReduce;
  StoreCall store = StoreCall::kSet;
  uint8_t type = 0;
  uint8_t reduction = 0;
  bool has_bytes = false;
  bool is_real = false;  // the bytes are what a GPU would have
  // kWait: the thread may go on where nobody can; kWake: see there; kPost: what lies where the result goes is
  // real; kDone: that stays there, as nobody knows better
  bool flag = false;
  int32_t rank = 0;
  int32_t size = 0;
  int32_t root = 0;  // or the peer
  int32_t world_rank = -1;
  uint64_t ticket = 0;
  uint64_t communicator = 0;
  uint64_t sequence = 0;
  uint64_t count = 0;
  double scalar = 1;
  uint64_t text_bytes = 0;
  uint64_t payload_bytes = 0;
};

struct Message : Head {
  std::string text;
  std::vector<char> bytes;
};

std::vector<char> pack_list(const std::vector<std::string>& items);
std::vector<std::string> unpack_list(const std::vector<char>& bytes);

// As it goes over the socket.
std::vector<char> pack(const Message& message);

// Messages out of what arrived, piece by piece.
class Unpacker {
 public:
  void add(const char* data, size_t bytes);
  std::optional<Message> next();

 private:
  std::vector<char> arrived_;
  size_t taken_ = 0;
};

}  // namespace spillway::nccl
