#include "allocator/call_trace.h"

#include <execinfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "stats/symbol.h"

namespace spillway {
namespace {

std::string describe(void* frame) {
  const Symbol symbol = find_symbol(frame);
  if (symbol.module.empty()) return fmt::format("{}", frame);
  const std::string_view file(symbol.module);
  std::string module = fmt::format("{}+{:#x}", file.substr(file.rfind('/') + 1), symbol.module_offset);
  if (symbol.function.empty()) return module;
  return fmt::format("{}+{:#x} ({})", symbol.function, symbol.function_offset, module);
}

}  // namespace

CallTrace CallTrace::capture(const void* caller) {
  constexpr int kMostInside = 16;  // frames of this library above the caller's
  std::array<void*, kMostInside + kDepth> all{};
  const int captured = backtrace(all.data(), static_cast<int>(all.size()));
  void** const end = all.data() + captured;
  void** first = std::find(all.data(), end, caller);
  if (first == end) first = all.data();
  CallTrace trace;
  trace.count = static_cast<uint32_t>(std::min<ptrdiff_t>(end - first, kDepth));
  std::copy(first, first + trace.count, trace.frames.begin());
  return trace;
}

std::string CallTrace::text(const char* indent) const {
  std::string lines;
  for (uint32_t i = 0; i < count; ++i) lines += fmt::format("{}#{} {}\n", indent, i, describe(frames[i]));
  return lines;
}

}  // namespace spillway
