#include "stats/symbol.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "stats/elf_functions.h"
#include "stats/lock.h"

namespace spillway {
namespace {

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                    std::free);
  return name != nullptr ? name.get() : symbol;
}

// The tables of files that were asked for stay: dumps are written again and again.
ElfFunctions::Found unexported(const std::string& path, uint64_t address) {
  struct Read {
    BlockingMutex mutex;
    std::map<std::string, ElfFunctions> files SPW_GUARDED_BY(mutex);
  };
  static Read& read = *new Read;
  const Lock lock(read.mutex);
  auto found = read.files.find(path);
  if (found == read.files.end()) found = read.files.emplace(path, ElfFunctions::read(path)).first;
  return found->second.at(address);
}

}  // namespace

Symbol find_symbol(const void* address) {
  Symbol symbol;
  Dl_info info{};
  link_map* map = nullptr;
  if (dladdr1(address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 ||
      info.dli_fname == nullptr || map == nullptr)
    return symbol;
  const auto at = reinterpret_cast<uintptr_t>(address);
  symbol.module = info.dli_fname;
  symbol.module_offset = at - map->l_addr;
  if (info.dli_sname != nullptr) {
    symbol.function = demangled(info.dli_sname);
    symbol.function_offset = at - reinterpret_cast<uintptr_t>(info.dli_saddr);
    return symbol;
  }
  // The program's own file has no name there, and the one it was started by may be relative.
  const bool is_program = map->l_name == nullptr || *map->l_name == '\0';
  const ElfFunctions::Found found =
      unexported(is_program ? "/proc/self/exe" : map->l_name, symbol.module_offset);
  if (!found.name.empty()) symbol.function = demangled(found.name.c_str());
  symbol.function_offset = found.offset;
  return symbol;
}

StackFrame named_frame(const StackFrame& frame) {
  if (frame.address == 0) return frame;
  // A return address is that of the next call's beginning, which may be another function's.
  const Symbol symbol = find_symbol(reinterpret_cast<const void*>(frame.address - 1));
  return {0, symbol.function.empty() ? "??" : symbol.function, symbol.module, symbol.module_offset};
}

}  // namespace spillway
