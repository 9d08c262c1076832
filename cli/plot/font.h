// The font of pictures, which is part of the program: what a picture says does not depend on what the machine
// has.
#pragma once

#include <cairo.h>

namespace spillway {

// The caller's, for cairo_font_face_destroy(); nullptr where memory is short.
cairo_font_face_t* make_font();

}  // namespace spillway
