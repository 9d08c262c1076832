// The terminal that an answer is shown on.
#pragma once

#include <cstddef>

namespace spillway {

struct ScreenSize {
  size_t columns = 80;
  size_t rows = 24;
};

// Returns what the terminal says; where stdout is none, COLUMNS, or 80.
ScreenSize screen_size();
// Tells whether stdout is a terminal that moves its cursor.
bool is_terminal();
// Tells whether it is to have colours: NO_COLOR (no-color.org) turns them off.
bool has_colours();

}  // namespace spillway
