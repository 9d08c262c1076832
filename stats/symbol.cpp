#include "stats/symbol.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <memory>

namespace spillway {
namespace {

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                    std::free);
  return name != nullptr ? name.get() : symbol;
}

}  // namespace

Symbol find_symbol(const void* address) {
  Symbol symbol;
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return symbol;
  const auto at = reinterpret_cast<uintptr_t>(address);
  symbol.module = info.dli_fname;
  symbol.module_offset = at - reinterpret_cast<uintptr_t>(info.dli_fbase);
  if (info.dli_sname == nullptr) return symbol;
  symbol.function = demangled(info.dli_sname);
  symbol.function_offset = at - reinterpret_cast<uintptr_t>(info.dli_saddr);
  return symbol;
}

StackFrame named_frame(const StackFrame& frame) {
  if (frame.address == 0) return frame;
  // A return address is that of the next call's beginning, which may be another function's.
  const Symbol symbol = find_symbol(reinterpret_cast<const void*>(frame.address - 1));
  return {0, symbol.function.empty() ? "??" : symbol.function, symbol.module, symbol.module_offset};
}

}  // namespace spillway
