// Declares what RMM's <rmm/error.hpp> does of running out of memory, for tests on machines without RMM: the
// names, how they derive from each other, and that a text follows the name of the error. Nothing else of RMM
// is here.
#pragma once

#include <new>
#include <string>

namespace rmm {

class bad_alloc : public std::bad_alloc {
 public:
  explicit bad_alloc(const std::string& text) : text_("std::bad_alloc: " + text) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

class out_of_memory : public bad_alloc {
 public:
  explicit out_of_memory(const std::string& text) : bad_alloc("out_of_memory: " + text) {}
};

}  // namespace rmm
