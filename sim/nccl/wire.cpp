#include "sim/nccl/wire.h"

#include <algorithm>
#include <cstring>

namespace spillway::nccl {

std::vector<char> pack_list(const std::vector<std::string>& items) {
  std::vector<char> packed;
  for (const std::string& item : items) {
    const uint64_t length = item.size();
    const char* head = reinterpret_cast<const char*>(&length);
    packed.insert(packed.end(), head, head + sizeof length);
    packed.insert(packed.end(), item.begin(), item.end());
  }
  return packed;
}

std::vector<std::string> unpack_list(const std::vector<char>& bytes) {
  std::vector<std::string> items;
  uint64_t length = 0;
  for (size_t at = 0; at + sizeof length <= bytes.size(); at += length) {
    std::memcpy(&length, bytes.data() + at, sizeof length);
    at += sizeof length;
    if (length > bytes.size() - at) break;
    items.emplace_back(bytes.data() + at, length);
  }
  return items;
}

std::vector<char> pack(const Message& message) {
  Head head = message;
  head.text_bytes = message.text.size();
  head.payload_bytes = message.bytes.size();
  std::vector<char> packed(sizeof head + message.text.size() + message.bytes.size());
  std::memcpy(packed.data(), &head, sizeof head);
  char* at = packed.data() + sizeof head;
  at = std::copy(message.text.begin(), message.text.end(), at);
  std::copy(message.bytes.begin(), message.bytes.end(), at);
  return packed;
}

void Unpacker::add(const char* data, size_t bytes) {
  if (taken_ > 0 && taken_ == arrived_.size()) {
    arrived_.clear();
    taken_ = 0;
  }
  arrived_.insert(arrived_.end(), data, data + bytes);
}

std::optional<Message> Unpacker::next() {
  if (arrived_.size() - taken_ < sizeof(Head)) return std::nullopt;
  Message message;
  std::memcpy(static_cast<Head*>(&message), arrived_.data() + taken_, sizeof(Head));
  const size_t whole = sizeof(Head) + message.text_bytes + message.payload_bytes;
  if (arrived_.size() - taken_ < whole) return std::nullopt;
  const char* at = arrived_.data() + taken_ + sizeof(Head);
  message.text.assign(at, message.text_bytes);
  message.bytes.assign(at + message.text_bytes, at + message.text_bytes + message.payload_bytes);
  taken_ += whole;
  if (taken_ > (size_t{1} << 20)) {
    arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
  }
  return message;
}

}  // namespace spillway::nccl
