#include "cli/report/html.h"

#include <fmt/format.h>

#include <functional>
#include <string_view>

#include "cli/output.h"
#include "cli/report/flame.h"
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

// Both ways of looking at who holds the bytes.
Json flames_json(const std::function<FlameNode(FlameBy)>& flame) {
  Json out = Json::array();
  for (const FlameBy by : {FlameBy::kStack, FlameBy::kModule}) {
    Json one = Json::object();
    one["title"] = by == FlameBy::kStack ? "by stack" : "by module";
    one["tree"] = flame_json(flame(by));
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

Json page_json(const JobReport& job, const std::optional<uint64_t>& fits) {
  Json out = report_json(job, fits);
  out["timelines"] = Json::array();
  out["maps"] = Json::array();
  out["flames"] = Json::array();
  out["site_names"] = Json::array();
  if (!job.shown) return out;
  for (const Timeline& timeline : job.shown->timelines) out["timelines"].push_back(timeline_json(timeline));
  for (const Moment& moment : job.shown->moments) out["maps"].push_back(map_json(moment));
  out["flames"] = flames_json([&](FlameBy by) { return flame_of(*job.shown, by); });
  out["site_names"] = job.shown->view.sites;
  return out;
}

Json change_page_json(const RankReport& before, const RankReport& after, const Diff& diff,
                      const std::vector<std::string>& exceeded) {
  Json out = diff_json(diff, exceeded);
  out["flames"] =
      flames_json([&](FlameBy by) { return flame_of_change(flame_of(before, by), flame_of(after, by)); });
  return out;
}

std::string page_html(const Json& page, const std::string& title, const std::string& version) {
  const bool is_change = page.contains("exceeded");
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta name=\"generator\" content=\"Spillway {}\">\n<title>{}</title>\n",
      version, title);
  out += fmt::format("<style>\n{}\n{}\n</style>\n</head>\n", kDygraphCss, kPageCss);
  out += fmt::format("<body data-made=\"{}\">\n", made_by(version));
  out += fmt::format("<script type=\"application/json\" id=\"report\">{}</script>\n", script_json(page));
  if (!is_change) out += fmt::format("<script>\n{}\n</script>\n", kDygraphJs);
  out += fmt::format("<script>\n{}\n{}\n{}\n</script>\n</body>\n</html>\n", kSharedJs, kFlameJs,
                     is_change ? kChangeJs : kPageJs);
  return out;
}

}  // namespace spillway
