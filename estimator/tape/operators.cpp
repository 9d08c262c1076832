#include "estimator/tape/operators.h"

#include <algorithm>
#include <utility>

#include "estimator/tape/sums.h"

namespace spillway::estimator {
namespace {

using Recorder = Tape::Recorder;

// The commonest backward: it makes the gradient of the one input.
Edge gives_gradient(Recorder& recorder, double bytes) {
  return recorder.finish([=](Backward& run) { run.give(0, run.make(bytes)); });
}

}  // namespace

Tensor Operators::for_product(const Tensor& x) const {
  return autocast_ ? cast(x, 2) : x;
}

// cached_cast: one copy for each weight that is trained and in fp32, until autocast ends.
Tensor Operators::weight_for_product(const Tensor& weight, bool viewed) const {
  if (!autocast_ || weight.element <= 2) return weight;
  if (viewed) return cast(weight, 2);
  auto& casts = tape_.casts();
  const auto known = std::find_if(casts.begin(), casts.end(), [&](const auto& cast) {
    return weight.edge.any() && cast.first.node == weight.edge.node;
  });
  if (known != casts.end()) return known->second;
  const Purpose before = tape_.set_purpose(Purpose::kCopies);
  Tensor out = cast(weight, 2);
  tape_.set_purpose(before);
  if (weight.edge.any()) casts.emplace_back(weight.edge, out);
  return out;
}

// ConvolutionBackward0: one call makes the gradients of the input, the weight and the bias. Its workspace is
// cuDNN's choice.
Tensor Operators::convolution(const Tensor& given, const Tensor& whole_weight, const Tensor& bias,
                              double elements) const {
  const Tensor x = for_product(given);
  const Tensor weight = weight_for_product(whole_weight);
  const Edge to_input = x.edge, to_weight = weight.edge, to_bias = bias.edge;
  Recorder recorder(tape_, {to_input, to_weight, to_bias});
  recorder.save(x.data);
  recorder.save(weight.data);
  Tensor out = tape_.make(elements, x.element);
  const double input_bytes = x.bytes(), weight_bytes = weight.bytes(), bias_bytes = bias.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    if (to_input.any()) run.give(0, run.make(input_bytes));
    if (to_weight.any()) run.give(1, run.make(weight_bytes));
    if (to_bias.any()) run.give(2, run.make(bias_bytes));
  });
  return out;
}

// MmBackward0 and AddmmBackward0: the gradient of the input, then that of the weight. The weight's is kept
// for the input's, and the input for the weight's; of a weight that is not trained nothing is kept for it.
Tensor Operators::linear(const Tensor& given, const Matrix& matrix) const {
  const Tensor x = matrix.grouped ? cast(given, matrix.weight.element) : for_product(given);
  const Tensor weight = matrix.grouped ? matrix.weight : weight_for_product(matrix.weight, matrix.viewed);
  const double rows = x.elements / matrix.in;
  const bool transposed = matrix.transposed;
  const Edge to_input = x.edge, to_weight = weight.edge, to_bias = matrix.bias.edge;
  Recorder recorder(tape_, {to_input, to_weight, to_bias});
  if (to_weight.any()) recorder.save(x.data);
  if (to_input.any() && !matrix.quantised) recorder.save(weight.data);
  // bitsandbytes, MatMul4Bit: the copy goes with the product, forward and backward.
  const double copied = matrix.quantised ? 2 * matrix.in * matrix.out : 0;
  const Share copy = tape_.make_share(copied);
  Tensor out = tape_.make(rows * matrix.out, x.element);
  const double input_bytes = x.bytes(), weight_bytes = weight.bytes(), width = matrix.out,
               element = x.element;
  out.edge = recorder.finish([=](Backward& run) {
    const Share again = run.make(copied);
    if (to_input.any()) run.give(0, run.make(input_bytes).view());
    if (to_weight.any()) {
      Share gradient = run.make(weight_bytes);
      run.give(1, transposed ? std::move(gradient).view() : std::move(gradient));
    }
    // Once all have been made (validate_outputs).
    run.end_formula();
    if (to_bias.any()) run.give(2, summed(run, rows, width, element));
  });
  return out;
}

Tensor Operators::add(const Tensor& a, const Tensor& b) const {
  const double element = std::max(a.element, b.element);
  Recorder recorder(tape_, {a.edge, b.edge});
  Tensor out = tape_.make(std::max(a.elements, b.elements), element);
  const bool a_needs = a.edge.any(), b_needs = b.edge.any();
  const Tensor of_a = {{}, a.elements, a.element, {}}, of_b = {{}, b.elements, b.element, {}};
  const double elements = out.elements;
  out.edge = recorder.finish([=](Backward& run) {
    const auto one = [&](size_t input, const Tensor& of) {
      if (of.elements < elements)
        run.give(input, summed(run, elements / of.elements, of.elements, of.element));
      else
        run.give(input, of.element < element ? run.make(of.bytes()) : run.gradient());
    };
    if (a_needs) one(0, of_a);
    if (b_needs) one(1, of_b);
  });
  return out;
}

Tensor Operators::add_in_place(Tensor a, const Tensor& b) const {
  Recorder recorder(tape_, {a.edge, b.edge});
  const bool a_needs = a.edge.any(), b_needs = b.edge.any();
  a.edge = recorder.finish([=](Backward& run) {
    if (a_needs) run.give(0, run.gradient());
    if (b_needs) run.give(1, run.gradient());
  });
  return a;
}

Tensor Operators::multiply(const Tensor& a, const Tensor& b) const {
  const double element = std::max(a.element, b.element);
  const bool a_needs = a.edge.any(), b_needs = b.edge.any();
  Recorder recorder(tape_, {a.edge, b.edge});
  if (b_needs) recorder.save(a.data);
  if (a_needs) recorder.save(b.data);
  Tensor out = tape_.make(std::max(a.elements, b.elements), element);
  const double whole = out.bytes(), elements = out.elements;
  const Tensor of_a = {{}, a.elements, a.element, {}}, of_b = {{}, b.elements, b.element, {}};
  out.edge = recorder.finish([=](Backward& run) {
    // mul_tensor_backward; a smaller factor's is summed up from a whole one.
    const auto one = [&](size_t input, const Tensor& of) {
      Share product = run.make(whole);
      if (of.elements < elements)
        product = summed(run, elements / of.elements, of.elements, of.element);
      else if (of.bytes() < whole)
        product = run.make(of.bytes());
      run.give(input, std::move(product));
    };
    if (a_needs) one(0, of_a);
    if (b_needs) one(1, of_b);
  });
  return out;
}

// div_tensor_self_backward and div_tensor_other_backward: -grad * ((self / other) / other).
Tensor Operators::divide(const Tensor& a, const Tensor& b) const {
  Recorder recorder(tape_, {a.edge, b.edge});
  recorder.save(a.data);
  recorder.save(b.data);
  Tensor out = tape_.make(a.elements, a.element);
  const Tensor of_b = {{}, b.elements, b.element, {}};
  out.edge = recorder.finish([whole = out.bytes(), elements = a.elements, of_b](Backward& run) {
    run.give(0, run.make(whole));
    Share part = run.make(whole);
    Share quotient = run.make(whole);
    part = run.make(whole);  // the gradient with its sign turned
    Share product = run.make(whole);
    part.reset();
    quotient.reset();
    if (of_b.elements < elements)
      product = summed(run, elements / of_b.elements, of_b.elements, of_b.element);
    run.give(1, std::move(product));
  });
  return out;
}

Tensor Operators::product(const Tensor& a, const Tensor& b, double elements) const {
  Recorder recorder(tape_, {a.edge, b.edge});
  if (b.needs_gradient()) recorder.save(a.data);
  if (a.needs_gradient()) recorder.save(b.data);
  Tensor out = tape_.make(elements, a.element);
  const double a_bytes = a.bytes(), b_bytes = b.bytes();
  const bool a_needs = a.needs_gradient(), b_needs = b.needs_gradient();
  out.edge = recorder.finish([=](Backward& run) {
    if (a_needs) run.give(0, run.make(a_bytes));
    if (b_needs) run.give(1, run.make(b_bytes));
  });
  return out;
}

Tensor Operators::where(const Tensor& a, const Tensor& b) const {
  Recorder recorder(tape_, {a.edge, b.edge});
  const Tensor condition = tape_.make(a.elements, 1);
  recorder.save(condition.data);
  Tensor out = tape_.make(a.elements, std::max(a.element, b.element));
  const double whole = out.bytes(), of_a = a.bytes(), of_b = b.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    for (size_t i = 0; i < 2; ++i) {
      Share part = run.make(whole);
      if (const double bytes = i == 0 ? of_a : of_b; bytes < whole) part = run.make(bytes);
      run.give(i, std::move(part));
    }
  });
  return out;
}

Tensor Operators::multiply_by_weight(const Tensor& x, const Tensor& weight) const {
  const bool x_needs = x.edge.any(), weight_needs = weight.edge.any();
  Recorder recorder(tape_, {weight.edge, x.edge});
  if (weight_needs) recorder.save(x.data);
  Tensor out = tape_.make(x.elements, std::max(x.element, weight.element));
  const double whole = out.bytes(), of_x = x.bytes();
  const double columns = weight.elements, rows = x.elements / columns, element = weight.element;
  out.edge = recorder.finish([=](Backward& run) {
    // The weight's is summed up after both are there (validate_outputs, sum_to).
    Share product = weight_needs ? run.make(whole) : Share();
    if (x_needs) {
      Share gradient = run.make(whole);
      if (of_x < whole) gradient = run.make(of_x);
      run.give(1, std::move(gradient));
    }
    if (weight_needs) run.give(0, summed(run, rows, columns, element));
  });
  return out;
}

Tensor Operators::scale(const Tensor& x, double element) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(x.elements, element);
  const double bytes = x.bytes(), whole = out.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    Share gradient = run.make(whole);
    if (bytes < whole) gradient = run.make(bytes);
    run.give(0, std::move(gradient));
  });
  return out;
}

Tensor Operators::cast(const Tensor& x, double element) const {
  if (x.element == element) return x;
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(x.elements, element);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

Tensor Operators::activation(const Tensor& x) const {
  Recorder recorder(tape_, {x.edge});
  recorder.save(x.data);
  Tensor out = tape_.make(x.elements, x.element);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

Tensor Operators::activation_of_result(const Tensor& x) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(x.elements, x.element);
  recorder.save(out.data);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

// pow_backward: grad * (exponent * self.pow(exponent - 1)), all of one expression.
Tensor Operators::power(const Tensor& x) const {
  Recorder recorder(tape_, {x.edge});
  recorder.save(x.data);
  Tensor out = tape_.make(x.elements, x.element);
  const double bytes = x.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    const Share power = run.make(bytes);
    const Share factor = run.make(bytes);
    run.give(0, run.make(bytes));
  });
  return out;
}

// mean_backward divides the expanded gradient.
Tensor Operators::mean(const Tensor& x, double rows) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(rows, x.element);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

// NativeLayerNormBackward0: input, mean and the inverse of the deviation, both fp32. Autocast runs it in
// fp32.
Tensor Operators::layer_norm(const Tensor& given, const Tensor& weight, double rows, bool casts) const {
  const Tensor x = autocast_ && casts ? cast(given, 4) : given;
  Recorder recorder(tape_, {x.edge, weight.edge, weight.edge});
  recorder.save(x.data);
  Tensor out = tape_.make(x.elements, x.element);
  for (int i = 0; i < 2; ++i) {
    const Tensor statistic = tape_.make(rows, 4);
    recorder.save(statistic.data);
  }
  const bool x_needs = x.edge.any(), weight_needs = weight.edge.any();
  const double bytes = x.bytes(), of_weight = weight.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    if (x_needs) run.give(0, run.make(bytes));
    if (!weight_needs) return;
    run.give(1, run.make(of_weight));
    run.give(2, run.make(of_weight));
  });
  return out;
}

// FusedRmsNormBackward0: input, weight and the inverse of the root, in fp32.
Tensor Operators::rms_norm(const Tensor& x, const Tensor& weight, double rows) const {
  Recorder recorder(tape_, {x.edge, weight.edge});
  recorder.save(x.data);
  Tensor out = tape_.make(x.elements, x.element);
  recorder.save(tape_.make(rows, 4).data);
  const bool x_needs = x.edge.any(), weight_needs = weight.edge.any();
  const double bytes = x.bytes(), of_weight = weight.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    if (x_needs) run.give(0, run.make(bytes));
    if (weight_needs) run.give(1, run.make(of_weight));
  });
  return out;
}

// NativeDropoutBackward0 keeps a byte for each element (native/cuda/Dropout.cu).
Tensor Operators::dropout(const Tensor& x) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(x.elements, x.element);
  const Tensor mask = tape_.make(x.elements, 1);
  recorder.save(mask.data);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

Tensor Operators::beside(const Tensor& x, const Tensor& kept) const {
  Recorder recorder(tape_, {x.edge});
  recorder.save(kept.data);
  Tensor out = x;
  out.edge = recorder.finish([](Backward& run) { run.give(0, run.gradient()); });
  return out;
}

Tensor Operators::copy(const Tensor& x) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(x.elements, x.element);
  out.edge = recorder.finish([](Backward& run) { run.give(0, Share(run.gradient()).view()); });
  return out;
}

Tensor Operators::resampled(const Tensor& x, double elements) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(elements, x.element);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

Tensor Operators::slice(const Tensor& x, double elements) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = x.view(elements);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

std::vector<Tensor> Operators::split(const Tensor& x, const std::vector<double>& elements) const {
  Recorder recorder(tape_, {x.edge});
  const double bytes = x.bytes();
  const Edge edge = recorder.finish([=](Backward& run) { run.give(0, run.make(bytes)); }, elements.size());
  std::vector<Tensor> out;
  for (size_t i = 0; i < elements.size(); ++i) {
    out.push_back(x.view(elements[i]));
    out.back().edge = edge.any() ? Edge{edge.node, static_cast<int64_t>(i)} : Edge{};
  }
  return out;
}

// CatBackward0 gives views of its gradient, or copies where a part has narrower elements.
Tensor Operators::concatenate(const Tensor& a, const Tensor& b) const {
  return concatenate(std::vector<Tensor>{a, b});
}

Tensor Operators::concatenate(const std::vector<Tensor>& parts) const {
  std::vector<Edge> edges;
  double elements = 0, element = 0;
  for (const Tensor& part : parts) {
    edges.push_back(part.edge);
    elements += part.elements;
    element = std::max(element, part.element);
  }
  Recorder recorder(tape_, edges);
  Tensor out = tape_.make(elements, element);
  std::vector<double> copied;  // negative: of no part that asks for a gradient; 0: a view
  for (const Tensor& part : parts)
    copied.push_back(!part.edge.any() ? -1 : part.element < element ? part.bytes() : 0);
  out.edge = recorder.finish([copied](Backward& run) {
    for (size_t i = 0; i < copied.size(); ++i) {
      if (copied[i] >= 0) run.give(i, copied[i] > 0 ? run.make(copied[i]) : Share(run.gradient()).view());
    }
  });
  return out;
}

Tensor Operators::scatter(const Tensor& x, const Tensor& rows) const {
  Recorder recorder(tape_, {x.edge, rows.edge});
  Tensor out = tape_.make(x.elements, x.element);
  // Which row each element takes (IndexKernel.cu, launch_masked_scatter_kernel).
  const Share places = tape_.make_share(8 * x.elements);
  const bool x_needs = x.edge.any(), rows_need = rows.edge.any();
  const double bytes = x.bytes(), row_bytes = rows.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    if (x_needs) run.give(0, run.make(bytes));
    if (rows_need) run.give(1, run.make(row_bytes));
  });
  return out;
}

Tensor Operators::view_of_transposed(const Tensor& x) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = x;
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

Tensor Operators::in_place(const Tensor& x) const {
  return view_of_transposed(x);
}

Tensor Operators::sum_of_rows(const Tensor& x, double elements) const {
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(elements, x.element);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

// SoftmaxBackward0 keeps the result. What comes in as bfloat16 is cast first (SoftMax.cpp, softmax).
Tensor Operators::softmax(const Tensor& given, double element) const {
  const Tensor x = float16_ || element < given.element ? given : cast(given, element);
  Recorder recorder(tape_, {x.edge});
  Tensor out = tape_.make(x.elements, element);
  recorder.save(out.data);
  const double bytes = x.bytes(), whole = out.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    // softmax_backward_cuda_out: the product of gradient and result.
    const Share product = run.make(whole);
    run.give(0, run.make(bytes));
  });
  return out;
}

// embedding_dense_backward makes the whole table's gradient.
Tensor Operators::embedding(const Tensor& table, double tokens, double width) const {
  Recorder recorder(tape_, {table.edge});
  Tensor out = tape_.make(tokens * width, table.element);
  const double bytes = table.bytes(), sum_bytes = embedding_sum_bytes(tokens, table.elements / width, width);
  out.edge = recorder.finish([=](Backward& run) {
    Share gradient = run.make(bytes);
    const Share sums = run.make(sum_bytes);
    run.give(0, std::move(gradient));
  });
  return out;
}

Tensor Operators::patches(const Tensor& weights, double elements) const {
  Recorder recorder(tape_, {weights.edge});
  Tensor out = tape_.make(elements, weights.element);
  const double bytes = weights.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

Tensor Operators::cross_entropy(const Tensor& logits) const {
  Recorder first(tape_, {logits.edge});
  Tensor probabilities = tape_.make(logits.elements, logits.element);
  first.save(probabilities.data);
  const double bytes = logits.bytes();
  probabilities.edge = gives_gradient(first, bytes);
  // Autocast runs the second part in fp32.
  if (autocast_) probabilities = cast(probabilities, 4);
  const double wide = probabilities.bytes();
  Recorder second(tape_, {probabilities.edge});
  second.save(probabilities.data);
  Tensor out = tape_.make(1, 4);
  out.edge = second.finish([=](Backward& run) { run.give(0, run.make(wide)); });
  return out;
}

// MseLossBackward0 keeps x, and the target, which the caller holds.
Tensor Operators::squared_error(const Tensor& x) const {
  Recorder recorder(tape_, {x.edge});
  recorder.save(x.data);
  Tensor out = tape_.make(1, 4);
  const double bytes = x.bytes();
  out.edge = gives_gradient(recorder, bytes);
  return out;
}

}  // namespace spillway::estimator
