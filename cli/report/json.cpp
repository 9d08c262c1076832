#include "cli/report/json.h"

#include <algorithm>
#include <cmath>

#include "cli/report/text.h"
#include "stats/redact.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostRows = 1000;  // of call sites and of ranks of one difference

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <typename Row, typename Make>
Json list_of(const std::vector<Row>& rows, Make make) {
  Json out = Json::array();
  for (const Row& row : rows) out.push_back(make(row));
  return out;
}

Json holders_json(const std::vector<HolderRow>& rows) {
  return list_of(rows, [](const HolderRow& row) {
    return Json{{"name", row.name},
                {"segments", row.segments},
                {"reserved_bytes", row.reserved_bytes},
                {"active_bytes", row.active_bytes},
                {"stranded_bytes", row.stranded_bytes()},
                {"largest_free_bytes", row.largest_free_bytes}};
  });
}

Json moment_json(const Moment& moment) {
  return {{"name", moment.name},
          {"event", moment.event},
          {"time_us", moment.time_us},
          {"parts", parts_json(moment.parts)},
          {"classes", classes_json(moment.tables.classes)},
          {"sites", sites_json(moment.tables.sites)},
          {"pools", holders_json(moment.tables.pools)},
          {"streams", holders_json(moment.tables.streams)}};
}

Json device_json(const MemoryView& view) {
  if (!view.device_bytes) return nullptr;
  return {{"total_bytes", *view.device_bytes},
          {"reserved_bytes", view.now.reserved()},
          {"other_bytes", or_null(view.other_bytes)},
          {"free_bytes", or_null(view.device_free_bytes)}};
}

Json tiers_json(const TierView& tiers) {
  return {{"host_placed_bytes", tiers.host_placed},
          {"host_bytes", tiers.host},
          {"disk_bytes", tiers.disk},
          {"disk_today_bytes", tiers.disk_today},
          {"disk_daily_limit_bytes", or_null(tiers.disk_daily_limit)},
          {"lasting_error", tiers.lasting_error},
          {"regions", list_of(tiers.regions, [](const RegionView& region) {
             return Json{{"tag", region.tag},
                         {"device_bytes", region.device_bytes},
                         {"host_bytes", region.host_bytes},
                         {"disk_bytes", region.disk_bytes},
                         {"pins", region.pins}};
           })}};
}

Json answer_json(const std::optional<uint64_t>& fits, const std::optional<uint64_t>& most) {
  Json answer = nullptr;
  if (fits && most) answer = answer_of(*fits, most) == FitsAnswer::kYes;
  return {{"largest_bytes", or_null(most)}, {"fits", std::move(answer)}};
}

Json fragmentation_json(const RankReport& report, const std::optional<uint64_t>& fits) {
  const uint64_t free = report.view.now.free();
  return {{"free_bytes", free},
          {"largest_free_bytes", report.largest_free_bytes},
          {"external_index", external_index(free, report.largest_free_bytes)},
          {"request_bytes", or_null(fits)},
          {"within", answer_json(fits, report.fits.within)},
          {"now", answer_json(fits, report.fits.now)},
          {"after_trim", answer_json(fits, report.fits.after_trim)},
          {"after_evict", answer_json(fits, report.fits.after_evict)}};
}

Json climb_json(const ClimbView& climb) {
  Json rungs = Json::object();
  for (const auto& [name, ns] : climb.rung_ns) rungs[name] = ns;
  return {{"time_us", climb.time_us},
          {"requested_bytes", climb.requested_bytes},
          {"stream", climb.stream},
          {"rung_ns", std::move(rungs)},
          {"outcome", climb.outcome.empty() ? Json(nullptr) : Json(climb.outcome)}};
}

Json growth_json(const Growth& growth) {
  return {{"steps", growth.steps.starts.empty() ? 0 : growth.steps.starts.size() - 1},
          {"found", growth.steps.how},
          {"rows", list_of(growth.rows, [](const GrowingRow& row) {
             return Json{{"name", row.name},
                         {"is_site", row.is_site},
                         {"first_bytes", row.first_bytes},
                         {"last_bytes", row.last_bytes},
                         {"bytes_per_step", std::llround(row.bytes_per_step)}};
           })}};
}

Json finding_json(const estimator::Finding& finding) {
  return {{"rule", finding.rule},
          {"source", finding.source},
          {"evidence", finding.evidence},
          {"cause", finding.cause},
          {"mitigation", finding.mitigation},
          {"saved_bytes", std::llround(finding.saved_bytes)}};
}

Json annotations_json(const std::map<std::string, double>& annotations) {
  Json out = Json::object();
  for (const auto& [name, bytes] : annotations) out[name] = std::llround(bytes);
  return out;
}

Json rank_json(const RankReport& report, const std::optional<uint64_t>& fits) {
  const MemoryView& view = report.view;
  return {
      {"source", view.source},
      {"format", view.is_snapshot ? "pytorch_snapshot"
                 : view.is_trace  ? "spillway_trace"
                                  : "spillway_dump"},
      {"rank", or_null(view.rank)},
      {"device", view.device},
      {"hardware", view.hardware},
      {"process_id", view.process_id},
      {"time_us", view.time_us},
      {"reason", view.reason},
      {"reserved_peak_bytes", view.reserved_peak_bytes},
      {"live_peak_bytes", view.live_peak_bytes},
      {"records_segments", report.records_segments},
      {"device_memory", device_json(view)},
      {"moments", list_of(report.moments, moment_json)},
      {"tiers", tiers_json(view.tiers)},
      {"annotations", annotations_json(view.annotations)},
      {"fragmentation", fragmentation_json(report, fits)},
      {"rungs", list_of(view.rungs,
                        [](const RungView& rung) {
                          return Json{{"name", rung.name}, {"hits", rung.hits}, {"time_ns", rung.time_ns}};
                        })},
      {"climbs", list_of(view.climbs, climb_json)},
      {"growth", growth_json(report.growth)},
      {"findings", list_of(report.findings, finding_json)},
      {"verdict", report.verdict},
      {"notes", view.notes}};
}

Json row_json(const RankRow& row) {
  return {{"source", row.source},
          {"rank", or_null(row.rank)},
          {"device", row.device},
          {"parts", parts_json(row.parts)},
          {"reserved_peak_bytes", row.reserved_peak_bytes},
          {"live_peak_bytes", row.live_peak_bytes},
          {"ooms", row.ooms},
          {"retries", row.retries},
          {"deviation", row.deviation}};
}

Json spread_json(const Spread& spread) {
  return {{"least", spread.least},
          {"median", spread.median},
          {"mean", spread.mean},
          {"most", spread.most},
          {"imbalance", spread.imbalance()}};
}

Json difference_json(const Difference& difference) {
  std::vector<std::string> ranks = difference.ranks;
  ranks.resize(std::min(ranks.size(), kMostRows));
  return {{"option", difference.option},
          {"most", difference.most},
          {"other", difference.other},
          {"count", difference.ranks.size()},
          {"ranks", ranks}};
}

}  // namespace

Json parts_json(const Parts& parts) {
  return {{"live_bytes", parts.live},       {"rounding_bytes", parts.rounding},
          {"pending_bytes", parts.pending}, {"inactive_split_bytes", parts.inactive_split},
          {"cached_bytes", parts.cached},   {"reserved_bytes", parts.reserved()}};
}

Json classes_json(const std::vector<ClassRow>& classes) {
  return list_of(classes, [](const ClassRow& row) {
    return Json{{"up_to_bytes", row.up_to_bytes},
                {"blocks", row.blocks},
                {"live_bytes", row.live_bytes},
                {"rounding_bytes", row.rounding_bytes}};
  });
}

// The largest by name, the others as one row, so the rows sum to all.
Json sites_json(const std::vector<SiteRow>& sites) {
  Json out = Json::array();
  SiteRow rest{"others", 0, 0};
  for (size_t i = 0; i < sites.size(); ++i) {
    if (i < kMostRows) {
      out.push_back(
          {{"site", sites[i].site}, {"blocks", sites[i].blocks}, {"live_bytes", sites[i].live_bytes}});
    } else {
      rest.blocks += sites[i].blocks;
      rest.live_bytes += sites[i].live_bytes;
    }
  }
  if (rest.blocks > 0)
    out.push_back({{"site", rest.site}, {"blocks", rest.blocks}, {"live_bytes", rest.live_bytes}});
  return out;
}

Json report_json(const JobReport& job, const std::optional<uint64_t>& fits) {
  return {{"schema_version", 1},
          {"files", job.files},
          {"earlier_dumps", job.earlier_dumps},
          {"complaints", job.complaints},
          {"ranks", list_of(job.rows, row_json)},
          {"outliers", job.outliers},
          {"total", parts_json(job.total)},
          {"spread",
           {{"reserved_peak_bytes", spread_json(job.reserved_peak)},
            {"live_peak_bytes", spread_json(job.live_peak)},
            {"live_bytes", spread_json(job.live)}}},
          {"differences", list_of(job.differences, difference_json)},
          {"classes", classes_json(job.classes)},
          {"sites", sites_json(job.sites)},
          {"findings", list_of(job.findings,
                               [](const JobFinding& each) {
                                 Json out = finding_json(each.finding);
                                 out["ranks"] = each.ranks;
                                 return out;
                               })},
          {"shown", job.shown ? rank_json(*job.shown, fits) : Json(nullptr)}};
}

void redact_json(Json& value) {
  static const PrivateNames kNames = this_machine();
  if (value.is_string()) {
    value = redact_text(value.get_ref<const std::string&>(), kNames);
  } else if (value.is_object()) {
    Json out = Json::object();
    for (auto& [key, member] : value.items()) {
      redact_json(member);
      out[redact_text(key, kNames)] = std::move(member);
    }
    value = std::move(out);
  } else if (value.is_array()) {
    for (Json& each : value) redact_json(each);
  }
}

std::string dump_json(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace spillway
