// Draws a timeline: stacked areas of its layers, the reserved bytes and the limit as lines, marks.
#pragma once

#include <string>

#include "cli/plot/timeline.h"
#include "driver/status.h"

namespace spillway {

enum class PictureFormat : uint8_t { kPng, kSvg };

struct PictureSize {
  int width = 1200;  // pixels
  int height = 600;
};

// The file's bytes. Errors: internal (the drawing library's).
Result<std::string> draw(const PlotTimeline& timeline, PictureFormat format, const PictureSize& size);

}  // namespace spillway
