#include "estimator/inputs/model_descriptions.h"

#include <algorithm>

#include "estimator/inputs/described_model.h"

namespace spillway::estimator {
namespace {

std::vector<std::string_view> all_descriptions() {
  std::vector<std::string_view> out = encoder_descriptions();
  for (const auto& more : {decoder_descriptions(), vision_descriptions()})
    out.insert(out.end(), more.begin(), more.end());
  return out;
}

std::string_view types_of(std::string_view description) {
  const std::string_view line = description.substr(0, description.find('\n'));
  return line.substr(line.find(' ') + 1);
}

// Calls `visit` with each type until it answers true.
template <typename Visit>
void each_type(std::string_view description, Visit&& visit) {
  std::string_view types = types_of(description);
  while (!types.empty()) {
    const size_t end = std::min(types.find(' '), types.size());
    if (visit(types.substr(0, end))) return;
    types.remove_prefix(std::min(types.size(), end + 1));
  }
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    if (end > 0) out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return out;
}

std::string_view find_description(std::string_view type) {
  std::string_view found;
  for (const auto& descriptions : {all_descriptions(), tower_descriptions()}) {
    for (const std::string_view description : descriptions) {
      each_type(description, [&](std::string_view each) {
        if (each == type) found = description;
        return each == type;
      });
    }
  }
  return found.empty() ? found : found.substr(found.find('\n') + 1);
}

std::vector<std::string_view> described_types() {
  std::vector<std::string_view> out;
  for (const std::string_view description : all_descriptions()) {
    each_type(description, [&](std::string_view each) {
      out.push_back(each);
      return false;
    });
  }
  return out;
}

}  // namespace spillway::estimator
