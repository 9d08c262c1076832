// Named values as text, read with checks. The first complaint is kept and every later read answers with its
// default, so that a reader asks for all it needs and looks at status() once. A complaint names key, value
// and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"

namespace spillway::estimator {

class KeyValues {
 public:
  explicit KeyValues(std::map<std::string, std::string> values) : values_(std::move(values)) {}

  // True also for a key that was offered.
  bool has(const std::string& key) const;
  // True for a key that the file says, not for one that was offered.
  bool is_said(const std::string& key) const { return values_.count(key) != 0; }
  // Counts a key as read that changes nothing.
  void pass(const std::string& key) { read_.insert(key); }
  // A value for a key that is not there, which counts as a default where it is read.
  void offer(const std::string& key, const std::string& value);
  // A key that begins with `start`; none counts as read.
  bool has_any(const std::string& start) const;
  int64_t whole(const std::string& key, int64_t otherwise, int64_t least = 1, int64_t most = kMost);
  double number(const std::string& key, double otherwise, double least, double most);
  // True for "true", "1" and a key without a value. That it is not there is no default, but says no.
  bool flag(const std::string& key, bool otherwise = false);
  // The same for a key with a default.
  bool truth(const std::string& key, bool otherwise = false);
  std::string text(const std::string& key, const std::string& otherwise);
  std::string choice(const std::string& key, const std::string& otherwise,
                     std::initializer_list<const char*> allowed);

  // As whole(), for a key that must be there.
  int64_t required(const std::string& key, int64_t least = 1, int64_t most = kMost);

  // A default that was used; the first word on a key counts.
  void assume(const std::string& key, const std::string& value);

  void complain(std::string text);
  Status status() const;

  // The value of a key, which does not count as read; empty where it is not there.
  std::string peek(const std::string& key) const;
  // How many keys begin with `start`; they count as read.
  int64_t count(const std::string& start);

  // Keys that somebody has asked for, whether they are there or not.
  std::vector<std::string_view> asked() const { return {read_.begin(), read_.end()}; }
  // Keys nobody has asked for.
  std::vector<std::string> unread() const;
  // Defaults that were used, as "key = value".
  const std::vector<std::string>& assumed() const { return assumed_; }

  // Past this no width of a model means anything, and products of three widths still fit 64 bits.
  static constexpr int64_t kMost = int64_t{1} << 20;
  // Lengths and tables have at most so many.
  static constexpr int64_t kMostEntries = int64_t{1} << 24;

 private:
  const std::string* find(const std::string& key);

  std::map<std::string, std::string> values_;
  std::map<std::string, std::string> offered_;
  std::set<std::string> read_;
  std::set<std::string> defaulted_;
  std::vector<std::string> assumed_;
  std::string complaint_;
};

}  // namespace spillway::estimator
