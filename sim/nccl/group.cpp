#include "sim/nccl/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/nccl/driver.h"
#include "sim/nccl/peers.h"
#include "sim/nccl/values.h"

namespace spillway::nccl {
namespace {

struct Group {
  int depth = 0;
  std::vector<Call> calls;
  std::vector<EntryPtr> entries;
};
thread_local Group group;

uint64_t bytes_of(const Call& call) {
  return call.count * item_bytes(call.type);
}

// Says what the rank gives, and what it gets, in pieces of `count` items.
uint64_t pieces_given(const Call& call) {
  const bool many = call.operation == Operation::kReduceScatter || call.operation == Operation::kAllToAll;
  if (call.operation == Operation::kReceive) return 0;
  if (call.operation == Operation::kBroadcast && call.root != call.member->rank) return 0;
  return many ? static_cast<uint64_t>(call.member->size) : 1;
}

uint64_t bytes_taken(const Call& call) {
  const bool many = call.operation == Operation::kAllGather || call.operation == Operation::kAllToAll;
  const bool takes = call.operation != Operation::kReduce || call.root == call.member->rank;
  if (call.to == nullptr || !takes) return 0;
  return bytes_of(call) * (many ? static_cast<uint64_t>(call.member->size) : 1);
}

// Takes that of the largest tensor that the rank has in it. What is gathered of integers counts as what each
// gives: objects of many ranks.
uint64_t tensor_bytes(const Call& call) {
  const bool many = call.operation == Operation::kReduceScatter || call.operation == Operation::kAllToAll ||
                    (call.operation == Operation::kAllGather && is_floating(call.type));
  return bytes_of(call) * (many ? static_cast<uint64_t>(call.member->size) : 1);
}

class Batch : public std::enable_shared_from_this<Batch> {
 public:
  Batch(std::vector<Call> calls, Place place)
      : calls_(std::move(calls)), answers_(calls_.size()), place_(std::move(place)) {}

  void enqueue() {
    kept_ = shared_from_this();
    if (driver().enqueue(calls_.front().stream, nullptr, post_it, this)) return;
    driver().touch(calls_.front().stream);
    over_ = true;
    kept_.reset();
  }
  void enqueue_end() {
    if (!over_ && !driver().enqueue(calls_.front().stream, is_answered, finish_it, this)) over_ = true;
  }
  bool is_over() const { return over_; }

 private:
  struct Answer : Receiver {
    std::shared_ptr<Batch> batch;
    size_t index = 0;
    void receive(Message message) override {
      batch->answers_[index] = std::move(message);
      ++batch->answered_;
    }
  };

  static void post_it(void* batch) { static_cast<Batch*>(batch)->post(); }
  static int is_answered(void* batch) {
    const auto* self = static_cast<const Batch*>(batch);
    return self->answered_ == self->calls_.size() || self->calls_.front().member->aborted ? 1 : 0;
  }
  static void finish_it(void* batch) { static_cast<Batch*>(batch)->finish(); }

  void post() {
    for (size_t i = 0; i < calls_.size(); ++i) {
      const Call& call = calls_[i];
      Message message;
      message.kind = Kind::kPost;
      message.operation = call.operation;
      message.type = static_cast<uint8_t>(call.type);
      message.reduction = static_cast<uint8_t>(std::min<int>(call.reduction, kPreMulSum));
      message.scalar = call.scalar;
      message.rank = call.member->rank;
      message.root = call.root;
      message.world_rank = place_.world_rank;
      message.communicator = call.member->number;
      message.sequence = call.sequence;
      message.count = call.count;
      message.text = place_.line;
      message.has_bytes = are_bytes_moved(call.type, tensor_bytes(call));
      if (message.has_bytes) {
        message.bytes.resize(pieces_given(call) * bytes_of(call));
        const bool gives = !message.bytes.empty();
        message.has_bytes = !gives || driver().read(call.from, message.bytes.data(), message.bytes.size());
        if (!message.has_bytes) message.bytes.clear();
        message.is_real = !gives || is_real(call.from, message.bytes.size());
      }
      message.flag = is_real(call.to, bytes_taken(call));
      auto answer = std::make_shared<Answer>();
      answer->batch = shared_from_this();
      answer->index = i;
      Client::get()->post(std::move(message), std::move(answer));
    }
  }

  void finish() {
    for (size_t i = 0; i < calls_.size() && !calls_.front().member->aborted; ++i) {
      if (answers_[i].flag) continue;
      if (answers_[i].has_bytes) take(calls_[i], answers_[i].bytes);
      set_real(calls_[i].to, bytes_taken(calls_[i]), answers_[i].has_bytes && answers_[i].is_real);
    }
    answers_.clear();
    over_ = true;
    kept_.reset();
  }

  static void take(const Call& call, const std::vector<char>& bytes) {
    if (call.operation == Operation::kSend || call.to == nullptr) return;
    if (call.operation != Operation::kAllGather) {
      driver().write(call.to, bytes.data(), bytes.size());
      return;
    }
    int32_t pieces = 0;
    std::memcpy(&pieces, bytes.data(), sizeof pieces);
    std::vector<int> real(static_cast<size_t>(pieces));
    std::memcpy(real.data(), bytes.data() + sizeof pieces, real.size() * sizeof(int));
    const char* first = bytes.data() + sizeof pieces + real.size() * sizeof(int);
    for (int rank = 0; rank < call.member->size; ++rank) {
      char* to = static_cast<char*>(call.to) + static_cast<uint64_t>(rank) * bytes_of(call);
      driver().write(to, first + nearest(real, rank) * bytes_of(call), bytes_of(call));
    }
  }

  std::vector<Call> calls_;
  std::vector<Message> answers_;
  Place place_;
  std::atomic<size_t> answered_{0};
  std::atomic<bool> over_{false};
  std::shared_ptr<Batch> kept_;  // while a stream has it
};

// Sends before receives: what a rank that does not run sends is told by what it is sent.
std::vector<std::vector<Call>> batches_of(std::vector<Call> calls) {
  std::stable_sort(calls.begin(), calls.end(), [](const Call& one, const Call& other) {
    return one.operation != Operation::kReceive && other.operation == Operation::kReceive;
  });
  std::vector<std::vector<Call>> batches;
  for (Call& call : calls) {
    const auto same = std::find_if(batches.begin(), batches.end(), [&](const std::vector<Call>& batch) {
      return batch.front().member == call.member && batch.front().stream == call.stream;
    });
    if (same != batches.end()) {
      same->push_back(std::move(call));
    } else {
      batches.emplace_back().push_back(std::move(call));
    }
  }
  return batches;
}

struct EntryAnswer : Receiver {
  EntryPtr entry;
  void receive(Message message) override {
    Member& made = *entry->made;
    made.number = message.communicator;
    made.rank = message.rank;
    made.size = message.size;
    made.sends.assign(static_cast<size_t>(std::max(message.size, 0)), 0);
    made.receives = made.sends;
    entry->is_over = true;
  }
};

Result enter(const std::vector<EntryPtr>& entries, const Place& here) {
  Client& client = *Client::get();
  for (const EntryPtr& entry : entries) {
    auto answer = std::make_shared<EntryAnswer>();
    answer->entry = entry;
    Message message = entry->message;
    message.world_rank = here.world_rank;
    if (message.kind == Kind::kJoin) {
      message.bytes.assign(here.line.begin(), here.line.end());
    } else {
      message.text = here.line;
    }
    client.post(std::move(message), std::move(answer));
  }
  const auto are_over = [&] {
    return client.is_broken() || std::all_of(entries.begin(), entries.end(),
                                             [](const EntryPtr& entry) { return entry->is_over.load(); });
  };
  client.wait(false, are_over);
  return client.is_broken() ? kSystemError : kSuccess;
}

Result launch(std::vector<Call> calls, const std::vector<EntryPtr>& entries) {
  Client* client = Client::get();
  if (client == nullptr) return kSystemError;
  const Place here = place();
  if (!entries.empty()) {
    if (const Result result = enter(entries, here); result != kSuccess) return result;
  }
  std::vector<std::shared_ptr<Batch>> batches;
  for (std::vector<Call>& batch : batches_of(std::move(calls))) {
    batches.push_back(std::make_shared<Batch>(std::move(batch), here));
  }
  for (const auto& batch : batches) batch->enqueue();
  for (const auto& batch : batches) batch->enqueue_end();
  client->wait(true, [&] {
    return std::all_of(batches.begin(), batches.end(), [](const auto& batch) { return batch->is_over(); });
  });
  return kSuccess;
}

}  // namespace

void start_group() {
  ++group.depth;
}

Result end_group() {
  if (group.depth == 0) return kInvalidUsage;
  if (--group.depth > 0) return kSuccess;
  const std::vector<EntryPtr> entries = std::exchange(group.entries, {});
  std::vector<Call> calls = std::exchange(group.calls, {});
  return calls.empty() && entries.empty() ? kSuccess : launch(std::move(calls), entries);
}

Result add(Call call) {
  if (group.depth == 0) return launch({std::move(call)}, {});
  group.calls.push_back(std::move(call));
  return kSuccess;
}

Result add(EntryPtr entry) {
  if (group.depth == 0) return launch({}, {std::move(entry)});
  group.entries.push_back(std::move(entry));
  return kSuccess;
}

}  // namespace spillway::nccl
