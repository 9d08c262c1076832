// What linear attention and state spaces are written in beside operators.h: products of every pair, sums over
// the last dimension, running sums, copies for each of several heads, zeros at the end.
#pragma once

#include "estimator/tape/operators.h"

namespace spillway::estimator {

// A copy, in fp32, with heads in front of tokens.
Tensor by_heads(const Operators& op, const Tensor& x);

// repeat_interleave: a copy for each of several heads, whose gradient is summed up.
Tensor repeated_heads(const Operators& op, const Tensor& x, double times);

// A sum over the last dimension, whose gradient is a view.
Tensor row_sums(const Operators& op, const Tensor& x, double rows);

// cumsum, whose gradient is turned, summed and turned back.
Tensor running_sums(const Operators& op, const Tensor& x);

// constant_pad_nd, which copies where nothing is added too, and its gradient.
Tensor padded(const Operators& op, const Tensor& x, double elements);

// Every element of `a` with every one of `b` along a dimension of each: their product, or their difference.
// A factor's gradient is summed up from a whole one, once both are there.
Tensor outer_product(const Operators& op, const Tensor& a, const Tensor& b, double elements);
Tensor pairwise(const Operators& op, const Tensor& x, double elements);

// masked_fill of what is expanded to `elements`.
Tensor filled(const Operators& op, const Tensor& x, double elements);

// segment_sum, and its exponential: running sums of what is expanded, both masked.
Tensor segments(const Operators& op, const Tensor& x, double elements);

// into[...] = part (CopySlices): the gradient of what was there before is a copy of the whole one's.
Tensor with_part(const Operators& op, const Tensor& into, const Tensor& part);

}  // namespace spillway::estimator
