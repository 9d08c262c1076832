#include "cli/report/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "cli/report/moved_lines.h"
#include "cli/size.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

// Rows of both by name; those that did not change are left out. A line that moved keeps its row.
template <typename Row, typename Name>
std::vector<ChangedRow> changes(const std::vector<Row>& before, const std::vector<Row>& after, Name name) {
  const auto names_of = [&](const std::vector<Row>& rows) {
    std::vector<std::string> names;
    for (const Row& row : rows) names.push_back(name(row));
    return names;
  };
  std::vector<ChangedRow> out;
  for (const Match& match : match_lines(names_of(before), names_of(after))) {
    ChangedRow row;
    row.name = match.after ? name(after[*match.after]) : name(before[*match.before]);
    if (match.before) row.before = before[*match.before].live_bytes;
    if (match.after) row.after = after[*match.after].live_bytes;
    if (row.change() != 0) out.push_back(std::move(row));
  }
  std::stable_sort(out.begin(), out.end(), [](const ChangedRow& a, const ChangedRow& b) {
    return std::abs(a.change()) > std::abs(b.change());
  });
  return out;
}

std::string row_text(char sign, const ChangedRow& row) {
  const char* direction = row.change() < 0 ? "-" : "+";
  const auto change = static_cast<uint64_t>(std::abs(row.change()));
  return fmt::format("{} {:>12} {:>12} {:>13}  {}\n", sign, format_size(row.before), format_size(row.after),
                     direction + format_size(change), row.name);
}

std::string rows_text(const char* title, const std::vector<ChangedRow>& rows, size_t most) {
  if (rows.empty()) return {};
  std::string out = fmt::format("\n{}\n", title);
  ChangedRow rest{fmt::format("{} others", rows.size() - std::min(most, rows.size())), 0, 0};
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i < most) {
      out += row_text(' ', rows[i]);
    } else {
      rest.before += rows[i].before;
      rest.after += rows[i].after;
    }
  }
  return rows.size() > most ? out + row_text(' ', rest) : out;
}

Json rows_json(const std::vector<ChangedRow>& rows) {
  Json out = Json::array();
  for (const ChangedRow& row : rows) {
    out.push_back({{"name", row.name},
                   {"before_bytes", row.before},
                   {"after_bytes", row.after},
                   {"change_bytes", row.change()}});
  }
  return out;
}

}  // namespace

Diff diff_of(const RankReport& before, const RankReport& after) {
  Diff out;
  out.before = before.view.source;
  out.after = after.view.source;
  out.peaks = {{"reserved peak", before.view.reserved_peak_bytes, after.view.reserved_peak_bytes},
               {"live peak", before.view.live_peak_bytes, after.view.live_peak_bytes}};
  const Parts& a = before.main().parts;
  const Parts& b = after.main().parts;
  out.parts = {{"live", a.live, b.live},          {"rounding", a.rounding, b.rounding},
               {"pending", a.pending, b.pending}, {"inactive split", a.inactive_split, b.inactive_split},
               {"cached", a.cached, b.cached},    {"reserved", a.reserved(), b.reserved()}};
  out.classes = changes(before.live().tables.classes, after.live().tables.classes, [](const ClassRow& row) {
    return "requests up to " + format_bound(row.up_to_bytes);
  });
  out.sites = changes(before.live().tables.sites, after.live().tables.sites,
                      [](const SiteRow& row) { return row.site; });
  return out;
}

std::vector<std::string> exceeded(const Diff& diff, const DiffGate& gate) {
  const ChangedRow& peak = diff.peaks[gate.of_live ? 1 : 0];
  std::vector<std::string> out;
  if (gate.max_peak_bytes && peak.after > *gate.max_peak_bytes) {
    out.push_back(fmt::format("{} {} is above --max-peak {}", peak.name, format_size(peak.after),
                              format_size(*gate.max_peak_bytes)));
  }
  if (gate.max_ratio &&
      static_cast<double>(peak.after) > *gate.max_ratio * static_cast<double>(peak.before)) {
    out.push_back(
        fmt::format("{} {} is {:.4f} of {}, above --max-ratio {}", peak.name, format_size(peak.after),
                    static_cast<double>(peak.after) / static_cast<double>(std::max<uint64_t>(1, peak.before)),
                    format_size(peak.before), *gate.max_ratio));
  }
  return out;
}

std::string diff_text(const Diff& diff, const std::vector<std::string>& exceeded, size_t most_rows) {
  std::string out =
      fmt::format("{} to {}\n  {:>12} {:>12} {:>13}\n", diff.before, diff.after, "before", "after", "change");
  for (const ChangedRow& row : diff.peaks) out += row_text(' ', row);
  out += "\nWhat is reserved at its peak, or now\n";
  for (size_t i = 0; i < diff.parts.size(); ++i)
    out += row_text(i == 0 ? ' ' : i + 1 == diff.parts.size() ? '=' : '+', diff.parts[i]);
  out += rows_text("By size of request, at the live peak or now", diff.classes, most_rows);
  out += rows_text("By call site, at the live peak or now", diff.sites, most_rows);
  for (const std::string& sentence : exceeded) out += fmt::format("\nEXCEEDED: {}\n", sentence);
  return out;
}

Json diff_json(const Diff& diff, const std::vector<std::string>& exceeded) {
  return {{"schema_version", 1},
          {"before", diff.before},
          {"after", diff.after},
          {"peaks", rows_json(diff.peaks)},
          {"parts", rows_json(diff.parts)},
          {"classes", rows_json(diff.classes)},
          {"sites", rows_json(diff.sites)},
          {"exceeded", exceeded}};
}

}  // namespace spillway
