#include "sim/nccl/store.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace spillway::nccl {
namespace {

std::vector<char> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

// With every number a mark, so that keys of different ranks are alike.
std::string shape_of(const std::string& key) {
  std::string shape;
  for (const char letter : key) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(letter)) != 0;
    if (!is_digit) shape += letter;
    if (is_digit && (shape.empty() || shape.back() != '#')) shape += '#';
  }
  return shape;
}

}  // namespace

bool Store::has(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return values_.count(key) != 0; });
}

std::vector<Store::Answer> Store::call(int process, const Message& message) {
  Message done;
  done.kind = Kind::kDone;
  done.ticket = message.ticket;
  const std::string& key = message.text;
  const auto found = values_.find(key);
  const std::string given(message.bytes.begin(), message.bytes.end());
  switch (message.store) {
    case StoreCall::kSet:
      values_[key] = given;
      break;
    case StoreCall::kAppend:
      values_[key] += given;
      break;
    case StoreCall::kAdd: {
      const int64_t before = found == values_.end() ? 0 : std::atoll(found->second.c_str());
      done.count = static_cast<uint64_t>(before) + message.count;
      values_[key] = std::to_string(static_cast<int64_t>(done.count));
      break;
    }
    case StoreCall::kCompareSet: {
      const std::vector<std::string> values = unpack_list(message.bytes);
      const bool is_absent = found == values_.end();
      if (values.size() == 2 && (is_absent ? values[0].empty() : found->second == values[0]))
        values_[key] = values[1];
      const auto now = values_.find(key);
      done.bytes = now == values_.end() ? bytes_of(values.empty() ? "" : values[0]) : bytes_of(now->second);
      break;
    }
    case StoreCall::kGet:
      waiting_.push_back({process, message.ticket, {key}, true});
      return satisfied();
    case StoreCall::kWait:
      waiting_.push_back({process, message.ticket, unpack_list(message.bytes), false});
      return satisfied();
    case StoreCall::kCheck:
      done.flag = has(unpack_list(message.bytes));
      break;
    case StoreCall::kDelete:
      done.flag = values_.erase(key) != 0;
      break;
    case StoreCall::kCount:
      done.count = values_.size();
      break;
  }
  std::vector<Answer> answers{{process, std::move(done)}};
  for (Answer& answer : satisfied()) answers.push_back(std::move(answer));
  return answers;
}

std::vector<Store::Answer> Store::satisfied() {
  std::vector<Answer> answers;
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (!has(waiting.keys)) return false;
    Message done;
    done.kind = Kind::kDone;
    done.ticket = waiting.ticket;
    if (waiting.gets) done.bytes = bytes_of(values_.at(waiting.keys.front()));
    answers.push_back({waiting.process, std::move(done)});
    return true;
  });
  return answers;
}

std::string Store::like(const std::string& key) const {
  const std::string shape = shape_of(key);
  for (const auto& [other, value] : values_) {
    if (shape_of(other) == shape) return value;
  }
  return "";
}

std::vector<Store::Answer> Store::imagine() {
  for (const std::string& key : waiting_.front().keys) {
    if (values_.count(key) == 0) values_[key] = like(key);
  }
  return satisfied();
}

}  // namespace spillway::nccl
