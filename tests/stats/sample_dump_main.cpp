// Prints a dump, for the test of the schema.
#include "tests/support/sample_dump.h"

#include <cstdio>

int main() {
  const std::string text = spillway::dump_to_json(spillway::sample_dump());
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}
