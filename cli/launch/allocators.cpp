#include "cli/launch/allocators.h"

#include <cstdlib>

namespace spillway {

AllocatorEnvironment::AllocatorEnvironment(const std::string& allocator) {
  ::setenv("SPILLWAY_RUN", allocator == "spillway" ? "full" : "native", 1);
  if (allocator != "expandable") return;
  // The newer of its two names has the last word where both are set.
  const bool has_new_name = std::getenv("PYTORCH_ALLOC_CONF") != nullptr;
  variable_ = has_new_name ? "PYTORCH_ALLOC_CONF" : "PYTORCH_CUDA_ALLOC_CONF";
  std::string settings = "expandable_segments:True";
  if (const char* others = std::getenv(variable_); others != nullptr) {
    before_ = others;
    if (*others != '\0') settings = *before_ + "," + settings;
  }
  ::setenv(variable_, settings.c_str(), 1);
}

AllocatorEnvironment::~AllocatorEnvironment() {
  if (variable_ == nullptr) return;
  if (before_.has_value()) {
    ::setenv(variable_, before_->c_str(), 1);
  } else {
    ::unsetenv(variable_);
  }
}

}  // namespace spillway
