#include "stats/elf_functions.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace spillway {
namespace {

constexpr uint64_t kMostTableBytes = uint64_t{512} << 20;

// Reads whole tables; nothing where the file ends before.
template <typename Row>
std::vector<Row> rows_at(std::ifstream& file, uint64_t offset, uint64_t bytes) {
  std::vector<Row> rows;
  if (bytes > kMostTableBytes || offset > INT64_MAX) return rows;
  file.clear();
  file.seekg(0, std::ios::end);
  const auto end = static_cast<uint64_t>(std::max<std::streamoff>(file.tellg(), 0));
  if (offset > end || bytes > end - offset) return rows;
  rows.resize(bytes / sizeof(Row));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(rows.data()), static_cast<std::streamsize>(rows.size() * sizeof(Row)));
  if (!file) rows.clear();
  return rows;
}

std::vector<Elf64_Shdr> sections_of(std::ifstream& file) {
  const std::vector<Elf64_Ehdr> header = rows_at<Elf64_Ehdr>(file, 0, sizeof(Elf64_Ehdr));
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      header[0].e_ident[EI_CLASS] != ELFCLASS64 || header[0].e_shentsize != sizeof(Elf64_Shdr))
    return {};
  return rows_at<Elf64_Shdr>(file, header[0].e_shoff, uint64_t{header[0].e_shnum} * sizeof(Elf64_Shdr));
}

}  // namespace

ElfFunctions ElfFunctions::read(const std::string& path) {
  ElfFunctions out;
  std::ifstream file(path, std::ios::binary);
  if (!file) return out;
  const std::vector<Elf64_Shdr> sections = sections_of(file);
  const auto table = std::find_if(sections.begin(), sections.end(),
                                  [](const Elf64_Shdr& section) { return section.sh_type == SHT_SYMTAB; });
  if (table == sections.end() || table->sh_link >= sections.size()) return out;
  const Elf64_Shdr& names = sections[table->sh_link];
  const std::vector<char> letters = rows_at<char>(file, names.sh_offset, names.sh_size);
  for (const Elf64_Sym& symbol : rows_at<Elf64_Sym>(file, table->sh_offset, table->sh_size)) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF ||
        symbol.st_name >= letters.size())
      continue;
    out.functions_.push_back({symbol.st_value, symbol.st_size, symbol.st_name});
  }
  out.names_.assign(letters.begin(), letters.end());
  std::sort(out.functions_.begin(), out.functions_.end(),
            [](const Function& a, const Function& b) { return a.begin < b.begin; });
  return out;
}

ElfFunctions::Found ElfFunctions::at(uint64_t address) const {
  auto after = std::upper_bound(functions_.begin(), functions_.end(), address,
                                [](uint64_t value, const Function& one) { return value < one.begin; });
  if (after == functions_.begin()) return {};
  const Function& found = *--after;
  if (address - found.begin >= std::max<uint64_t>(found.size, 1)) return {};
  return {names_.c_str() + found.name, address - found.begin};
}

}  // namespace spillway
