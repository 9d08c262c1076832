#include "estimator/inputs/key_values.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "estimator/inputs/nearest.h"

namespace spillway::estimator {

bool KeyValues::has_any(const std::string& start) const {
  const auto at = values_.lower_bound(start);
  return at != values_.end() && at->first.rfind(start, 0) == 0;
}

bool KeyValues::has(const std::string& key) const {
  return values_.count(key) != 0 || offered_.count(key) != 0;
}

void KeyValues::offer(const std::string& key, const std::string& value) {
  if (values_.count(key) == 0) offered_.emplace(key, value);
}

const std::string* KeyValues::find(const std::string& key) {
  read_.insert(key);
  const auto found = values_.find(key);
  if (found != values_.end()) return &found->second;
  const auto offered = offered_.find(key);
  if (offered == offered_.end()) return nullptr;
  assume(key, offered->second);
  return &offered->second;
}

int64_t KeyValues::whole(const std::string& key, int64_t otherwise, int64_t least, int64_t most) {
  const std::string* text = find(key);
  if (text == nullptr) {
    assume(key, fmt::format("{}", otherwise));
    return otherwise;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    complain(fmt::format("{}: '{}' is not allowed; allowed: whole numbers from {} to {}", key, *text, least,
                         most));
    return otherwise;
  }
  return value;
}

int64_t KeyValues::required(const std::string& key, int64_t least, int64_t most) {
  if (!has(key)) complain(fmt::format("{}: missing; allowed: whole numbers from {} to {}", key, least, most));
  return whole(key, least, least, most);
}

double KeyValues::number(const std::string& key, double otherwise, double least, double most) {
  const std::string* text = find(key);
  if (text == nullptr) {
    assume(key, fmt::format("{}", otherwise));
    return otherwise;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  const bool parsed = error == std::errc() && end == text->data() + text->size() && std::isfinite(value);
  if (!parsed || value < least || value > most) {
    complain(fmt::format("{}: '{}' is not allowed; allowed: numbers from {} to {}", key, *text, least, most));
    return otherwise;
  }
  return value;
}

void KeyValues::assume(const std::string& key, const std::string& value) {
  if (defaulted_.insert(key).second) assumed_.push_back(fmt::format("{} = {}", key, value));
}

bool KeyValues::truth(const std::string& key, bool otherwise) {
  if (!has(key)) assume(key, otherwise ? "true" : "false");
  return flag(key, otherwise);
}

bool KeyValues::flag(const std::string& key, bool otherwise) {
  const std::string* text = find(key);
  if (text == nullptr) return otherwise;
  if (text->empty() || *text == "true" || *text == "True" || *text == "1") return true;
  if (*text == "false" || *text == "False" || *text == "0") return false;
  complain(fmt::format("{}: '{}' is not allowed; allowed: true, false", key, *text));
  return otherwise;
}

std::string KeyValues::text(const std::string& key, const std::string& otherwise) {
  const std::string* text = find(key);
  return text == nullptr ? otherwise : *text;
}

std::string KeyValues::choice(const std::string& key, const std::string& otherwise,
                              std::initializer_list<const char*> allowed) {
  const std::string* text = find(key);
  if (text == nullptr) {
    assume(key, fmt::format("{}", otherwise));
    return otherwise;
  }
  for (const char* word : allowed) {
    if (*text == word) return *text;
  }
  complain(fmt::format("{}: '{}' is not allowed; allowed: {}{}", key, *text, fmt::join(allowed, ", "),
                       did_you_mean(*text, {allowed.begin(), allowed.end()})));
  return otherwise;
}

std::string KeyValues::peek(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::string() : found->second;
}

int64_t KeyValues::count(const std::string& start) {
  int64_t found = 0;
  for (auto at = values_.lower_bound(start); at != values_.end() && at->first.rfind(start, 0) == 0; ++at) {
    read_.insert(at->first);
    ++found;
  }
  return found;
}

void KeyValues::complain(std::string text) {
  if (complaint_.empty()) complaint_ = std::move(text);
}

Status KeyValues::status() const {
  return complaint_.empty() ? Status() : Status::invalid_argument(complaint_);
}

std::vector<std::string> KeyValues::unread() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : values_) {
    if (read_.count(key) == 0) out.push_back(key);
  }
  return out;
}

}  // namespace spillway::estimator
