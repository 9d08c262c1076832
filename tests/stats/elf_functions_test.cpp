#include "stats/elf_functions.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "stats/symbol.h"
#include "tests/support/folder.h"

namespace spillway {
namespace {

// Not exported, as the functions of most programs are.
[[gnu::noinline]] int not_exported(int value) {
  asm volatile("" : "+r"(value));
  return value + 1;
}

uint64_t address_of_it() {
  return reinterpret_cast<uint64_t>(&not_exported);
}

TEST(ElfFunctions, NameWhatIsNotExported) {
  ASSERT_EQ(not_exported(1), 2);
  const StackFrame named = named_frame({address_of_it() + 2, {}, {}, 0});
  EXPECT_NE(named.function.find("not_exported(int)"), std::string::npos) << named.function;
  EXPECT_FALSE(named.file.empty());
}

TEST(ElfFunctions, NoAddressOutsideHasAName) {
  const ElfFunctions own = ElfFunctions::read("/proc/self/exe");
  EXPECT_EQ(own.at(0).name, "");
  EXPECT_EQ(own.at(UINT64_MAX).name, "");
}

TEST(ElfFunctions, OfWhatIsNoElfThereAreNone) {
  const test::Folder folder;
  const std::string path = folder.path() + "/file";
  EXPECT_EQ(ElfFunctions::read(path).at(1).name, "") << "there is none";
  EXPECT_EQ(ElfFunctions::read(folder.path()).at(1).name, "") << "a folder";
  std::ofstream(path) << "#!/bin/sh\n";
  EXPECT_EQ(ElfFunctions::read(path).at(1).name, "");
}

// Wherever a file is cut, and whatever its header says.
TEST(ElfFunctions, DamageIsNoTrouble) {
  const test::Folder folder;
  const std::string path = folder.path() + "/file";
  std::ifstream self("/proc/self/exe", std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(self), {});
  for (const size_t bytes : {size_t{4}, size_t{63}, size_t{64}, size_t{4096}, whole.size() - 1}) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, bytes);
    (void)ElfFunctions::read(path).at(address_of_it());
  }
  const std::string beginning = whole.substr(0, 4096);
  for (size_t at = 0; at < 64; ++at) {
    std::string damaged = beginning;
    damaged[at] = static_cast<char>(0xff);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_EQ(ElfFunctions::read(path).at(1).name, "");
  }
}

}  // namespace
}  // namespace spillway
