#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace spillway {

ScreenSize screen_size() {
  ScreenSize size;
  winsize found{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &found) == 0 && found.ws_col > 0) {
    size.columns = found.ws_col;
    size.rows = std::max<size_t>(found.ws_row, 1);
  } else if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
    const long wanted = std::strtol(columns, nullptr, 10);
    if (wanted > 0 && wanted < 10000) size.columns = static_cast<size_t>(wanted);
  }
  return size;
}

bool is_terminal() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

bool has_colours() {
  const char* no_colour = std::getenv("NO_COLOR");
  return is_terminal() && (no_colour == nullptr || *no_colour == '\0');
}

}  // namespace spillway
