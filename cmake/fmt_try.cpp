// Formats a little of everything, to find out whether cmake/fmt.cpp fits this release of fmt.
#include <fmt/format.h>

#include <string>

int main() {
  fmt::print("{:.3f} {} {:>10} {:L} {:e} {} {:#x}\n", 1.5, 3, "a", 255, 2.5F, std::string("x"), 255);
  return fmt::format("{:+.2g} {}", 3.25, true).empty() ? 1 : 0;
}
