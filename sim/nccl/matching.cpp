// The meeting's operations: those that belong together are matched, and their bytes moved.
#include "sim/nccl/meeting.h"

#include <algorithm>
#include <utility>

namespace spillway::nccl {

void Meeting::post(int id, Message message) {
  const auto found = communicators_.find(message.communicator);
  if (found == communicators_.end()) return;
  Communicator& communicator = found->second;
  processes_[id].unanswered[message.ticket] = {message, message.text};
  if (is_transfer(message.operation)) {
    transfer(communicator, std::move(message));
    return;
  }
  const uint64_t sequence = message.sequence;
  Posts& posts = communicator.open[sequence];
  posts[message.rank] = std::move(message);
  if (posts.size() == communicator.members.size()) finish(communicator, sequence, false);
}

bool Meeting::is_root_missing(const Communicator& communicator, const Posts& posts) const {
  const Head& head = posts.begin()->second;
  return head.operation == Operation::kBroadcast && communicator.members.count(head.root) == 0;
}

namespace {

template <typename Likeness>
Likeness likeness(const Head& head, int size) {
  return {size, head.root, head.sequence, head.count, head.type};
}

constexpr size_t kMostBroadcasts = 4096;

}  // namespace

// The broadcast of a root that runs to a group like this one.
const Message* Meeting::sibling(const Posts& posts, int size) const {
  const auto found = broadcasts_.find(likeness<Likeness>(posts.begin()->second, size));
  return found == broadcasts_.end() ? nullptr : &found->second;
}

void Meeting::finish(Communicator& communicator, uint64_t sequence, bool without_root) {
  Posts& open = communicator.open[sequence];
  const Message& first = open.begin()->second;
  for (const auto& [rank, post] : open) {
    if (!agree(first, post)) return condemn(communicator.job, "mismatch", complaints(communicator.job));
  }
  const bool root_missing = is_root_missing(communicator, open);
  const Message* like = root_missing ? sibling(open, communicator.size) : nullptr;
  if (root_missing && like == nullptr && !without_root) return;  // one may come yet
  const bool stays = root_missing && like == nullptr;
  const bool is_guessed =
      std::any_of(open.begin(), open.end(), [](const auto& entry) { return !entry.second.flag; });
  if (stays && first.has_bytes && is_guessed) {
    notes_.insert("a broadcast came from a rank that does not run, and what was there before was kept: " +
                  first.text);
  }
  Posts posts = std::move(open);
  communicator.open.erase(sequence);
  const Head head = posts.begin()->second;
  if (head.operation == Operation::kSplit) return split(communicator, posts);
  if (like != nullptr) {
    Message& given = posts[head.root];
    given = *like;
  }
  const Results results(posts, communicator.size);
  for (const auto& [rank, member] : communicator.members) {
    Message done;
    done.kind = Kind::kDone;
    done.ticket = posts.at(rank).ticket;
    done.flag = stays;
    results.give(rank, done);
    answer(communicator, rank, done);
  }
  if (!imagines() || head.operation != Operation::kBroadcast || root_missing) return;
  const auto root = posts.find(head.root);
  if (root == posts.end() || broadcasts_.size() >= kMostBroadcasts) return;
  broadcasts_[likeness<Likeness>(head, communicator.size)] = root->second;
  for (auto& [number, other] : communicators_) {
    std::vector<uint64_t> held;
    for (const auto& [at, waiting] : other.open) {
      const bool is_whole = waiting.size() == other.members.size();
      if (is_whole && is_root_missing(other, waiting) && sibling(waiting, other.size) != nullptr)
        held.push_back(at);
    }
    for (const uint64_t at : held) finish(other, at, false);
  }
}

// So much a network buffers: who sends it goes on.
constexpr uint64_t kBufferedBytes = uint64_t{64} << 10;

void Meeting::transfer(Communicator& communicator, Message message) {
  if (communicator.members.count(message.root) == 0) return answer_imagined(communicator, std::move(message));
  const bool sends = message.operation == Operation::kSend;
  const int from = sends ? message.rank : message.root;
  const int to = sends ? message.root : message.rank;
  const std::tuple<int, int, uint64_t> key{from, to, message.sequence};
  Transfer& transfer = communicator.transfers[key];
  (sends ? transfer.send : transfer.receive) = std::move(message);
  const auto tell_sender = [&] {
    Message done;
    done.kind = Kind::kDone;
    done.ticket = transfer.send->ticket;
    transfer.is_sent = true;
    answer(communicator, from, done);
  };
  if (transfer.send && transfer.receive) {
    const Message& sent = *transfer.send;
    const Message& received = *transfer.receive;
    if (sent.count != received.count || sent.type != received.type) {
      return condemn(communicator.job, "mismatch", complaints(communicator.job));
    }
    Message done;
    done.kind = Kind::kDone;
    done.ticket = received.ticket;
    done.has_bytes = sent.has_bytes;
    done.is_real = sent.is_real;
    done.bytes = sent.bytes;
    answer(communicator, to, done);
    if (!transfer.is_sent) tell_sender();
    communicator.transfers.erase(key);
  } else if (sends && !transfer.is_sent &&
             transfer.send->count * item_bytes(transfer.send->type) <= kBufferedBytes) {
    tell_sender();
  }
}

// A peer that does not run sends what it is sent, or what went to others.
void Meeting::answer_imagined(Communicator& communicator, Message message) {
  Message done;
  done.kind = Kind::kDone;
  done.ticket = message.ticket;
  const int rank = message.rank;
  if (message.operation == Operation::kSend) {
    communicator.sent[{rank, message.root}] = message;
    communicator.sent[{rank, -1}] = std::move(message);
  } else {
    for (const int peer : {message.root, -1}) {
      const auto found = communicator.sent.find({rank, peer});
      if (found == communicator.sent.end() || done.has_bytes) continue;
      const Message& sent = found->second;
      if (sent.count != message.count || sent.type != message.type || !sent.has_bytes) continue;
      done.has_bytes = true;
      done.is_real = sent.is_real;
      done.bytes = sent.bytes;
    }
    done.flag = !done.has_bytes;
    if (!done.has_bytes && message.has_bytes && !message.flag) {
      notes_.insert("a message came from a rank that does not run, and what was there before was kept: " +
                    message.text);
    }
  }
  answer(communicator, rank, done);
}

void Meeting::store(int id, const Message& message) {
  for (const Store::Answer& given : jobs_[processes_[id].job].store.call(id, message)) {
    answer(given.process, given.done);
  }
}

}  // namespace spillway::nccl
