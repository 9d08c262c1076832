#include "cli/estimate/columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "cli/estimate/question.h"
#include "cli/size.h"
#include "estimator/reserved.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;
using estimator::Bucket;
using estimator::Buckets;
using estimator::GpuMemory;
using estimator::RankClass;

struct Row {
  std::string_view name;
  std::vector<double> bytes;  // one for each column
};

// Rows by bucket name, in the order they first come.
std::vector<Row> rows_of(const std::vector<const Buckets*>& columns) {
  std::vector<Row> out;
  for (size_t column = 0; column < columns.size(); ++column) {
    for (const Bucket& bucket : *columns[column]) {
      const std::string_view name = bucket.name;
      auto found = std::find_if(out.begin(), out.end(), [&](const Row& row) { return row.name == name; });
      if (found == out.end()) found = out.insert(out.end(), {name, std::vector<double>(columns.size(), 0.0)});
      found->bytes[column] += bucket.bytes;
    }
  }
  return out;
}

std::string row_text(std::string_view lead, const Row& row, bool saved) {
  std::string out = fmt::format("{} {:<32}", lead, row.name);
  for (const double bytes : row.bytes) out += fmt::format(" {:>12.3f}", bytes / kGiB);
  if (saved) out += fmt::format(" {:>12.3f}", (row.bytes.front() - row.bytes.back()) / kGiB);
  return out + "\n";
}

using Choose = double (*)(const Column&);

Row row_of(std::string_view name, const std::vector<Column>& columns, Choose bytes) {
  Row out{name, {}};
  for (const Column& column : columns) out.bytes.push_back(bytes(column));
  return out;
}

std::vector<const Buckets*> buckets_of(const std::vector<Column>& columns, Buckets RankClass::*member) {
  std::vector<const Buckets*> out;
  for (const Column& column : columns) out.push_back(&(column.estimate.peak().*member));
  return out;
}

double reserved_above_peak(const Column& column) {
  const RankClass& rank = column.estimate.peak();
  return estimator::reserved_bytes(column.run, rank.held_bytes()).expected + rank.engine_bytes -
         rank.peak_bytes;
}

double needed(const Column& column) {
  return estimator::needed_bytes(column.run, column.estimate);
}

}  // namespace

estimator::Verdict worst_verdict(double needed_bytes, const std::vector<GpuMemory>& gpus) {
  estimator::Verdict worst = estimator::Verdict::kFits;
  for (const GpuMemory& gpu : gpus) worst = std::max(worst, estimator::verdict(needed_bytes, gpu));
  return worst;
}

std::string columns_text(const std::vector<Column>& columns, const std::vector<GpuMemory>& gpus, bool saved) {
  std::string out = fmt::format("  {:<32}", "GiB");
  for (const Column& column : columns) out += fmt::format(" {:>12}", column.title);
  out += saved ? fmt::format(" {:>12}\n", "saved") : "\n";
  for (const Row& row : rows_of(buckets_of(columns, &RankClass::steady))) out += row_text(" ", row, saved);
  out += row_text(
      "=", row_of("between steps", columns, [](const Column& c) { return c.estimate.peak().steady_bytes; }),
      saved);
  for (const Row& row : rows_of(buckets_of(columns, &RankClass::peak))) out += row_text(" ", row, saved);
  out += row_text("=", row_of("peak", columns, [](const Column& c) { return c.estimate.peak().peak_bytes; }),
                  saved);
  out += row_text(" ", row_of("reserved above it", columns, reserved_above_peak), saved);
  out += row_text(
      " ",
      row_of("outside the allocator", columns,
             [](const Column& c) { return c.run.reserve.context_bytes + c.run.reserve.communicator_bytes; }),
      saved);
  out += row_text("=", row_of("needed", columns, needed), saved);
  for (const GpuMemory& gpu : gpus) {
    out += fmt::format("  {:<32}", fmt::format("on {} ({:.3f} GiB)", gpu.name, gpu.bytes / kGiB));
    for (const Column& column : columns)
      out += fmt::format(" {:>12}", estimator::verdict_name(estimator::verdict(needed(column), gpu)));
    out += "\n";
  }
  return out;
}

Json setting_json(const estimator::TrainingRun& run, const estimator::Estimate& estimate,
                  const std::vector<GpuMemory>& gpus) {
  const RankClass& rank = estimate.peak();
  const double bytes = estimator::needed_bytes(run, estimate);
  return {{"steady_bytes", whole(rank.steady_bytes)},
          {"peak_bytes", whole(rank.peak_bytes)},
          {"lowest_bytes", whole(rank.lowest_bytes)},
          {"highest_bytes", whole(rank.highest_bytes)},
          {"needed_bytes", whole(bytes)},
          {"verdict", estimator::verdict_name(worst_verdict(bytes, gpus))}};
}

Json saved_json(const estimator::Estimate& before, const estimator::Estimate& after) {
  Json out = Json::array();
  for (const bool always : {true, false}) {
    const auto buckets = always ? &RankClass::steady : &RankClass::peak;
    for (const Row& row : rows_of({&(before.peak().*buckets), &(after.peak().*buckets)})) {
      out.push_back({{"name", row.name},
                     {"when", always ? "always" : "at the peak"},
                     {"saved_bytes", whole(row.bytes[0]) - whole(row.bytes[1])}});
    }
  }
  return out;
}

}  // namespace spillway
