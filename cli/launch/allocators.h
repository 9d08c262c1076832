// The allocators on which a dry run runs a program.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace spillway {

inline const std::vector<std::string> kDryrunAllocators = {"spillway", "native", "expandable"};

// While it lives, the environment has what makes PyTorch take this one: the program's own settings of
// PyTorch's allocator stay, and expandable segments are added to them where they are asked for.
class AllocatorEnvironment {
 public:
  explicit AllocatorEnvironment(const std::string& allocator);
  AllocatorEnvironment(const AllocatorEnvironment&) = delete;
  AllocatorEnvironment& operator=(const AllocatorEnvironment&) = delete;
  ~AllocatorEnvironment();

 private:
  const char* variable_ = nullptr;  // that was changed
  std::optional<std::string> before_;
};

}  // namespace spillway
