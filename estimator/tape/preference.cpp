#include "estimator/tape/preference.h"

#include <algorithm>

namespace spillway::estimator {
namespace {

// trl/kernels/chunked_logprob.py, and trl/trainer/utils.py: tokens and vocabulary of a tile.
constexpr double kTileTokens = 4096;
constexpr double kTileEntries = 32768;
constexpr double kStatistics = 7;  // of each row, in fp32

}  // namespace

// hidden_states[:, :-1][mask]: gradients of what was indexed, then of what was sliced.
Tensor scored_rows(const Operators& op, const Tensor& x, double rows, double width) {
  Tape& tape = op.tape();
  Tape::Recorder recorder(tape, {x.edge});
  recorder.save(tape.make_share(2 * 8 * rows));  // sequence and place of each
  Tensor out = tape.make(rows * width, x.element);
  const double whole = x.bytes();
  out.edge = recorder.finish([=](Backward& run) {
    const Share indexed = run.make(whole);
    run.give(0, run.make(whole));
  });
  return out;
}

// ChunkedLogProbFunction: gradients add up in fp32 and are cast at the end, when all that it has made is
// there.
Tensor log_probabilities(const Operators& op, const Tensor& rows, const Tensor& table, double entries,
                         double compute) {
  Tape& tape = op.tape();
  const double width = table.elements / entries, count = rows.elements / width;
  const double tokens = std::min(count, kTileTokens), columns = std::min(entries, kTileEntries);
  const double tile = compute * tokens * columns;
  const double token_copy = rows.element == compute ? 0 : compute * tokens * width;
  const double table_copy = table.element == compute ? 0 : compute * columns * width;
  // The backward pass has a tile's copies while the next one's are made.
  const double token_copies = count > kTileTokens ? 2 : 1,
               table_copies = entries > kTileEntries || count > kTileTokens ? 2 : 1;
  const bool rows_need = rows.edge.any(), table_needs = table.edge.any();
  Tape::Recorder recorder(tape, {rows.edge, table.edge});
  recorder.save(rows.data);
  recorder.save(tape.make_share((8 + 4 + 4) * count));  // tokens, log-sums, entropies
  Tensor out = tape.make(count, 4);
  {
    const Share statistics = tape.make_share(kStatistics * 4 * count), logits = tape.make_share(tile);
    const Share token = tape.make_share(token_copy), part = tape.make_share(table_copy);
  }
  const double of_rows = rows.elements, of_table = table.elements, row_element = rows.element,
               table_element = table.element;
  out.edge = recorder.finish([=](Backward& run) {
    Share row_sums = rows_need ? run.make(4 * of_rows) : Share();
    Share table_sums = table_needs ? run.make(4 * of_table) : Share();
    const Share logits = run.make(tile), token = run.make(token_copies * token_copy),
                part = run.make(table_copies * table_copy);
    const Share whole_rows = row_sums, whole_table = table_sums;
    if (rows_need) run.give(0, row_element < 4 ? run.make(row_element * of_rows) : std::move(row_sums));
    if (table_needs)
      run.give(1, table_element < 4 ? run.make(table_element * of_table) : std::move(table_sums));
  });
  return out;
}

Tensor answer_probabilities(const Operators& op, const Tensor& logits, double samples, double of_sample) {
  Tape& tape = op.tape();
  const double whole = logits.bytes(), row = of_sample * logits.element, rows = samples * row;
  const auto node = [&](const Edge& input, Formula formula) {
    return Tape::Recorder(tape, {input}).finish(std::move(formula));
  };
  // CopySlices, and the view's own: zeros of all logits around the answers'.
  const Edge divided = node(logits.edge, [=](Backward& run) {
    Share result = run.make(whole);
    const Share part = run.make(rows), quotient = run.make(rows);
    run.give(0, std::move(result));
  });
  const Edge answers = node(divided, [=](Backward& run) { run.give(0, run.make(whole)); });
  const bool half = logits.element < 4;
  Edge gathered;
  if (!half) gathered = node(answers, [=](Backward& run) { run.give(0, run.make(rows)); });
  // Gradients of samples become one tensor.
  const Edge unbound = node(answers, [=](Backward& run) { run.give(0, run.make(rows)); });
  Tape::Recorder recorder(tape, {unbound, gathered});
  const Share softmax = half ? tape.make_share(rows) : logits.data;
  recorder.save(softmax);
  Tensor out = tape.make(1, 4);
  if (!half) const Share exponentials = tape.make_share(row);
  // A sample's log-softmax goes as its gradient comes.
  out.edge = recorder.finish([=](Backward& run) {
    const Share temporaries = run.make(2 * row);
    run.give(0, half ? softmax : run.make(rows));
    if (!half) run.give(1, run.make(row));
  });
  return out;
}

}  // namespace spillway::estimator
