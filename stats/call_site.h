// The line of a stack by which people know it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

// "MmBackward0" of "torch::autograd::generated::MmBackward0::apply(...)", "at::_ops::mm" of
// "at::_ops::mm::call"; empty of others.
std::string_view operator_of(std::string_view function);

// The first of the program's own Python code, else one of PyTorch's, else the operator, else the first of the
// program's own C++ code.
class CallSite {
 public:
  // Innermost frame first.
  void add(std::string_view function, std::string_view file, int64_t line);
  // Empty where no frame says anything.
  std::string text() const;

 private:
  std::string python_, library_, operator_, native_;
};

}  // namespace spillway
