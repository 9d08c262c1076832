#include "allocator/call_trace.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace spillway {
namespace {

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                    std::free);
  return name != nullptr ? name.get() : symbol;
}

std::string describe(void* frame) {
  Dl_info info{};
  if (dladdr(frame, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", frame);
  const auto address = reinterpret_cast<uintptr_t>(frame);
  const std::string_view file(info.dli_fname);
  std::string module = fmt::format("{}+{:#x}", file.substr(file.rfind('/') + 1),
                                   address - reinterpret_cast<uintptr_t>(info.dli_fbase));
  if (info.dli_sname == nullptr) return module;
  return fmt::format("{}+{:#x} ({})", demangled(info.dli_sname),
                     address - reinterpret_cast<uintptr_t>(info.dli_saddr), module);
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
