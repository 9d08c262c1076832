// One line of the answer: bytes with the formula and the source they follow from. Names and texts are
// literals.
#pragma once

#include <vector>

namespace spillway::estimator {

struct Bucket {
  const char* name;
  double bytes;
  const char* formula;
  const char* source;
};

using Buckets = std::vector<Bucket>;

double total_bytes(const Buckets& buckets);

}  // namespace spillway::estimator
