// Where this command lies: its other programs lie beside it.
#pragma once

#include <filesystem>
#include <system_error>

namespace spillway {

// Empty where the kernel does not say.
inline std::filesystem::path own_folder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : self.parent_path();
}

}  // namespace spillway
