#include "cli/plot/font.h"

#include <cairo-ft.h>
#include <ft2build.h>
#include FT_FREETYPE_H

#include <string_view>

namespace spillway {

extern const std::string_view kFontFile;  // made by the build

namespace {

// To the end of the process, for cairo keeps faces in a cache of its own after the last picture.
FT_Library library() {
  static const FT_Library kOpened = [] {
    FT_Library made = nullptr;
    return FT_Init_FreeType(&made) == 0 ? made : nullptr;
  }();
  return kOpened;
}

}  // namespace

cairo_font_face_t* make_font() {
  FT_Face face = nullptr;
  const auto* file = reinterpret_cast<const FT_Byte*>(kFontFile.data());
  if (library() == nullptr ||
      FT_New_Memory_Face(library(), file, static_cast<FT_Long>(kFontFile.size()), 0, &face) != 0) {
    return nullptr;
  }
  cairo_font_face_t* font = cairo_ft_font_face_create_for_ft_face(face, 0);
  // FreeType's face has to live as long as cairo's, which may be longer than the caller's: tied as cairo
  // documents it.
  static const cairo_user_data_key_t kFace{};
  if (cairo_font_face_set_user_data(font, &kFace, face, [](void* held) {
        FT_Done_Face(static_cast<FT_Face>(held));
      }) == CAIRO_STATUS_SUCCESS) {
    return font;
  }
  cairo_font_face_destroy(font);
  FT_Done_Face(face);
  return nullptr;
}

}  // namespace spillway
