#include "cli/report/html.h"

#include <fmt/format.h>

#include <string_view>

#include "cli/report/json.h"
#include "cli/report/page_assets.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostBlocks = 100'000;  // of one map

// Rows of numbers: a page of many blocks stays small.
Json map_json(const Moment& moment) {
  Json segments = Json::array();
  size_t blocks = 0;
  uint64_t left_out = 0;
  for (const SegmentView& segment : moment.segments) {
    blocks += segment.blocks.size();
    if (blocks > kMostBlocks) {
      left_out += segment.bytes;
      continue;
    }
    Json rows = Json::array();
    for (const BlockView& block : segment.blocks)
      rows.push_back({block.bytes, block.requested_bytes, static_cast<int>(block.state), block.site});
    segments.push_back({{"address", fmt::format("0x{:x}", segment.address)},
                        {"bytes", segment.bytes},
                        {"stream", fmt::format("0x{:x}", segment.stream)},
                        {"blocks", std::move(rows)}});
  }
  return {{"name", moment.name}, {"left_out_bytes", left_out}, {"segments", std::move(segments)}};
}

Json timeline_json(const Timeline& timeline) {
  Json points = Json::array();
  for (const TimelinePoint& point : timeline.points) {
    Json row = Json::array({point.at});
    for (const uint64_t bytes : point.bytes) row.push_back(bytes);
    points.push_back(std::move(row));
  }
  return {{"title", timeline.title},
          {"in_events", timeline.in_events},
          {"series", timeline.series},
          {"points", std::move(points)}};
}

// JSON inside of a script element: nothing in it may end the element.
std::string script_json(const Json& value) {
  std::string out;
  for (const char letter : dump_json(value, -1)) {
    if (letter == '<') {
      out += "\\u003c";
    } else {
      out += letter;
    }
  }
  return out;
}

}  // namespace

Json page_json(const JobReport& job, const std::optional<uint64_t>& fits) {
  Json out = report_json(job, fits);
  out["timelines"] = Json::array();
  out["maps"] = Json::array();
  out["site_names"] = Json::array();
  if (!job.shown) return out;
  for (const Timeline& timeline : job.shown->timelines) out["timelines"].push_back(timeline_json(timeline));
  for (const Moment& moment : job.shown->moments) out["maps"].push_back(map_json(moment));
  out["site_names"] = job.shown->view.sites;
  return out;
}

std::string page_html(const Json& page) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Spillway "
      "report</title>\n";
  out += fmt::format("<style>\n{}\n{}\n</style>\n</head>\n", kDygraphCss, kPageCss);
  out +=
      fmt::format("<body>\n<script type=\"application/json\" id=\"report\">{}</script>\n", script_json(page));
  out += fmt::format("<script>\n{}\n</script>\n<script>\n{}\n</script>\n</body>\n</html>\n", kDygraphJs,
                     kPageJs);
  return out;
}

}  // namespace spillway
