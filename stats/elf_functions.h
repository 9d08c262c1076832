// The functions of a file of machine code, those that are not exported included, by its table of symbols: the
// dynamic linker reads the exported ones alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

class ElfFunctions {
 public:
  // Without functions where the file cannot be read, is no ELF of 64 bits, is damaged, or was stripped. Reads
  // the tables and nothing else.
  static ElfFunctions read(const std::string& path);

  struct Found {
    std::string name;     // mangled; empty where no function has the address
    uint64_t offset = 0;  // of the address in it
  };
  // Addresses are those of the file: where it is loaded is taken off.
  Found at(uint64_t address) const;

 private:
  struct Function {
    uint64_t begin = 0;
    uint64_t size = 0;
    uint32_t name = 0;  // where in names_
  };

  std::vector<Function> functions_;  // by address
  std::string names_;
};

}  // namespace spillway
