#include "cli/estimate/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <thread>

#include "cli/estimate/columns.h"
#include "cli/progress.h"
#include "cli/size.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;
using estimator::Verdict;

constexpr int64_t kMostValue = int64_t{1} << 30;  // of a range

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

Status not_a_sweep(const std::string& text) {
  return Status::invalid_argument(
      fmt::format("--sweep '{}' is not allowed; allowed: KEY=VALUE,..., where a value may be a range such as "
                  "1..8, 64..1024+64 or 1..64x2",
                  text));
}

bool take_number(std::string_view& text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return error == std::errc();
}

// "A..B", "A..B+STEP", "A..BxFACTOR"; false where it is none of them or has no end.
bool add_range(std::string_view text, std::vector<std::string>& out) {
  int64_t first = 0, last = 0, step = 1;
  if (!take_number(text, first) || !text.starts_with("..")) return false;
  text.remove_prefix(2);
  if (!take_number(text, last)) return false;
  const bool factor = text.starts_with("x");
  if (factor || text.starts_with("+")) {
    text.remove_prefix(1);
    if (!take_number(text, step)) return false;
  }
  if (!text.empty() || first < 1 || last < first || last > kMostValue || step < (factor ? 2 : 1) ||
      step > kMostValue)
    return false;
  for (int64_t value = first; value <= last; value = factor ? value * step : value + step) {
    if (out.size() > kMostCombinations) return true;  // the caller refuses them
    out.push_back(std::to_string(value));
  }
  return true;
}

Result<Axis> parse_axis(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) return not_a_sweep(text);
  Axis out{text.substr(0, equals), {}};
  std::string_view rest = std::string_view(text).substr(equals + 1);
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view value = rest.substr(0, comma);
    if (value.find("..") == std::string_view::npos)
      out.values.emplace_back(value);
    else if (!add_range(value, out.values))
      return not_a_sweep(text);
    if (value.empty()) return not_a_sweep(text);
    if (comma == std::string_view::npos) return out;
    rest.remove_prefix(comma + 1);
  }
}

struct Row {
  std::string refused;
  double steady = 0, peak = 0, needed = 0;
  Verdict verdict = Verdict::kFits;
};

class Sweep {
 public:
  Sweep(const Question& question, std::vector<Axis> axes, size_t combinations)
      : question_(question), axes_(std::move(axes)), rows_(combinations) {}

  void run() {
    Progress progress;
    const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back([this] { work(nullptr); });
    work(&progress);
  }

  const std::vector<Row>& rows() const { return rows_; }

  std::vector<Change> changes(size_t index) const {
    std::vector<Change> out(axes_.size());
    for (size_t i = axes_.size(); i-- > 0;) {
      const Axis& axis = axes_[i];
      out[i] = {axis.key, axis.values[index % axis.values.size()]};
      index /= axis.values.size();
    }
    return out;
  }

 private:
  static constexpr size_t kChunk = 64;

  // Takes chunks until none is left.
  void work(Progress* progress) {
    for (size_t start = 0; (start = next_.fetch_add(kChunk)) < rows_.size();) {
      if (progress != nullptr) progress->bar("sweep", start, rows_.size());
      for (size_t i = start; i < std::min(start + kChunk, rows_.size()); ++i) rows_[i] = row(i);
    }
  }

  Row row(size_t index) const {
    Row out;
    const Result<estimator::TrainingRun> run = question_.source.run(changes(index));
    if (!run.ok()) {
      out.refused = run.status().text();
      return out;
    }
    const Result<estimator::Estimate> estimate = question_.estimator(run.value());
    if (!estimate.ok()) {
      out.refused = estimate.status().text();
      return out;
    }
    out.steady = estimate.value().peak().steady_bytes;
    out.peak = estimate.value().peak().peak_bytes;
    out.needed = estimator::needed_bytes(run.value(), estimate.value());
    out.verdict = worst_verdict(out.needed, question_.gpus);
    return out;
  }

  const Question& question_;
  std::vector<Axis> axes_;
  std::vector<Row> rows_;
  std::atomic<size_t> next_{0};
};

// A value as JSON where it is a number or a truth, else as text.
std::string json_value(const std::string& text) {
  const Json value = Json::parse(text, nullptr, false);
  return value.is_number() || value.is_boolean() ? value.dump() : Json(text).dump();
}

std::string json_line(const std::vector<Change>& changes, const Row& row) {
  std::string out = "{\"settings\":{";
  for (size_t i = 0; i < changes.size(); ++i)
    out +=
        fmt::format("{}{}:{}", i == 0 ? "" : ",", Json(changes[i].key).dump(), json_value(changes[i].value));
  if (!row.refused.empty()) return out + fmt::format("}},\"refused\":{}}}\n", Json(row.refused).dump());
  return out + fmt::format(
                   "}},\"steady_bytes\":{:.0f},\"peak_bytes\":{:.0f},\"needed_bytes\":{:.0f},"
                   "\"verdict\":\"{}\"}}\n",
                   row.steady, row.peak, row.needed, estimator::verdict_name(row.verdict));
}

std::string json_lines(const Sweep& sweep) {
  std::string out;
  for (size_t i = 0; i < sweep.rows().size(); ++i) out += json_line(sweep.changes(i), sweep.rows()[i]);
  return out;
}

std::string table(const Sweep& sweep, const std::vector<Axis>& axes) {
  std::vector<size_t> widths;
  std::string out;
  for (const Axis& axis : axes) {
    size_t width = axis.key.size();
    for (const std::string& value : axis.values) width = std::max(width, value.size());
    widths.push_back(width);
    out += fmt::format("{:>{}}  ", axis.key, width);
  }
  out += fmt::format("{:>10} {:>10} {:>10}  verdict\n", "steady GiB", "peak GiB", "needed GiB");
  for (size_t i = 0; i < sweep.rows().size(); ++i) {
    const std::vector<Change> changes = sweep.changes(i);
    for (size_t j = 0; j < changes.size(); ++j) out += fmt::format("{:>{}}  ", changes[j].value, widths[j]);
    const Row& row = sweep.rows()[i];
    out += row.refused.empty()
               ? fmt::format("{:>10.3f} {:>10.3f} {:>10.3f}  {}\n", row.steady / kGiB, row.peak / kGiB,
                             row.needed / kGiB, estimator::verdict_name(row.verdict))
               : fmt::format("refused: {}\n", row.refused);
  }
  return out;
}

}  // namespace

Result<Answer> answer_sweep(const Question& question, const std::vector<std::string>& sweeps) {
  std::vector<Axis> axes;
  size_t combinations = 1;
  for (const std::string& text : sweeps) {
    Result<Axis> axis = parse_axis(text);
    if (!axis.ok()) return axis.take_status();
    const bool twice =
        std::any_of(axes.begin(), axes.end(), [&](const Axis& other) { return other.key == axis->key; });
    if (twice) {
      return Status::invalid_argument(
          fmt::format("--sweep: '{}' is swept twice; allowed: all its values in one", axis->key));
    }
    combinations *= axis->values.size();
    if (combinations > kMostCombinations) {
      return Status::invalid_argument(
          fmt::format("--sweep: too many combinations; allowed: {}", kMostCombinations));
    }
    axes.push_back(std::move(axis.value()));
  }
  Sweep sweep(question, axes, combinations);
  sweep.run();
  const auto answered = [](const Row& row) { return row.refused.empty(); };
  const auto fits = [](const Row& row) { return row.refused.empty() && row.verdict != Verdict::kNo; };
  if (std::none_of(sweep.rows().begin(), sweep.rows().end(), answered))
    return Status::invalid_argument(sweep.rows().front().refused);
  Answer out;
  out.yes = std::any_of(sweep.rows().begin(), sweep.rows().end(), fits);
  out.text = question.json ? json_lines(sweep) : table(sweep, axes);
  return out;
}

}  // namespace spillway
