// The formula that is printed beside a bucket: the one by which its bytes were counted for this run. e is the
// bytes of an element of activations, i those of a kept input of a product (less than e with fp8);
// docs/estimate.md has the other letters.
#pragma once

#include "estimator/run.h"

namespace spillway::estimator {

const char* norms_formula(const TrainingRun& run);
const char* attention_formula(const TrainingRun& run);
const char* scores_formula(const TrainingRun& run);
const char* feed_forward_formula(const TrainingRun& run);
const char* experts_formula(const TrainingRun& run);
const char* mixers_formula(const TrainingRun& run);
const char* loss_formula(const TrainingRun& run);
const char* head_formula(const TrainingRun& run);
const char* master_formula(const Training& training);
const char* moments_formula(const Training& training);
const char* weights_formula(const Training& training);

}  // namespace spillway::estimator
