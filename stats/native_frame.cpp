#include "stats/native_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace spillway {
namespace {

constexpr std::string_view kUnknown = "??";
constexpr size_t kLongestName = 120;

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_source(std::string_view file) {
  constexpr std::array<std::string_view, 8> kEnds = {".c",  ".cc",  ".cpp", ".cxx",
                                                     ".cu", ".cuh", ".h",   ".hpp"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return file.ends_with(end); });
}

template <size_t count>
bool begins_with_any(std::string_view text, const std::array<std::string_view, count>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view one) { return text.starts_with(one); });
}

// The name without what a compiler adds: the parameters, and what follows them.
std::string_view without_parameters(std::string_view function) {
  constexpr std::string_view kUnnamed = "(anonymous namespace)";
  int depth = 0;
  for (size_t i = 0; i < function.size(); ++i) {
    if (function.substr(i).starts_with(kUnnamed)) i += kUnnamed.size() - 1;
    if (function[i] == '<') ++depth;
    if (function[i] == '>') --depth;
    const bool is_call_operator = function.substr(0, i).ends_with("operator");
    if (function[i] == '(' && depth <= 0 && i > 0 && !is_call_operator) return function.substr(0, i);
  }
  return function;
}

}  // namespace

bool is_programs_own(std::string_view function, std::string_view file) {
  constexpr std::array<std::string_view, 18> kModules = {
      "libcu",    "libnv",    "libspillway", "libtorch", "libc10",     "libpython",
      "python3",  "libc.so",  "libc-",       "libm.so",  "libpthread", "libstdc",
      "libgcc_s", "ld-linux", "libdl",       "libasan",  "libtsan",    "libunwind"};
  // The static runtime is in the program's own file.
  constexpr std::array<std::string_view, 20> kFunctions = {
      "cudaMalloc", "cudaMemPool", "__cuda",      "cudart::",     "libcudart_static_",
      "cuMem",      "std::",       "__gnu_cxx::", "operator new", "thrust::",
      "cub::",      "rmm::",       "cuda::",      "spillway::",   "__libc_start",
      "c10::",      "at::",        "torch::",     "Py",           "_Py"};
  if (base_name(file).empty() || file == kUnknown || begins_with_any(base_name(file), kModules)) return false;
  return function != "_start" && !begins_with_any(function, kFunctions);
}

std::string native_text(std::string_view function, std::string_view file, uint64_t line) {
  const bool has_line = is_source(file);
  std::string place =
      has_line ? fmt::format("{}:{}", base_name(file), line) : fmt::format("{}+{:#x}", base_name(file), line);
  if (function.empty() || function == kUnknown) return place;
  std::string name(without_parameters(function));
  if (name.size() > kLongestName) name = name.substr(0, kLongestName) + "...";
  return has_line ? fmt::format("{} {}", name, place) : fmt::format("{} ({})", name, place);
}

}  // namespace spillway
