// Counters in, factors out: what is read, what is learned, and where it may be used.
#include "estimator/calibration/calibrated.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/support/training_runs.h"

namespace spillway::estimator {
namespace {

using ::testing::HasSubstr;

RunKeys small(const RunKeys& more = {}) {
  return test::with(test::with(test::llama(512, 2048, 6, 8, 8, 8000),
                               {{"train.micro_batch", "8"}, {"train.sequence", "512"}}),
                    more);
}

// A dump of a run that takes `states` times the predicted states and `transient` times the rest.
Measurement measured(const TrainingRun& run, double states, double transient) {
  const Estimate estimate = test::must_estimate(run);
  const GroupBytes groups = predicted_groups(estimate.peak());
  const auto of = [&](Group group) { return groups[static_cast<size_t>(group)].value_or(0); };
  Measurement out;
  out.hardware = "a device";
  out.annotations = {{"parameter_bytes", states * of(Group::kWeights)},
                     {"optimizer_bytes", states * of(Group::kOptimizer)}};
  out.allocated.peak = states * (of(Group::kWeights) + of(Group::kOptimizer)) + of(Group::kFixed) +
                       transient * of(Group::kTransient);
  return out;
}

Observation observed(const TrainingRun& run, double states, double transient) {
  const Estimate estimate = test::must_estimate(run);
  const Measurement measurement = measured(run, states, transient);
  const Signature signature = signature_of(run, "a device");
  Result<GroupBytes> groups = measured_groups(measurement, estimate.peak(), false);
  EXPECT_TRUE(groups.ok()) << groups.status().text();
  return {signature.kernels,
          signature.shape,
          peak_phase(estimate.peak()),
          predicted_groups(estimate.peak()),
          groups.value(),
          estimate.peak().peak_bytes,
          measurement.allocated.peak};
}

CatalogLine line_of(const TrainingRun& run, double states, double transient) {
  CatalogLine out;
  out.signature = signature_of(run, "a device");
  out.key = out.signature.key();
  out.source = "dump.json";
  out.observation = observed(run, states, transient);
  return out;
}

TEST(Counters, ReadsFlatAndNestedStatistics) {
  const char* flat =
      R"({"allocated_bytes.all.current": 5, "allocated_bytes.all.peak": 8, "requested_bytes.all.current": 4,
          "requested_bytes.all.peak": 7, "active_bytes.all.current": 5, "active_bytes.all.peak": 8,
          "reserved_bytes.all.current": 12, "reserved_bytes.all.peak": 20, "inactive_split_bytes.all.current": 3,
          "inactive_split_bytes.all.peak": 6, "num_alloc_retries": 2, "num_ooms": 1})";
  const char* nested =
      R"({"allocated_bytes": {"all": {"current": 5, "peak": 8}}, "active_bytes": {"all": {"current": 5, "peak": 8}},
          "reserved_bytes": {"all": {"current": 12, "peak": 20}},
          "inactive_split_bytes": {"all": {"current": 3, "peak": 6}}, "num_alloc_retries": 2, "num_ooms": 1})";
  for (const char* text : {flat, nested}) {
    const Result<std::vector<Measurement>> read = read_counters(text);
    ASSERT_TRUE(read.ok()) << read.status().text();
    const Measurement& m = read.value().front();
    EXPECT_EQ(m.allocated.peak, 8);
    EXPECT_EQ(m.cached_free_bytes, 4);
    EXPECT_EQ(m.retries, 2);
    EXPECT_EQ(m.ooms, 1);
    EXPECT_FALSE(m.rank.has_value());
  }
  EXPECT_EQ(read_counters(nested).value().front().requested.peak, 8) << "old versions do not count them";
}

TEST(Counters, RefusesWhatIsNeither) {
  const auto complaint = [](const std::string& text) { return read_counters(text).status().text(); };
  EXPECT_THAT(complaint("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(complaint("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(complaint("{}"), HasSubstr("allowed: a Spillway dump"));
  EXPECT_THAT(complaint(R"({"allocated_bytes.all.peak": 1})"),
              HasSubstr("allocated_bytes.all.current: missing"));
  EXPECT_THAT(complaint(R"({"allocated_bytes.all.peak": -1, "allocated_bytes.all.current": 0})"),
              HasSubstr("'-1' is not allowed"));
  EXPECT_THAT(complaint(R"({"allocated_bytes.all.peak": "x", "allocated_bytes.all.current": 0})"),
              HasSubstr("is not allowed"));
  EXPECT_THAT(complaint(R"({"schema_version": 2, "devices": []})"), HasSubstr("schema_version: '2'"));
  EXPECT_THAT(complaint(R"({"schema_version": 1, "devices": []})"), HasSubstr("nothing was allocated"));
  EXPECT_THAT(complaint(R"({"schema_version": 1, "devices": [{}]})"), HasSubstr("without stats"));
}

TEST(Factors, SeparateStatesFromTheRest) {
  const TrainingRun run = test::must_read(small());
  const Factors factors({observed(run, 1.1, 0.8)}, signature_of(run, "").kernels);
  EXPECT_NEAR(factors.of(Group::kWeights).value, 1.1, 1e-9);
  EXPECT_NEAR(factors.of(Group::kOptimizer).value, 1.1, 1e-9);
  EXPECT_NEAR(factors.of_phase("end of forward").value, 0.8, 1e-9);
  EXPECT_FALSE(factors.of(Group::kWeights).spread.has_value()) << "one measurement has no spread";
  const Estimate calibrated = factors.apply(test::must_estimate(run));
  EXPECT_NEAR(calibrated.peak().peak_bytes, measured(run, 1.1, 0.8).allocated.peak, 8);
  EXPECT_NEAR(total_bytes(calibrated.peak().steady) + total_bytes(calibrated.peak().peak),
              calibrated.peak().peak_bytes, 8);
}

TEST(Factors, TwoSizesGiveWhatIsFixed) {
  const TrainingRun one = test::must_read(small({{"train.micro_batch", "4"}}));
  const TrainingRun two = test::must_read(small({{"train.micro_batch", "8"}}));
  const TrainingRun four = test::must_read(small({{"train.micro_batch", "16"}}));
  constexpr auto kTransient = static_cast<size_t>(Group::kTransient);
  const auto with_fixed = [&](const TrainingRun& run) {
    Observation out = observed(run, 1, 0.9);
    *out.measured[kTransient] += 1e8;
    return out;
  };
  const Factors factors({with_fixed(one), with_fixed(two)}, signature_of(one, "").kernels);
  EXPECT_NEAR(factors.of_phase("end of forward").value, 0.9, 1e-6);
  EXPECT_NEAR(factors.of_phase("end of forward").fixed_bytes, 1e8, 10);
  EXPECT_FALSE(factors.of_phase("end of forward").spread.has_value()) << "two unknowns from two";
  const Estimate calibrated = factors.apply(test::must_estimate(four));
  EXPECT_NEAR(calibrated.peak().peak_bytes - calibrated.peak().steady_bytes,
              *with_fixed(four).measured[kTransient], 100);
}

// A release of the framework that keeps its workspaces elsewhere shows as less than nothing that is fixed.
TEST(Factors, WorkspacesThatAreNotThereAreLearned) {
  const TrainingRun one = test::must_read(small({{"train.micro_batch", "4"}}));
  const TrainingRun two = test::must_read(small({{"train.micro_batch", "8"}}));
  const TrainingRun four = test::must_read(small({{"train.micro_batch", "16"}}));
  constexpr auto kTransient = static_cast<size_t>(Group::kTransient);
  const double workspaces = *observed(one, 1, 0.9).predicted[static_cast<size_t>(Group::kFixed)];
  ASSERT_GT(workspaces, 0);
  const auto without = [&](const TrainingRun& run) {
    Observation out = observed(run, 1, 0.9);
    *out.measured[kTransient] -= 0.99 * workspaces;
    return out;
  };
  const Factors factors({without(one), without(two)}, signature_of(one, "").kernels);
  EXPECT_NEAR(factors.of(Group::kFixed).value, 0.01, 1e-6);
  const Estimate expected = test::must_estimate(four);
  const Estimate calibrated = factors.apply(expected);
  EXPECT_NEAR(expected.peak().steady_bytes - calibrated.peak().steady_bytes, 0.99 * workspaces, 100);
  EXPECT_NEAR(calibrated.peak().peak_bytes - expected.peak().steady_bytes,
              *without(four).measured[kTransient], 100);
}

TEST(Factors, SpreadIsTheWorstErrorAndWidensTheInterval) {
  const TrainingRun run = test::must_read(small());
  const std::string kernels = signature_of(run, "").kernels;
  const Factors near({observed(run, 1, 0.99), observed(run, 1, 1.01)}, kernels);
  const Factors far({observed(run, 1, 0.9), observed(run, 1, 1.1)}, kernels);
  EXPECT_NEAR(*near.of_phase("end of forward").spread, 0.01, 1e-6);
  EXPECT_NEAR(*far.of_phase("end of forward").spread, 0.1, 1e-6);
  const Estimate estimate = test::must_estimate(run);
  const auto width = [&](const Factors& factors) {
    const Estimate calibrated = factors.apply(estimate);
    return calibrated.peak().highest_bytes - calibrated.peak().lowest_bytes;
  };
  EXPECT_GT(width(far), 5 * width(near));
}

// One measurement cannot tell what is fixed from what grows: farther from it the interval holds both.
TEST(Factors, OneSizeIsDoubtedAtAnother) {
  const TrainingRun run = test::must_read(small());
  const TrainingRun larger = test::must_read(small({{"train.micro_batch", "32"}}));
  const Factors factors({observed(run, 1, 0.8)}, signature_of(run, "").kernels);
  const GroupBytes here = predicted_groups(test::must_estimate(run).peak());
  const Estimate there = test::must_estimate(larger);
  const double fixed = 0.2 * *here[static_cast<size_t>(Group::kTransient)];
  const Estimate calibrated = factors.apply(there);
  EXPECT_GE(calibrated.peak().highest_bytes, there.peak().peak_bytes - fixed);
  EXPECT_LT(calibrated.peak().highest_bytes, there.peak().peak_bytes);
}

// What another kernel saves was not measured.
TEST(Factors, OtherKernelsSayNothingAboutActivations) {
  const TrainingRun run = test::must_read(small());
  const TrainingRun recomputed = test::must_read(small({{"train.recompute", "full"}}));
  const Factors factors({observed(run, 1.1, 0.8)}, signature_of(recomputed, "").kernels);
  EXPECT_EQ(factors.of_phase("end of forward").observations, 0u);
  EXPECT_NEAR(factors.of(Group::kWeights).value, 1.1, 1e-9);
}

TEST(Factors, APeakBelowTheStatesIsRefused) {
  const TrainingRun run = test::must_read(small());
  Measurement m = measured(run, 1, 1);
  m.allocated.peak = 1e6;
  const Result<GroupBytes> groups = measured_groups(m, test::must_estimate(run).peak(), false);
  EXPECT_THAT(groups.status().text(), HasSubstr("less than"));
}

TEST(Factors, StatesOfAnotherModelAreRefused) {
  const TrainingRun run = test::must_read(small());
  const Estimate estimate = test::must_estimate(run);
  const RankClass& rank = estimate.peak();
  EXPECT_TRUE(measured_groups(measured(run, 1.9, 1), rank, false).ok());
  EXPECT_THAT(measured_groups(measured(run, 2.1, 1), rank, false).status().text(),
              HasSubstr("not this run's"));
  EXPECT_THAT(measured_groups(measured(run, 0.4, 1), rank, false).status().text(),
              HasSubstr("not this run's"));
}

// A batch this small has about as much in the optimizer step: which of them was measured?
TEST(Factors, APeakThatDoesNotStandOutTeachesNoActivations) {
  const TrainingRun run = test::must_read(small({{"train.micro_batch", "1"}, {"train.sequence", "256"}}));
  const Estimate estimate = test::must_estimate(run);
  EXPECT_FALSE(peak_stands_out(estimate.peak()));
  EXPECT_TRUE(peak_stands_out(test::must_estimate(test::must_read(small())).peak()));
  const Result<GroupBytes> groups = measured_groups(measured(run, 1, 1), estimate.peak(), false);
  ASSERT_TRUE(groups.ok()) << groups.status().text();
  EXPECT_FALSE(groups.value()[static_cast<size_t>(Group::kTransient)].has_value());
  EXPECT_TRUE(groups.value()[static_cast<size_t>(Group::kOptimizer)].has_value());
}

TEST(Factors, BetweenStepsTheRestIsFixed) {
  const TrainingRun run = test::must_read(small());
  const Estimate estimate = test::must_estimate(run);
  Measurement m = measured(run, 1, 1);
  m.allocated.current = m.annotation("parameter_bytes") + m.annotation("optimizer_bytes") + 5e7;
  const Result<GroupBytes> groups = measured_groups(m, estimate.peak(), true);
  ASSERT_TRUE(groups.ok());
  EXPECT_NEAR(*groups.value()[static_cast<size_t>(Group::kFixed)], 5e7, 1);
}

TEST(Signature, BatchAndLengthShareAKeyAndLittleElseDoes) {
  const auto key = [](const RunKeys& more) { return signature_of(test::must_read(small(more)), "a").key(); };
  const std::string same = key({});
  EXPECT_EQ(same.size(), 32u);
  EXPECT_EQ(key({{"train.micro_batch", "2"}}), same);
  EXPECT_EQ(key({{"train.sequence", "128"}}), same);
  EXPECT_EQ(key({{"train.recompute", "full"}}), same);
  for (const RunKeys& other :
       {RunKeys{{"model.hidden_size", "1024"}}, RunKeys{{"model.num_hidden_layers", "7"}},
        RunKeys{{"parallel.gpus", "2"}}, RunKeys{{"train.optimizer", "lion"}},
        RunKeys{{"train.precision", "fp32"}}, RunKeys{{"allocator.model", "pytorch"}}})
    EXPECT_NE(key(other), same) << other.begin()->first;
  EXPECT_NE(signature_of(test::must_read(small()), "b").key(), same);
}

TEST(Catalog, WhatIsWrittenIsRead) {
  const CatalogLine line = line_of(test::must_read(small()), 1.1, 0.8);
  const Catalog catalog = read_catalog(to_text(line));
  ASSERT_EQ(catalog.lines.size(), 1u);
  EXPECT_EQ(catalog.damaged, "");
  EXPECT_EQ(to_text(catalog.lines.front()), to_text(line));
  EXPECT_EQ(catalog.lines.front().key, line.key);
}

TEST(Catalog, DamagedLinesAreNamedAndSkipped) {
  const std::string good = to_text(line_of(test::must_read(small()), 1, 1));
  for (const std::string& bad : {std::string("{"), std::string("null"), std::string("{}"),
                                 good.substr(0, good.size() / 2), std::string(R"({"schema_version": 2})")}) {
    std::string text = good;
    text.append(bad).append("\n").append(good);
    const Catalog catalog = read_catalog(text);
    EXPECT_EQ(catalog.lines.size(), 2u) << bad;
    EXPECT_THAT(catalog.damaged, HasSubstr("line 2 is damaged and skipped"));
  }
  EXPECT_THAT(read_catalog("x\ny\nz\n").damaged, HasSubstr("(and 2 more)"));
}

TEST(CalibratedEstimator, ShowsWhatWasMeasuredOnlyForThatRun) {
  const TrainingRun run = test::must_read(small());
  const TrainingRun other = test::must_read(small({{"train.sequence", "1024"}}));
  auto catalog = std::make_shared<Catalog>();
  catalog->lines.push_back(line_of(run, 1.1, 0.8));
  const Result<CalibratedEstimator> estimator = CalibratedEstimator::open(catalog, run, "");
  ASSERT_TRUE(estimator.ok()) << estimator.status().text();
  const Result<Calibration> same = estimator.value().explain(run), longer = estimator.value().explain(other);
  EXPECT_NEAR(*same.value().measured_peak, measured(run, 1.1, 0.8).allocated.peak, 1);
  EXPECT_FALSE(longer.value().measured_peak.has_value());
  EXPECT_NEAR(estimator.value()(other).value().peak().peak_bytes, measured(other, 1.1, 0.8).allocated.peak,
              100);
}

TEST(CalibratedEstimator, AnotherOptimizerKeepsWhatIsKnownOfActivations) {
  const TrainingRun run = test::must_read(small());
  auto catalog = std::make_shared<Catalog>();
  catalog->lines.push_back(line_of(run, 1.1, 0.8));
  const Result<CalibratedEstimator> estimator = CalibratedEstimator::open(catalog, run, "");
  const auto transient = [](const Estimate& estimate) {
    return estimate.peak().peak_bytes - estimate.peak().steady_bytes;
  };
  const TrainingRun lion = test::must_read(small({{"train.optimizer", "lion"}}));
  const Estimate calibrated = estimator.value()(lion).value();
  EXPECT_NEAR(transient(calibrated), 0.8 * transient(test::must_estimate(lion)), 8);
  EXPECT_EQ(calibrated.peak().steady_bytes, test::must_estimate(lion).peak().steady_bytes);
  const TrainingRun sharded = test::must_read(small({{"parallel.gpus", "2"}, {"parallel.zero", "3"}}));
  EXPECT_EQ(estimator.value()(sharded).value().peak().peak_bytes,
            test::must_estimate(sharded).peak().peak_bytes);
}

TEST(Signature, SaysWhatIsTrained) {
  const auto key = [](const RunKeys& more) {
    const RunKeys transformers = test::with({{"train.framework", "transformers"}}, more);
    return signature_of(test::must_read(small(transformers)), "a device").key();
  };
  const std::vector<std::string> keys = {
      key({}),
      key({{"adapter.kind", "lora"}, {"adapter.rank", "8"}}),
      key({{"adapter.kind", "lora"}, {"adapter.rank", "16"}}),
      key({{"train.layers_at_a_time", "1"}}),
      key({{"train.optimizer", "badam"}}),
      key({{"train.optimizer", "galore"}}),
      key({{"train.optimizer", "galore"}, {"train.optimizer_rank", "64"}}),
  };
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
}

TEST(CalibratedEstimator, RefusesAnotherModelAndTwoDevices) {
  const TrainingRun run = test::must_read(small());
  auto catalog = std::make_shared<Catalog>();
  catalog->lines.push_back(line_of(run, 1, 1));
  const TrainingRun wider = test::must_read(small({{"model.hidden_size", "1024"}}));
  EXPECT_THAT(CalibratedEstimator::open(catalog, wider, "").status().text(), HasSubstr("no line is of this"));
  CatalogLine elsewhere = line_of(run, 1, 1);
  elsewhere.signature.hardware = "another";
  elsewhere.key = elsewhere.signature.key();
  catalog->lines.push_back(elsewhere);
  EXPECT_THAT(CalibratedEstimator::open(catalog, run, "").status().text(),
              HasSubstr("allowed: 'a device', 'another'"));
  EXPECT_TRUE(CalibratedEstimator::open(catalog, run, "another").ok());
}

}  // namespace
}  // namespace spillway::estimator
