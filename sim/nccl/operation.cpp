#include "sim/nccl/operation.h"

#include <cstring>

#include "sim/nccl/peers.h"
#include "sim/nccl/reduce.h"

namespace spillway::nccl {

std::string describe(const Head& head) {
  std::string text = name_of(head.operation);
  if (head.operation == Operation::kJoin) return text + " of " + std::to_string(head.size) + " ranks";
  if (head.operation == Operation::kSplit) return text;
  text += " of " + std::to_string(head.count) + " x " + kTypeNames[head.type];
  constexpr std::array<const char*, 6> kReductions{"sum", "product", "max", "min", "avg", "premul_sum"};
  if (reduces(head.operation)) text += std::string(" (") + kReductions[head.reduction] + ")";
  if (has_root(head.operation)) text += " with root " + std::to_string(head.root);
  return text;
}

bool agree(const Head& one, const Head& other) {
  return one.operation == other.operation && one.count == other.count && one.type == other.type &&
         one.reduction == other.reduction && one.root == other.root;
}

Results::Results(const Posts& posts, int size) : posts_(posts), head_(posts.begin()->second), size_(size) {
  for (const auto& [rank, post] : posts) {
    real_.push_back(rank);
    is_real_ &= post.is_real;
    has_bytes_ &= post.has_bytes || (head_.operation == Operation::kBroadcast && rank != head_.root);
  }
  if (!has_bytes_) return;
  if (head_.operation == Operation::kAllGather) common_ = gathered();
  if (head_.operation == Operation::kAllReduce || head_.operation == Operation::kReduce) {
    common_ = reduced(0, head_.count);
  }
  if (head_.operation == Operation::kBroadcast) {
    const auto root = posts.find(head_.root);
    has_bytes_ = root != posts.end() && root->second.has_bytes;
    if (has_bytes_) common_ = root->second.bytes;
  }
}

// How many pieces there are, whose they are, and the pieces: who gets them knows who gave what of the others.
std::vector<char> Results::gathered() const {
  std::vector<char> all;
  const auto add = [&](const void* data, size_t bytes) {
    const char* at = static_cast<const char*>(data);
    all.insert(all.end(), at, at + bytes);
  };
  const auto pieces = static_cast<int32_t>(real_.size());
  add(&pieces, sizeof pieces);
  add(real_.data(), real_.size() * sizeof(int));
  for (const auto& [rank, post] : posts_) add(post.bytes.data(), post.bytes.size());
  return all;
}

std::vector<char> Results::exchanged(int rank) const {
  const uint64_t piece = head_.count * item_bytes(head_.type);
  std::vector<char> all(piece * static_cast<uint64_t>(size_));
  for (int from = 0; from < size_; ++from) {
    const Message& post = posts_.at(real_[nearest(real_, from)]);
    std::memcpy(all.data() + static_cast<uint64_t>(from) * piece,
                post.bytes.data() + static_cast<uint64_t>(rank) * piece, piece);
  }
  return all;
}

std::vector<char> Results::reduced(uint64_t from, uint64_t count) const {
  const std::vector<uint64_t> times = followers(real_, size_);
  std::vector<Part> parts;
  for (const auto& [rank, post] : posts_) {
    parts.push_back({post.bytes.data() + from * item_bytes(head_.type), times[parts.size()], post.scalar});
  }
  return reduce(head_.type, head_.reduction, count, parts, static_cast<uint64_t>(size_));
}

void Results::give(int rank, Message& to) const {
  if (!has_bytes_) return;
  to.has_bytes = true;
  to.is_real = is_real_;
  switch (head_.operation) {
    case Operation::kReduceScatter:
      to.bytes = reduced(static_cast<uint64_t>(rank) * head_.count, head_.count);
      break;
    case Operation::kAllToAll:
      to.bytes = exchanged(rank);
      break;
    case Operation::kReduce:
      to.has_bytes = rank == head_.root;
      if (to.has_bytes) to.bytes = common_;
      break;
    default:
      to.bytes = common_;
  }
}

}  // namespace spillway::nccl
