// What PyTorch's sums over rows take while they run.
#pragma once

#include "estimator/tape/tape.h"

namespace spillway::estimator {

// What gradients take while they are added up by rows of a table, in bytes: tokens in order, where those of
// each row begin, and sums of parts (Embedding.cu, EmbeddingBackwardKernel.cu).
double embedding_sum_bytes(double tokens, double rows, double width);

// sum_to_size(): a gradient of `rows` rows becomes one of `columns` elements.
Share summed(Backward& run, double rows, double columns, double element);

}  // namespace spillway::estimator
