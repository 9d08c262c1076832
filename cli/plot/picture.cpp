#include "cli/plot/picture.h"

#include <cairo-svg.h>
#include <cairo.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "cli/plot/font.h"
#include "cli/size.h"

namespace spillway {
namespace {

struct Colour {
  double red, green, blue;
};

// Told apart by the colour-blind as well: Okabe and Ito, "Color Universal Design" (2008); then three greys.
constexpr std::array<Colour, 10> kColours{{{0.00, 0.45, 0.70},
                                           {0.34, 0.71, 0.91},
                                           {0.00, 0.62, 0.45},
                                           {0.94, 0.89, 0.26},
                                           {0.90, 0.62, 0.00},
                                           {0.80, 0.47, 0.65},
                                           {0.84, 0.37, 0.00},
                                           {0.45, 0.45, 0.45},
                                           {0.65, 0.65, 0.65},
                                           {0.82, 0.82, 0.82}}};
constexpr Colour kBlack{0.1, 0.1, 0.1};
constexpr Colour kGrid{0.88, 0.88, 0.88};
constexpr Colour kAlarm{0.80, 0.00, 0.00};
constexpr Colour kMarkColour{0.55, 0.55, 0.55};
constexpr double kFont = 12;
constexpr size_t kMostLabels = 24;

// The next of 1, 2, 5, 10, ... times a power of ten.
double nice_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= least) return step * power;
  }
  return 10 * power;
}

class Drawing {
 public:
  Drawing(cairo_t* cairo, const PlotTimeline& timeline, const PictureSize& size)
      : cairo_(cairo),
        timeline_(timeline),
        left_(80),
        top_(40),
        right_(size.width - 20.0),
        bottom_(size.height - 80.0) {
    for (size_t column = 0; column < columns(); ++column) {
      uint64_t sum = 0;
      for (const auto& layer : timeline.bytes) sum += layer[column];
      most_ = std::max(most_, static_cast<double>(sum));
      if (!timeline.reserved_bytes.empty())
        most_ = std::max(most_, static_cast<double>(timeline.reserved_bytes[column]));
    }
    // A limit far above everything would only flatten the picture.
    shows_limit_ = timeline.limit_bytes > 0 && static_cast<double>(timeline.limit_bytes) < 2 * most_;
    if (shows_limit_) most_ = std::max(most_, static_cast<double>(timeline.limit_bytes));
    most_ *= 1.05;
    cairo_set_font_size(cairo, kFont);
  }

  void draw() {
    colour({1, 1, 1});
    cairo_paint(cairo_);
    draw_grid();
    draw_layers();
    draw_lines();
    draw_marks();
    draw_legend();
    colour(kBlack);
    text(left_, top_ - 18, timeline_.title);
  }

 private:
  size_t columns() const { return timeline_.bytes.empty() ? 0 : timeline_.bytes.front().size(); }
  double x_of(double share) const { return left_ + share * (right_ - left_); }
  double x_of_column(size_t column) const {
    return x_of(static_cast<double>(column) / static_cast<double>(columns()));
  }
  double y_of(double bytes) const { return bottom_ - bytes / most_ * (bottom_ - top_); }

  void colour(const Colour& colour, double alpha = 1) {
    cairo_set_source_rgba(cairo_, colour.red, colour.green, colour.blue, alpha);
  }
  void text(double x, double y, const std::string& words) {
    cairo_move_to(cairo_, x, y);
    cairo_show_text(cairo_, words.c_str());
  }
  double width_of(const std::string& words) {
    cairo_text_extents_t extents{};
    cairo_text_extents(cairo_, words.c_str(), &extents);
    return extents.x_advance;
  }
  void line(double x0, double y0, double x1, double y1) {
    cairo_move_to(cairo_, x0, y0);
    cairo_line_to(cairo_, x1, y1);
    cairo_stroke(cairo_);
  }

  void draw_grid() {
    constexpr double kSteps = 6;
    double unit = 1;
    const char* name = "B";
    for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
      if (most_ < unit * 1024) break;
      unit *= 1024;
      name = larger;
    }
    cairo_set_line_width(cairo_, 1);
    const double step = nice_step(most_ / unit / kSteps) * unit;
    for (int line_number = 0; line_number * step <= most_; ++line_number) {
      const double bytes = line_number * step;
      colour(kGrid);
      line(left_, y_of(bytes), right_, y_of(bytes));
      const std::string words = fmt::format("{:g} {}", bytes / unit, name);
      colour(kBlack);
      text(left_ - 8 - width_of(words), y_of(bytes) + 4, words);
    }
    const double length = timeline_.has_times
                              ? static_cast<double>(timeline_.end_ns - timeline_.begin_ns) / 1e9
                              : static_cast<double>(timeline_.end_ns);
    const double time_step = nice_step(std::max(length, 1e-9) / 8);
    for (int mark = 0; mark * time_step <= length; ++mark) {
      const double at = mark * time_step;
      const double x = x_of(length > 0 ? at / length : 0);
      const std::string words =
          timeline_.has_times ? fmt::format("{:g} s", at) : fmt::format("event {:g}", at);
      text(x - width_of(words) / 2, bottom_ + 18, words);
    }
  }

  void draw_layers() {
    std::vector<double> below(columns(), 0);
    for (size_t layer = 0; layer < timeline_.bytes.size(); ++layer) {
      std::vector<double> above = below;
      for (size_t column = 0; column < columns(); ++column)
        above[column] += static_cast<double>(timeline_.bytes[layer][column]);
      cairo_move_to(cairo_, x_of(0), y_of(below[0]));
      outline(above, false);
      outline(below, true);
      cairo_close_path(cairo_);
      colour(kColours[layer % kColours.size()]);
      cairo_fill(cairo_);
      below = std::move(above);
    }
  }

  // Steps along the columns' tops, to the right or back.
  void outline(const std::vector<double>& tops, bool back) {
    for (size_t i = 0; i < tops.size(); ++i) {
      const size_t column = back ? tops.size() - 1 - i : i;
      cairo_line_to(cairo_, x_of_column(back ? column + 1 : column), y_of(tops[column]));
      cairo_line_to(cairo_, x_of_column(back ? column : column + 1), y_of(tops[column]));
    }
  }

  void draw_lines() {
    if (!timeline_.reserved_bytes.empty()) {
      std::vector<double> reserved(timeline_.reserved_bytes.begin(), timeline_.reserved_bytes.end());
      cairo_new_path(cairo_);
      outline(reserved, false);
      colour(kBlack);
      cairo_set_line_width(cairo_, 1.5);
      cairo_stroke(cairo_);
    }
    if (!shows_limit_) return;
    colour(kAlarm);
    const double y = y_of(static_cast<double>(timeline_.limit_bytes));
    const double dashes[] = {8, 4};
    cairo_set_dash(cairo_, dashes, 2, 0);
    line(left_, y, right_, y);
    cairo_set_dash(cairo_, nullptr, 0, 0);
    text(left_ + 4, y - 4, "limit " + format_size(timeline_.limit_bytes));
  }

  void draw_marks() {
    if (!timeline_.has_times) return;
    const auto length = static_cast<double>(timeline_.end_ns - timeline_.begin_ns);
    size_t named = 0;
    for (const PlotMark& mark : timeline_.marks) named += mark.kind == PlotMark::Kind::kMark ? 1 : 0;
    for (const PlotMark& mark : timeline_.marks) {
      const double since = static_cast<double>(mark.time_ns) - static_cast<double>(timeline_.begin_ns);
      const double x = x_of(std::clamp(since / length, 0.0, 1.0));
      const bool alarm = mark.kind == PlotMark::Kind::kOutOfMemory;
      cairo_set_line_width(cairo_, alarm ? 2 : 1);
      if (mark.kind == PlotMark::Kind::kMark || alarm) {
        colour(alarm ? kAlarm : kMarkColour, 0.8);
        line(x, top_, x, bottom_);
        if (alarm) text(x + 3, top_ + 12, "out of memory: " + mark.text);
        if (!alarm && named <= kMostLabels) text(x + 3, top_ + 12, mark.text);
      } else {
        triangle(x, mark.kind == PlotMark::Kind::kRetry ? kColours[6] : kColours[2]);
      }
    }
  }

  void triangle(double x, const Colour& fill) {
    cairo_move_to(cairo_, x, bottom_);
    cairo_line_to(cairo_, x - 4, bottom_ + 7);
    cairo_line_to(cairo_, x + 4, bottom_ + 7);
    cairo_close_path(cairo_);
    colour(fill);
    cairo_fill(cairo_);
  }

  void draw_legend() {
    double x = left_;
    double y = bottom_ + 42;
    const auto entry = [&](const std::string& words, const auto& symbol) {
      if (x + width_of(words) + 24 > right_) {
        x = left_;
        y += 18;
      }
      symbol(x, y);
      colour(kBlack);
      text(x + 18, y, words);
      x += width_of(words) + 36;
    };
    for (size_t layer = 0; layer < timeline_.layers.size(); ++layer) {
      entry(timeline_.layers[layer], [&](double at, double base) {
        colour(kColours[layer % kColours.size()]);
        cairo_rectangle(cairo_, at, base - 10, 12, 12);
        cairo_fill(cairo_);
      });
    }
    if (!timeline_.reserved_bytes.empty()) {
      entry("reserved", [&](double at, double base) {
        colour(kBlack);
        cairo_set_line_width(cairo_, 1.5);
        line(at, base - 4, at + 12, base - 4);
      });
    }
    const auto has = [&](PlotMark::Kind kind) {
      return std::any_of(timeline_.marks.begin(), timeline_.marks.end(),
                         [&](const PlotMark& mark) { return mark.kind == kind; });
    };
    if (has(PlotMark::Kind::kRetry))
      entry("served after a wait", [&](double at, double base) { small_triangle(at, base, kColours[6]); });
    if (has(PlotMark::Kind::kEvict))
      entry("evicted", [&](double at, double base) { small_triangle(at, base, kColours[2]); });
  }

  void small_triangle(double x, double y, const Colour& fill) {
    cairo_move_to(cairo_, x + 6, y - 9);
    cairo_line_to(cairo_, x + 1, y);
    cairo_line_to(cairo_, x + 11, y);
    cairo_close_path(cairo_);
    colour(fill);
    cairo_fill(cairo_);
  }

  cairo_t* const cairo_;
  const PlotTimeline& timeline_;
  const double left_, top_, right_, bottom_;
  double most_ = 1;
  bool shows_limit_ = false;
};

cairo_status_t append(void* out, const unsigned char* bytes, unsigned int count) {
  try {
    static_cast<std::string*>(out)->append(reinterpret_cast<const char*>(bytes), count);
    return CAIRO_STATUS_SUCCESS;
  } catch (const std::bad_alloc&) {
    return CAIRO_STATUS_NO_MEMORY;
  }
}

}  // namespace

Result<std::string> draw(const PlotTimeline& timeline, PictureFormat format, const PictureSize& size) {
  std::string out;
  using Surface = std::unique_ptr<cairo_surface_t, void (*)(cairo_surface_t*)>;
  const Surface surface(format == PictureFormat::kSvg
                            ? cairo_svg_surface_create_for_stream(append, &out, size.width, size.height)
                            : cairo_image_surface_create(CAIRO_FORMAT_RGB24, size.width, size.height),
                        cairo_surface_destroy);
  const std::unique_ptr<cairo_t, void (*)(cairo_t*)> cairo(cairo_create(surface.get()), cairo_destroy);
  const std::unique_ptr<cairo_font_face_t, void (*)(cairo_font_face_t*)> font(make_font(),
                                                                              cairo_font_face_destroy);
  if (font == nullptr) return Status::internal("the font of pictures cannot be read: memory is short");
  cairo_set_font_face(cairo.get(), font.get());
  Drawing(cairo.get(), timeline, size).draw();
  cairo_status_t status = cairo_status(cairo.get());
  if (status == CAIRO_STATUS_SUCCESS && format == PictureFormat::kPng)
    status = cairo_surface_write_to_png_stream(surface.get(), append, &out);
  cairo_surface_finish(surface.get());
  if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_status(surface.get());
  if (status != CAIRO_STATUS_SUCCESS)
    return Status::internal(std::string("cairo: ") + cairo_status_to_string(status));
  return out;
}

}  // namespace spillway
