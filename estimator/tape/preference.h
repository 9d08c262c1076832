// How TRL scores the tokens of a sequence without its logits, on a tape.
#pragma once

#include "estimator/tape/operators.h"

namespace spillway::estimator {

// `rows` of x's, each of the table's width: those whose tokens are scored.
Tensor scored_rows(const Operators& op, const Tensor& x, double rows, double width);

// The log-probability of each row's token, of a vocabulary of `entries`: tiles of logits are made, used and
// made again. `compute`: bytes of an element of a tile.
Tensor log_probabilities(const Operators& op, const Tensor& rows, const Tensor& table, double entries,
                         double compute);

// The log-probability of each token of an answer, of whole logits: those behind the prompt are a view of
// `of_sample` elements for each sample, which a temperature divides in place (selective_log_softmax of TRL
// 1.12). Sample by sample, a log-softmax in 16 bits is kept; in fp32 a sum of exponentials is enough.
Tensor answer_probabilities(const Operators& op, const Tensor& logits, double samples, double of_sample);

}  // namespace spillway::estimator
