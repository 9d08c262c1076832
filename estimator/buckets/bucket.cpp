#include "estimator/buckets/bucket.h"

namespace spillway::estimator {

double total_bytes(const Buckets& buckets) {
  double total = 0;
  for (const Bucket& bucket : buckets) total += bucket.bytes;
  return total;
}

}  // namespace spillway::estimator
