#include "estimator/tape/adapters.h"

namespace spillway::estimator {

// peft/tuners/ia3/layer.py, Linear.forward. Factors of several adapters would be multiplied: one is by 1.
Tensor scaled(const Operators& op, const Adapter& adapter, const Tensor& x, double element, double width) {
  const Tensor factors = op.scale(op.tape().weight(width, adapter.element));
  return op.cast(op.multiply_by_weight(x, factors), element);
}

// peft/tuners/lora/layer.py, Linear.forward; dora.py, DoraLinearLayer.forward.
Tensor adapted(const Operators& op, const Adapter& adapter, const Tensor& x, Tensor result, double in,
               double out) {
  Tape& tape = op.tape();
  const auto rank = static_cast<double>(adapter.rank);
  const auto trained = [&](double from, double to) {
    return Matrix{tape.weight(from * to, adapter.element), {}, from, to};
  };
  const double element = result.element;
  const Tensor cast = op.cast(x, adapter.element);
  const Matrix down = trained(in, rank), up = trained(rank, out);
  const auto narrow = [&](const Tensor& given) {
    const Tensor inner = op.linear(given, down);
    return op.linear(inner, up);
  };
  const Tensor dropped_input = adapter.dropout ? op.dropout(cast) : cast;
  if (!adapter.dora) {
    Tensor more = narrow(dropped_input);
    more = op.scale(more);
    result = op.add(result, more);
    return op.cast(result, element);
  }
  const Tensor magnitude = tape.weight(out, adapter.element);
  {
    // The norm of the whole matrix, of the product with a unit matrix: nothing of it stays.
    const Tensor product = tape.make(in * out + in * in, adapter.element);
    const Tensor weight = tape.make(in * out, adapter.element),
                 sum = tape.make(2 * in * out, adapter.element);
  }
  Tensor base = result;
  // With dropout the product is computed again, of the dropped input and a copy of the weight.
  if (adapter.dropout) base = op.linear(dropped_input, {tape.make(in * out, adapter.element), {}, in, out});
  base = op.multiply_by_weight(base, magnitude);
  Tensor more = narrow(dropped_input);
  more = op.multiply_by_weight(more, magnitude);
  more = op.scale(more);
  more = op.add(base, more);
  result = op.add(result, more);
  return op.cast(result, element);
}

}  // namespace spillway::estimator
