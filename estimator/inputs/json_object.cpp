#include "estimator/inputs/json_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 64;

// Returns what stands where parsing ended, as far as it can be printed.
std::string place_of(const std::string& text, size_t byte) {
  constexpr size_t kShown = 20;
  const size_t at = std::min(text.size(), byte == 0 ? 0 : byte - 1);
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  std::string shown = text.substr(at, kShown);
  const auto unprintable =
      std::find_if(shown.begin(), shown.end(), [](unsigned char c) { return std::isprint(c) == 0; });
  shown.erase(unprintable, shown.end());
  return shown.empty() ? fmt::format("line {}", line) : fmt::format("line {} at '{}'", line, shown);
}

}  // namespace

namespace {

// Python writes an infinite limit as a word that JSON does not have; nobody reads one.
std::string without_infinity(std::string text) {
  constexpr std::string_view kWord = "Infinity";
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (quoted && text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      quoted = !quoted;
    } else if (!quoted && text.compare(at, kWord.size(), kWord) == 0) {
      const size_t start = at > 0 && text[at - 1] == '-' ? at - 1 : at;
      text.replace(start, at + kWord.size() - start,
                   std::string("null").append(at + kWord.size() - start - 4, ' '));
    }
  }
  return text;
}

}  // namespace

Result<Json> read_json_object(const std::string& written) {
  const std::string text =
      written.find("Infinity") == std::string::npos ? written : without_infinity(written);
  bool too_deep = false;
  const Json::parser_callback_t shallow = [&](int depth, Json::parse_event_t, const Json&) {
    too_deep = too_deep || depth > kDeepest;
    return !too_deep;
  };
  try {
    Json root = Json::parse(text, shallow);
    if (too_deep) return Status::invalid_argument(fmt::format("nested deeper than {} levels", kDeepest));
    if (!root.is_object()) return Status::invalid_argument("not a JSON object");
    return root;
  } catch (const Json::parse_error& error) {
    return Status::invalid_argument(fmt::format("not a JSON object: {}", place_of(text, error.byte)));
  } catch (const Json::exception&) {
    return Status::invalid_argument("not a JSON object: a number that is too large");
  }
}

}  // namespace spillway::estimator
