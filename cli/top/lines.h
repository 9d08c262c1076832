// Lines of text of a given width, made of items that are kept whole where they fit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

struct TopStyle {
  static constexpr size_t kNarrowest = 40;

  size_t columns = 80;  // at least kNarrowest; what does not fit beside goes below
  bool has_colour = false;
  bool has_unicode = true;  // bars of blocks rather than letters
};

enum class TopColour : uint8_t { kNone, kBold, kDim, kGreen, kYellow, kBlue, kRed, kReversed };

// Part of a whole: a share of it, and how it looks.
struct BarPart {
  double share;
  const char* block;
  const char* letter;
  TopColour colour;
};

class TopLines {
 public:
  explicit TopLines(const TopStyle& style);

  void line();
  // Appends an item of one-column characters, two blanks after the one before; it begins a line where it does
  // not fit.
  void item(std::string_view text, TopColour colour = TopColour::kNone);
  // Lines of its own, as many as the text takes.
  void paragraph(std::string_view text, TopColour colour);
  void indent();
  // As wide as the line, or as wide as is said.
  void bar(const std::vector<BarPart>& parts, size_t width = SIZE_MAX);
  // Returns what is left of the line, cut to it.
  void rest(std::string_view text, TopColour colour = TopColour::kNone);
  size_t left() const { return style_.columns - std::min(used_, style_.columns); }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  static constexpr size_t kIndent = 2;

  void raw(const std::string& text, size_t columns, TopColour colour);

  TopStyle style_;
  std::vector<std::string> lines_;
  size_t used_ = 0;
};

}  // namespace spillway
