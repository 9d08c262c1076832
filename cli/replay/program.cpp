#include "cli/replay/program.h"

#include <algorithm>
#include <limits>

namespace spillway {

namespace {

using Operation = ReplayOperation;

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// Gives each pending free a helper stream. On one helper completions come in the order of the frees: of the
// helpers whose last completion is not later than this one, the one closest to it.
class Helpers {
 public:
  // False where every helper's last work completes later: the block then stays pending until more work
  // completes behind it.
  bool assign(uint64_t completed_at, uint16_t* helper) {
    size_t best = last_.size();
    for (size_t i = 0; i < last_.size(); ++i) {
      if (last_[i] <= completed_at && (best == last_.size() || last_[i] > last_[best])) best = i;
    }
    const bool in_order = best < last_.size() || last_.size() < ReplayProgram::kMaxHelpers;
    if (!in_order) {
      best = static_cast<size_t>(std::min_element(last_.begin(), last_.end()) - last_.begin());
    } else if (best == last_.size()) {
      last_.push_back(completed_at);
    } else {
      last_[best] = completed_at;
    }
    *helper = static_cast<uint16_t>(best);
    return in_order;
  }

  uint32_t count() const { return static_cast<uint32_t>(last_.size()); }

 private:
  std::vector<uint64_t> last_;  // event at which the last work on each helper completes
};

uint64_t count_calls(const std::vector<Operation>& operations) {
  return static_cast<uint64_t>(
      std::count_if(operations.begin(), operations.end(),
                    [](const Operation& operation) { return operation.kind != Operation::Kind::kComplete; }));
}

}  // namespace

ReplayProgram compile(const Trace& trace) {
  using Kind = TraceEvent::Kind;
  ReplayProgram program;
  program.streams = trace.streams;
  program.peak_live_bytes = trace.peak_live_bytes;
  program.blocks.reserve(trace.blocks.size());
  for (const TraceBlock& block : trace.blocks) program.blocks.push_back({block.bytes, block.stream});

  std::vector<uint64_t> completed_at(trace.blocks.size(), kNever);
  std::vector<bool> ends(trace.blocks.size(), false);    // free requested at some point
  std::vector<bool> starts(trace.blocks.size(), false);  // allocated by an event
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    if (event.kind == Kind::kFreeCompleted) completed_at[event.block] = i;
    if (event.kind == Kind::kAllocate) starts[event.block] = true;
    if (event.kind == Kind::kFree || event.kind == Kind::kFreeRequested) ends[event.block] = true;
  }

  Helpers helpers;
  std::vector<uint16_t> helper(trace.blocks.size(), 0);
  std::vector<bool> in_order(trace.blocks.size(), true);
  const auto free_pending = [&](uint32_t block) {
    in_order[block] = helpers.assign(completed_at[block], &helper[block]);
    return Operation{block, Operation::Kind::kFreePending, helper[block]};
  };

  std::vector<Operation> pending_again;
  for (uint32_t i = 0; i < trace.blocks.size(); ++i) {
    if (!trace.blocks[i].initially_live) continue;
    program.start.push_back({i, Operation::Kind::kAllocate, 0});
    if (trace.blocks[i].initially_pending) pending_again.push_back(free_pending(i));
  }
  program.start.insert(program.start.end(), pending_again.begin(), pending_again.end());

  program.pass.reserve(trace.events.size());
  for (const TraceEvent& event : trace.events) {
    switch (event.kind) {
      case Kind::kAllocate:
        program.pass.push_back({event.block, Operation::Kind::kAllocate, 0});
        break;
      case Kind::kFree:
        program.pass.push_back({event.block, Operation::Kind::kFree, 0});
        break;
      case Kind::kFreeRequested:
        program.pass.push_back(free_pending(event.block));
        break;
      case Kind::kFreeCompleted:
        if (in_order[event.block]) {
          program.pass.push_back({event.block, Operation::Kind::kComplete, helper[event.block]});
        }
        break;
    }
  }
  program.helpers = helpers.count();

  for (uint32_t i = 0; i < trace.blocks.size(); ++i) {
    if (starts[i] && !ends[i]) program.wrap.push_back({i, Operation::Kind::kFree, 0});
  }
  for (uint32_t i = 0; i < trace.blocks.size(); ++i) {
    const TraceBlock& block = trace.blocks[i];
    if (block.initially_live && (ends[i] || block.initially_pending)) {
      program.wrap.push_back({i, Operation::Kind::kAllocate, 0});
    }
  }
  program.wrap.insert(program.wrap.end(), pending_again.begin(), pending_again.end());
  program.calls_per_pass = count_calls(program.pass);
  program.calls_per_wrap = count_calls(program.wrap);
  return program;
}

}  // namespace spillway
