#include "estimator/inputs/key_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <vector>

namespace spillway::estimator {
namespace {

constexpr int kDeepestName = 20;
constexpr int kMostDigits = 4;  // of a layer's number
// Past this a product of a few would overflow; no width of a model is there.
constexpr double kMostSize = 1e17;

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '|' || c == '-';
}

// Entries of a list as JSON writes it.
std::vector<std::string> entries(const std::string& list) {
  std::vector<std::string> out;
  std::string entry;
  for (const char c : list) {
    if (c == ',' || c == ']') {
      if (!entry.empty()) out.push_back(entry);
      entry.clear();
    } else if (c != '[' && c != '"' && c != ' ' && c != '\'') {
      entry += c;
    }
  }
  return out;
}

}  // namespace

// One expression, read from the left.
class Evaluation {
 public:
  Evaluation(KeyExpressions& in, std::string_view text) : in_(in), whole_(text), rest_(text) {}

  double all() {
    const double value = comparison();
    if (!rest_.empty()) wrong();
    return value;
  }

 private:
  void wrong() {
    in_.values_.complain(fmt::format("a description of a model is no expression: '{}'", whole_));
    rest_ = {};
  }

  bool take(char wanted) {
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  double comparison() {
    const double left = sum();
    if (rest_.substr(0, 2) == "==") return rest_.remove_prefix(2), left == sum();
    if (rest_.substr(0, 2) == "!=") return rest_.remove_prefix(2), left != sum();
    if (rest_.substr(0, 2) == "<=") return rest_.remove_prefix(2), left <= sum();
    if (rest_.substr(0, 2) == ">=") return rest_.remove_prefix(2), left >= sum();
    if (take('<')) return left < sum();
    if (take('>')) return left > sum();
    return left;
  }

  double sum() {
    double value = product();
    while (!rest_.empty() && (rest_.front() == '+' || rest_.front() == '-'))
      value = take('+') ? value + product() : (take('-'), value - product());
    return value;
  }

  double product() {
    double value = factor();
    for (;;) {
      if (take('*')) {
        value *= factor();
      } else if (take('/')) {
        const double by = factor();
        value = by == 0 ? 0 : std::floor(value / by);
      } else if (take('%')) {
        const double by = factor();
        value = by == 0 ? 0 : std::fmod(value, by);
      } else {
        return value;
      }
    }
  }

  double factor() {
    if (take('(')) {
      const double value = comparison();
      if (!take(')')) wrong();
      return value;
    }
    const std::string_view word = name();
    if (word.empty()) return wrong(), 0;
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error == std::errc() && end == word.data() + word.size()) return number;
    if (take('(')) return function(word);
    return key(word);
  }

  std::string_view name() {
    size_t size = 0;
    // A minus belongs to a name only between letters, as in no name here: it is an operator.
    while (size < rest_.size() && is_name(rest_[size]) && rest_[size] != '-') ++size;
    const std::string_view word = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return word;
  }

  std::vector<std::string> words() {
    std::vector<std::string> out;
    do {
      size_t size = 0;
      while (size < rest_.size() && is_name(rest_[size])) ++size;
      out.emplace_back(rest_.substr(0, size));
      rest_.remove_prefix(size);
    } while (take(','));
    if (!take(')')) wrong();
    return out;
  }

  std::vector<double> numbers() {
    std::vector<double> out;
    do out.push_back(comparison());
    while (take(','));
    if (!take(')')) wrong();
    return out;
  }

  double function(std::string_view name) {
    if (name == "if") return choice();
    if (name == "min" || name == "max" || name == "ceil") return arithmetic(name, numbers());
    const std::vector<std::string> given = words();
    const std::string key = first_of(given.front());
    const std::string text = in_.values_.text(key, "");
    if (name == "has") return in_.values_.has(key) && text != "null" ? 1 : 0;
    const auto is_word = [&](const std::string& what) {
      return std::find(given.begin() + 1, given.end(), what) != given.end();
    };
    if (name == "is") return is_word(text) ? 1 : 0;
    if (name == "says")
      return std::any_of(given.begin() + 1, given.end(),
                         [&](const std::string& word) { return text.find(word) != std::string::npos; });
    if (name == "own") return own(given.front());
    if (name == "has_section") return has_section(key) ? 1 : 0;
    const auto known = in_.lists_.find(key);
    const std::vector<std::string>& list =
        known != in_.lists_.end() ? known->second : in_.lists_.emplace(key, entries(text)).first->second;
    const auto layer = static_cast<size_t>(in_.evaluate("layer"));
    if (name == "each") {
      if (list.empty()) return key_value(key, text);
      return key_value(key, layer < list.size() ? list[layer] : "null");
    }
    if (name == "before") {
      const auto end = list.begin() + static_cast<std::ptrdiff_t>(std::min(layer, list.size()));
      return static_cast<double>(std::count_if(list.begin(), end, is_word));
    }
    if (name == "count" && given.size() > 1)
      return static_cast<double>(std::count_if(list.begin(), list.end(), is_word));
    if (name == "count") return static_cast<double>(list.size());
    if (name == "at") return layer < list.size() && is_word(list[layer]) ? 1 : 0;
    if (name == "in") return std::find(list.begin(), list.end(), std::to_string(layer)) != list.end() ? 1 : 0;
    return wrong(), 0;
  }

  bool has_section(const std::string& section) {
    in_.values_.pass(section);
    return in_.values_.has(section) || in_.values_.has_any(section + ".");
  }

  // Layers' numbers have as many digits as the last one's (HeterogeneousConfigMixin of transformers 5).
  double own(const std::string& name) {
    const std::string section = in_.prefix_ + "per_layer_config.";
    std::string layer = std::to_string(in_.evaluate("layer"));
    for (int digits = 0; digits < kMostDigits; ++digits, layer.insert(0, 1, '0')) {
      const std::string key = fmt::format("{}{}.{}", section, layer, name);
      if (in_.values_.has(key)) return key_value(key, in_.values_.text(key, "null"));
    }
    return key(name);
  }

  // What is not chosen is not evaluated: it may need keys that the file has no reason to have.
  double choice() {
    const bool yes = comparison() != 0;
    if (!take(',')) return wrong(), 0;
    const std::string_view first = argument();
    if (!take(',')) return wrong(), 0;
    const std::string_view second = argument();
    if (!take(')')) return wrong(), 0;
    return Evaluation(in_, yes ? first : second).all();
  }

  // Text up to the comma or parenthesis that ends it.
  std::string_view argument() {
    size_t size = 0;
    for (int open = 0; size < rest_.size(); ++size) {
      const char c = rest_[size];
      if (open == 0 && (c == ',' || c == ')')) break;
      open += c == '(' ? 1 : c == ')' ? -1 : 0;
    }
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }

  double arithmetic(std::string_view name, const std::vector<double>& given) {
    if (given.size() != 2) return wrong(), 0;
    if (name == "min") return std::min(given[0], given[1]);
    if (name == "max") return std::max(given[0], given[1]);
    return given[1] == 0 ? 0 : std::ceil(given[0] / given[1]);
  }

  // Returns, of several names, the one that the file has: one that is null only where no other is there.
  std::string first_of(std::string_view names) const {
    std::string first, null;
    while (!names.empty()) {
      const size_t end = std::min(names.find('|'), names.size());
      std::string key = in_.prefix_ + std::string(names.substr(0, end));
      const bool is_there = in_.values_.has(key);
      if (is_there && in_.values_.text(key, "null") != "null") return key;
      if (is_there && null.empty()) null = key;
      if (first.empty()) first = key;
      names.remove_prefix(std::min(names.size(), end + 1));
    }
    return null.empty() ? first : null;
  }

  double key(std::string_view names) {
    if (const auto named = in_.names_.find(std::string(names)); named != in_.names_.end()) {
      if (in_.depth_ > kDeepestName) return wrong(), 0;
      ++in_.depth_;
      const double value = Evaluation(in_, named->second).all();
      --in_.depth_;
      return value;
    }
    const std::string key = first_of(names);
    const bool has_default = take(':');
    const double otherwise = has_default ? factor() : 0;
    const std::string text = in_.values_.text(key, "null");
    if (text == "null" && has_default) {
      if (otherwise != 0) in_.values_.assume(key, fmt::format("{}", otherwise));
      return otherwise;
    }
    return key_value(key, text);
  }

  double key_value(const std::string& key, const std::string& text) {
    if (text == "true" || text == "True") return 1;
    if (text == "false" || text == "False") return 0;
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole =
        error == std::errc() && end == text.data() + text.size() && std::floor(number) == number;
    if (whole && number >= 0 && number <= static_cast<double>(KeyValues::kMostEntries)) return number;
    if (text == "null") {
      in_.values_.complain(
          fmt::format("{}: missing; allowed: whole numbers from 0 to {}", key, KeyValues::kMostEntries));
    } else {
      in_.values_.complain(fmt::format("{}: '{}' is not allowed; allowed: whole numbers from 0 to {}", key,
                                       text, KeyValues::kMostEntries));
    }
    return 1;
  }

  KeyExpressions& in_;
  std::string_view whole_, rest_;
};

int64_t KeyExpressions::evaluate(std::string_view expression) {
  const double value = Evaluation(*this, expression).all();
  if (std::isfinite(value) && std::abs(value) <= kMostSize) return static_cast<int64_t>(value);
  values_.complain(fmt::format("{}: sizes of more than any machine holds", prefix_));
  return 1;
}

}  // namespace spillway::estimator
