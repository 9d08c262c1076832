// The buckets of a played step, for the answer.
#pragma once

#include "estimator/buckets/bucket.h"
#include "estimator/tape/step.h"

namespace spillway::estimator {

Buckets played_buckets(const PlayedStep& step, const char* source);

}  // namespace spillway::estimator
