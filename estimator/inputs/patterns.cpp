#include "estimator/inputs/patterns.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include <fmt/format.h>

namespace spillway::estimator {
namespace {

constexpr int64_t kMostRepeats = 1000;

Status bad(std::string_view what, std::string_view text, std::string_view allowed) {
  return Status::invalid_argument(fmt::format("{}: '{}' is not allowed; allowed: {}", what, text, allowed));
}

// The number at the front of `rest`, which is cut off; negative where there is none or it is absurd.
int64_t take_number(std::string_view& rest) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc() || value > kMostRepeats) return -1;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return value;
}

bool take(std::string_view& rest, char wanted) {
  if (rest.empty() || rest.front() != wanted) return false;
  rest.remove_prefix(1);
  return true;
}

// Reads what follows one item, written as often as a "*n" behind it says.
std::string repeated(std::string item, std::string_view& rest, bool& ok) {
  if (!take(rest, '*')) return item;
  const int64_t times = take_number(rest);
  if (times < 0) {
    ok = false;
    return item;
  }
  std::string out;
  for (int64_t i = 0; i < times; ++i) out += item;
  return out;
}

}  // namespace

Result<std::vector<bool>> parse_layer_frequency(std::string_view text, int64_t layers) {
  constexpr const char* kAllowed = "a number of layers, or a sum of lists of 0 and 1 such as ([0]*3+[1]*13)";
  std::vector<bool> out;
  std::string_view rest = text;
  if (const int64_t every = take_number(rest); every > 0 && rest.empty()) {
    for (int64_t i = 0; i < layers; ++i) out.push_back(i % every == 0);
    return out;
  }
  std::string compact(text);
  compact.erase(
      std::remove_if(compact.begin(), compact.end(), [](char c) { return c == '(' || c == ')' || c == ' '; }),
      compact.end());
  rest = compact;
  while (!rest.empty()) {
    std::vector<bool> part;
    if (!take(rest, '[')) return bad("moe-layer-freq", text, kAllowed);
    do {
      const int64_t value = take_number(rest);
      if (value != 0 && value != 1) return bad("moe-layer-freq", text, kAllowed);
      part.push_back(value == 1);
    } while (take(rest, ','));
    if (!take(rest, ']')) return bad("moe-layer-freq", text, kAllowed);
    const int64_t times = take(rest, '*') ? take_number(rest) : 1;
    if (times < 0) return bad("moe-layer-freq", text, kAllowed);
    for (int64_t i = 0; i < times; ++i) out.insert(out.end(), part.begin(), part.end());
    if (!rest.empty() && !take(rest, '+')) return bad("moe-layer-freq", text, kAllowed);
  }
  if (static_cast<int64_t>(out.size()) != layers) {
    return Status::invalid_argument(
        fmt::format("moe-layer-freq: '{}' names {} layers, the model has {}", text, out.size(), layers));
  }
  return out;
}

Result<std::string> expand_layout(std::string_view text) {
  std::string clean(text);
  clean.erase(std::remove(clean.begin(), clean.end(), '\\'), clean.end());
  std::string_view rest = clean;
  std::string out;
  bool ok = true;
  while (!rest.empty() && ok) {
    if (take(rest, '(')) {
      const size_t end = rest.find(')');
      if (end == std::string_view::npos) break;
      std::string group(rest.substr(0, end));
      rest.remove_prefix(end + 1);
      out += repeated(std::move(group), rest, ok);
      continue;
    }
    if (std::string_view("EtmL|").find(rest.front()) == std::string_view::npos) break;
    std::string item(1, rest.front());
    rest.remove_prefix(1);
    out += repeated(std::move(item), rest, ok);
  }
  if (!rest.empty() || !ok) {
    return bad("pipeline-model-parallel-layout", text, "E, t, m, L, | with (...)*n, such as Et*3|(tt|)*6tL");
  }
  return out;
}

std::vector<std::string> listed_words(std::string text) {
  for (char& c : text) {
    if (std::string_view("[](),'\"").find(c) != std::string_view::npos) c = ' ';
  }
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

std::vector<std::string> split_stages(std::string_view text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == '|') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

}  // namespace spillway::estimator
