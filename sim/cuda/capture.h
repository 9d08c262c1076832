// Stream capture and graphs. While a stream captures, what is put on it becomes a node instead; waiting for
// an event that was recorded under capture draws the waiting stream in. A graph is its nodes, in an order
// that respects dependencies.
//
// A launch gives each branch of the graph a timeline of its own, so that branches run in any order and are
// checked against each other like streams.
//
// Which calls are refused while something captures follows cuda.h (cuThreadExchangeStreamCaptureMode): a call
// that may be unsafe fails with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the captures it
// disturbs.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sim/cuda/state.h"
#include "sim/cuda/work.h"

namespace spillway::sim {

struct Graph;

// Reports call nodes of memory so.
constexpr const char* kAllocationNode = "allocation node";
constexpr const char* kFreeNode = "free node";

struct Node {
  Graph* graph = nullptr;
  size_t index = 0;
  WorkPtr work;
  std::vector<RangeAccess> accesses;
  const char* what = "";
  std::vector<size_t> after;
};

struct Graph {
  bool alive = false;
  std::deque<Node> nodes;  // a node's address is its handle
  GraphBlocks blocks;
};

struct GraphExec {
  bool alive = false;
  bool frees_on_launch = false;  // what a launch before left
  std::shared_ptr<Graph> nodes;  // a copy
};

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t thread = 0;
  bool invalidated = false;
  bool ended = false;
  Stream* origin = nullptr;
  std::vector<Stream*> members;
  Graph* graph = nullptr;
};

void drop_graph(State& state, Graph* graph);
// Live graphs of the process; part of State by reference, so that state.h need not know graphs.
Slots<Graph>& graph_slots();
Slots<GraphExec>& graph_exec_slots();

// Refuses a potentially unsafe call of this thread if a capture forbids it, and invalidates that capture.
CUresult check_unsafe_call(State& state);
// Refuses calls that ask about or wait for this stream if it captures.
CUresult check_not_capturing(Stream* stream);
// Refuses waits for the whole context if one of its streams captures.
CUresult check_context_not_capturing(State& state, const Context* context);
// Refuses work on the legacy default stream if a blocking stream of the context captures, and invalidates
// that capture; a question about the legacy stream is refused alike but disturbs nothing.
CUresult check_legacy(State& state, const Stream* stream, bool invalidates = true);

CUresult capture_node(Stream* stream, WorkPtr work, std::vector<RangeAccess> accesses, const char* what);
// cuMemAllocAsync and cuMemFreeAsync under capture: an allocation and a free node.
CUresult capture_allocation(Call& call, Stream* stream, CUdeviceptr* out, uint64_t bytes, int device);
CUresult capture_free(State& state, Stream* stream, CUdeviceptr start);
void capture_record(Stream* stream, Event* event);
// Result of a wait in which the stream or the event captures.
CUresult capture_wait(Stream* stream, Event* event);

CUresult begin_capture(State& state, Stream* stream, CUstreamCaptureMode mode);
CUresult end_capture(State& state, Stream* stream, CUgraph* graph);
CUresult launch_graph(State& state, GraphExec& exec, Stream* stream, Lock& lock);
// A stream that is destroyed takes its capture with it.
void abandon_capture(State& state, Stream* stream);

}  // namespace spillway::sim
