#include "estimator/tape/mixer_operators.h"

namespace spillway::estimator {

Tensor by_heads(const Operators& op, const Tensor& x) {
  return x.element < 4 ? op.cast(x, 4) : op.copy(x);
}

Tensor repeated_heads(const Operators& op, const Tensor& x, double times) {
  if (times == 1) return op.copy(x);
  Tape::Recorder recorder(op.tape(), {x.edge});
  Tensor out = op.tape().make(x.elements * times, x.element);
  out.edge = recorder.finish([bytes = x.bytes()](Backward& run) { run.give(0, run.make(bytes)); });
  return out;
}

Tensor row_sums(const Operators& op, const Tensor& x, double rows) {
  Tape::Recorder recorder(op.tape(), {x.edge});
  Tensor out = op.tape().make(rows, x.element);
  out.edge = recorder.finish([](Backward& run) { run.give(0, Share(run.gradient()).view()); });
  return out;
}

Tensor running_sums(const Operators& op, const Tensor& x) {
  Tape::Recorder recorder(op.tape(), {x.edge});
  Tensor out = op.tape().make(x.elements, x.element);
  out.edge = recorder.finish([bytes = x.bytes()](Backward& run) {
    Share turned = run.make(bytes);
    const Share sums = run.make(bytes);
    turned.reset();
    run.give(0, run.make(bytes));
  });
  return out;
}

Tensor padded(const Operators& op, const Tensor& x, double elements) {
  return op.resampled(x, elements);
}

Tensor outer_product(const Operators& op, const Tensor& a, const Tensor& b, double elements) {
  Tape::Recorder recorder(op.tape(), {a.edge, b.edge});
  if (b.needs_gradient()) recorder.save(a.data);
  if (a.needs_gradient()) recorder.save(b.data);
  Tensor out = op.tape().make(elements, a.element);
  const double whole = out.bytes();
  out.edge = recorder.finish([whole, of_a = a.bytes(), of_b = b.bytes()](Backward& run) {
    Share first = run.make(whole), second = run.make(whole);
    run.end_formula();
    if (of_a < whole) first = run.make(of_a);
    run.give(0, std::move(first));
    if (of_b < whole) second = run.make(of_b);
    run.give(1, std::move(second));
  });
  return out;
}

Tensor pairwise(const Operators& op, const Tensor& x, double elements) {
  Tape::Recorder recorder(op.tape(), {x.edge, x.edge});
  Tensor out = op.tape().make(elements, x.element);
  out.edge = recorder.finish([whole = out.bytes(), bytes = x.bytes()](Backward& run) {
    const Share turned = run.make(whole);
    run.give(0, run.make(bytes));
    run.give(1, run.make(bytes));
  });
  return out;
}

Tensor filled(const Operators& op, const Tensor& x, double elements) {
  Tape::Recorder recorder(op.tape(), {x.edge});
  Tensor out = op.tape().make(elements, x.element);
  out.edge = recorder.finish([whole = out.bytes(), bytes = x.bytes()](Backward& run) {
    Share gradient = run.make(whole);
    if (bytes < whole) gradient = run.make(bytes);
    run.give(0, std::move(gradient));
  });
  return out;
}

Tensor segments(const Operators& op, const Tensor& x, double elements) {
  return op.activation_of_result(filled(op, running_sums(op, filled(op, x, elements)), elements));
}

Tensor with_part(const Operators& op, const Tensor& into, const Tensor& part) {
  Tape::Recorder recorder(op.tape(), {into.edge, part.edge});
  Tensor out = into;
  out.edge =
      recorder.finish([whole = into.bytes(), bytes = part.bytes(), first = !into.edge.any()](Backward& run) {
        Share copy = run.make(whole);
        run.give(1, run.make(bytes));
        if (!first) run.give(0, std::move(copy));
      });
  return out;
}

}  // namespace spillway::estimator
