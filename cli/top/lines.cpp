#include "cli/top/lines.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace spillway {
namespace {

constexpr std::array<const char*, 8> kCodes{"", "1", "2", "32", "33", "34", "31", "7"};

}  // namespace

TopLines::TopLines(const TopStyle& style) : style_(style) {
  style_.columns = std::max(style_.columns, TopStyle::kNarrowest);
}

void TopLines::line() {
  lines_.emplace_back();
  used_ = 0;
}

void TopLines::item(std::string_view text, TopColour colour) {
  const std::string shown(text.substr(0, style_.columns - kIndent));
  if (used_ > 0 && used_ + 2 + shown.size() > style_.columns) {
    line();
    indent();
  } else if (used_ > kIndent) {
    raw("  ", 2, TopColour::kNone);
  }
  raw(shown, shown.size(), colour);
}

void TopLines::paragraph(std::string_view text, TopColour colour) {
  while (!text.empty()) {
    line();
    const std::string shown(text.substr(0, style_.columns));
    raw(shown, shown.size(), colour);
    text.remove_prefix(shown.size());
  }
}

void TopLines::indent() {
  raw(std::string(kIndent, ' '), kIndent, TopColour::kNone);
}

void TopLines::bar(const std::vector<BarPart>& parts, size_t width) {
  width = std::min(width, left()) - 2;
  raw("[", 1, TopColour::kNone);
  size_t drawn = 0;
  double until = 0;
  for (const BarPart& part : parts) {
    until += std::isfinite(part.share) ? std::clamp(part.share, 0.0, 1.0) : 0;
    const auto end = static_cast<size_t>(std::lround(std::min(until, 1.0) * static_cast<double>(width)));
    std::string text;
    const size_t columns = end - std::min(drawn, end);
    for (size_t i = 0; i < columns; ++i) text += style_.has_unicode ? part.block : part.letter;
    raw(text, columns, part.colour);
    drawn = std::max(drawn, end);
  }
  raw(std::string(width - drawn, ' ') + "]", width - drawn + 1, TopColour::kNone);
}

void TopLines::rest(std::string_view text, TopColour colour) {
  const std::string shown(text.substr(0, left()));
  raw(shown, shown.size(), colour);
}

void TopLines::raw(const std::string& text, size_t columns, TopColour colour) {
  if (columns == 0) return;
  const bool is_plain = !style_.has_colour || colour == TopColour::kNone;
  lines_.back() +=
      is_plain ? text : fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<size_t>(colour)], text);
  used_ += columns;
}

}  // namespace spillway
