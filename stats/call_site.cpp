#include "stats/call_site.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "stats/native_frame.h"

namespace spillway {
namespace {

// Calls that only pass on to the program's own.
bool only_calls(std::string_view function) {
  constexpr std::array<std::string_view, 5> kCallers = {"_call_impl", "_wrapped_call_impl", "__call__",
                                                        "decorate_context", "wrapper"};
  return std::find(kCallers.begin(), kCallers.end(), function) != kCallers.end();
}

}  // namespace

std::string_view operator_of(std::string_view function) {
  constexpr std::string_view kGenerated = "torch::autograd::generated::";
  constexpr std::string_view kOperators = "at::_ops::";
  if (function.starts_with(kGenerated)) {
    const std::string_view rest = function.substr(kGenerated.size());
    return rest.substr(0, rest.find("::"));
  }
  if (function.starts_with(kOperators)) return function.substr(0, function.find("::", kOperators.size()));
  return {};
}

void CallSite::add(std::string_view function, std::string_view file, int64_t line) {
  if (file.ends_with(".py")) {
    const bool library = file.find("/torch/") != std::string_view::npos || only_calls(function);
    std::string& text = library ? library_ : python_;
    if (text.empty()) text = fmt::format("{} {}:{}", function, file, line);
    return;
  }
  const std::string_view name = operator_of(function);
  // A node of autograd says more than the operator below it.
  if (!name.empty() && (operator_.empty() || !name.starts_with("at::"))) operator_ = name;
  if (native_.empty() && is_programs_own(function, file))
    native_ = native_text(function, file, static_cast<uint64_t>(line));
}

std::string CallSite::text() const {
  for (const std::string* text : {&python_, &library_, &operator_}) {
    if (!text->empty()) return *text;
  }
  return native_;
}

}  // namespace spillway
