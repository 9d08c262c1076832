// Files that the build puts into the program: cmake/SpillwayEmbed.cmake.
#pragma once

#include <string_view>

namespace spillway {

extern const std::string_view kDygraphJs;
extern const std::string_view kDygraphCss;
extern const std::string_view kSharedJs;
extern const std::string_view kFlameJs;
extern const std::string_view kPageJs;
extern const std::string_view kChangeJs;
extern const std::string_view kPageCss;

}  // namespace spillway
