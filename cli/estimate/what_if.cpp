#include "cli/estimate/what_if.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "cli/estimate/columns.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

Json what_if_json(const Question& question, const std::vector<Change>& changes, const Column& base,
                  const Column& changed) {
  Json settings = Json::object();
  for (const Change& change : changes) settings[change.key] = change.value;
  const double saved = base.estimate.peak().peak_bytes - changed.estimate.peak().peak_bytes;
  return {{"schema_version", 1},
          {"what_if", settings},
          {"base", setting_json(base.run, base.estimate, question.gpus)},
          {"changed", setting_json(changed.run, changed.estimate, question.gpus)},
          {"saved_bytes", std::llround(saved)},
          {"buckets", saved_json(base.estimate, changed.estimate)}};
}

}  // namespace

Result<Answer> answer_what_if(const Question& question, const std::vector<std::string>& texts) {
  std::vector<Change> changes;
  for (const std::string& text : texts) {
    Result<Change> change = parse_change("--what-if", text);
    if (!change.ok()) return change.take_status();
    changes.push_back(std::move(change.value()));
  }
  Result<estimator::TrainingRun> changed = question.source.run(changes);
  if (!changed.ok()) return changed.take_status();
  Result<estimator::Estimate> before = question.estimator(question.run);
  if (!before.ok()) return before.take_status();
  Result<estimator::Estimate> after = question.estimator(changed.value());
  if (!after.ok()) return after.take_status();
  const Column base{"as it is", question.run, before.value()};
  const Column other{"what if", changed.value(), after.value()};
  Answer out;
  out.yes = worst_verdict(estimator::needed_bytes(changed.value(), after.value()), question.gpus) !=
            estimator::Verdict::kNo;
  out.text = question.json ? what_if_json(question, changes, base, other).dump(2) + "\n"
                           : fmt::format("what if {}\n", fmt::join(texts, ", ")) +
                                 columns_text({base, other}, question.gpus, true);
  return out;
}

}  // namespace spillway
