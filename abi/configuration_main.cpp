// Prints the page on options: `spillway_configuration > docs/configuration.md`.
#include <cstdio>

#include "abi/config.h"

int main() {
  const std::string& page = spillway::configuration_page();
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : 1;
}
