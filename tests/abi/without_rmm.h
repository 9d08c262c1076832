// A source of the program that was compiled without RMM.
#pragma once

#include <string>

namespace spillway::test {

// The text of the error that it catches, where the header has it thrown: the library's alone. The call is the
// linker's, as where nothing is inlined.
std::string caught_without_rmm();

}  // namespace spillway::test
