// PyTorch's own error for want of memory, c10::OutOfMemoryError, thrown without PyTorch's headers: one
// library serves every release, and programs without a compiler. Why it is made like this:
// docs/decisions/torch-error.md.
#pragma once

#include <string>

namespace spillway {

// Takes the parts of the error, as spw_torch_throw_as() has them. They are looked at, and the constructor is
// tried once; where anything is not as it must be, the error stays a std::runtime_error, as it does with
// NULL.
void throw_torch_error_as(const void* vtable, void* construct) noexcept;

[[noreturn]] void throw_out_of_memory(const std::string& text);

}  // namespace spillway
