#include "sim/cuda/capture.h"

#include <algorithm>

#include "sim/cuda/call.h"

namespace spillway::sim {
namespace {

CUresult invalidate(Capture& capture, CUresult result) {
  capture.invalidated = true;
  return result;
}

void add_unique(std::vector<size_t>* to, const std::vector<size_t>& from) {
  for (const size_t node : from) {
    if (std::find(to->begin(), to->end(), node) == to->end()) to->push_back(node);
  }
}

// Tells whether this capture forbids unsafe calls to the calling thread.
bool forbids(const Capture& capture) {
  const ThreadState& thread = this_thread();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (capture.thread == thread.id) return capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  return thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
         capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

// Every node that these come after, themselves included.
std::vector<bool> ancestors(const Graph& graph, const std::vector<size_t>& of) {
  std::vector<bool> found(graph.nodes.size(), false);
  for (const size_t node : of) found[node] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    if (!found[i]) continue;
    for (const size_t before : graph.nodes[i].after) found[before] = true;
  }
  return found;
}

bool all_joined(const Capture& capture) {
  const std::vector<bool> joined = ancestors(*capture.graph, capture.origin->capture_tail);
  return std::all_of(capture.members.begin(), capture.members.end(), [&](const Stream* stream) {
    return std::all_of(stream->capture_tail.begin(), stream->capture_tail.end(),
                       [&](size_t node) { return joined[node]; });
  });
}

void dissolve(State& state, Capture& capture) {
  capture.ended = true;
  std::erase(state.captures, &capture);
  const std::vector<Stream*> members = std::move(capture.members);
  capture.members.clear();
  for (Stream* stream : members) {
    stream->capture_tail.clear();
    stream->capture.reset();  // may be the last owner of the capture
  }
}

}  // namespace

void drop_graph(State& state, Graph* graph) {
  release_graph_blocks(state, graph->blocks);
  graph->nodes.clear();
  graph->blocks = {};
  graph_slots().drop(graph);
}

Slots<Graph>& graph_slots() {
  static auto* const kSlots = new Slots<Graph>;
  return *kSlots;
}

Slots<GraphExec>& graph_exec_slots() {
  static auto* const kSlots = new Slots<GraphExec>;
  return *kSlots;
}

CUresult check_unsafe_call(State& state) {
  CUresult result = CUDA_SUCCESS;
  for (Capture* capture : state.captures) {
    if (forbids(*capture)) result = invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return result;
}

CUresult check_not_capturing(Stream* stream) {
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult check_context_not_capturing(State& state, const Context* context) {
  CUresult result = CUDA_SUCCESS;
  for (Capture* capture : state.captures) {
    if (capture->origin->context == context)
      result = invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return result;
}

CUresult check_legacy(State& state, const Stream* stream, bool invalidates) {
  if (!stream->legacy || state.captures.empty()) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const Stream* other : stream->context->streams) {
    if (!other->blocking || other->capture == nullptr) continue;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (invalidates) other->capture->invalidated = true;
  }
  return result;
}

CUresult capture_node(Stream* stream, WorkPtr work, std::vector<RangeAccess> accesses, const char* what) {
  Capture& capture = *stream->capture;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Graph& graph = *capture.graph;
  Node& node = graph.nodes.emplace_back();
  node.graph = &graph;
  node.index = graph.nodes.size() - 1;
  node.work = std::move(work);
  node.accesses = std::move(accesses);
  node.what = what;
  node.after = std::move(stream->capture_tail);
  stream->capture_tail = {node.index};
  return CUDA_SUCCESS;
}

CUresult capture_allocation(Call& call, Stream* stream, CUdeviceptr* out, uint64_t bytes, int device) {
  if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  CUdeviceptr start = 0;
  CUresult result = out == nullptr
                        ? CUDA_ERROR_INVALID_VALUE
                        : add_graph_block(call, stream->capture->graph->blocks, &start, bytes, device);
  if (result == CUDA_SUCCESS)
    result = capture_node(stream, nullptr, {whole_graph_block(call.state(), start)}, kAllocationNode);
  if (result == CUDA_SUCCESS) *out = start;
  return result;
}

CUresult capture_free(State& state, Stream* stream, CUdeviceptr start) {
  if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  const CUresult result = add_graph_free(state, stream->capture->graph->blocks, start);
  return result == CUDA_SUCCESS ? capture_node(stream, nullptr, {whole_graph_block(state, start)}, kFreeNode)
                                : result;
}

void capture_record(Stream* stream, Event* event) {
  event->capture = stream->capture;
  event->capture_nodes = stream->capture_tail;
}

CUresult capture_wait(Stream* stream, Event* event) {
  const std::shared_ptr<Capture> from = event->capture;
  const std::shared_ptr<Capture> into = stream->capture;
  if (from == nullptr) return invalidate(*into, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (from->ended)
    return into == nullptr ? CUDA_ERROR_CAPTURED_EVENT : invalidate(*into, CUDA_ERROR_CAPTURED_EVENT);
  if (from->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (into == nullptr) {
    if (stream->legacy) return invalidate(*from, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    stream->capture = from;
    stream->capture_tail = event->capture_nodes;
    from->members.push_back(stream);
    return CUDA_SUCCESS;
  }
  if (into != from) {
    into->invalidated = true;
    return invalidate(*from, CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  if (into->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  add_unique(&stream->capture_tail, event->capture_nodes);
  return CUDA_SUCCESS;
}

CUresult begin_capture(State& state, Stream* stream, CUstreamCaptureMode mode) {
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = state.next_id++;
  capture->mode = mode;
  capture->thread = this_thread().id;
  capture->origin = stream;
  capture->members = {stream};
  capture->graph = graph_slots().make();
  stream->capture_tail.clear();
  stream->capture = capture;
  state.captures.push_back(capture.get());
  return CUDA_SUCCESS;
}

CUresult end_capture(State& state, Stream* stream, CUgraph* graph) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) return invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  if (capture->thread != this_thread().id && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->invalidated) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!all_joined(*capture)) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  dissolve(state, *capture);
  if (result != CUDA_SUCCESS) {
    drop_graph(state, capture->graph);
    *graph = nullptr;
    return result;
  }
  *graph = reinterpret_cast<CUgraph>(capture->graph);
  return CUDA_SUCCESS;
}

void abandon_capture(State& state, Stream* stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return;
  capture->invalidated = true;
  if (capture->origin != stream) {
    std::erase(capture->members, stream);
    stream->capture.reset();
    return;
  }
  dissolve(state, *capture);
  drop_graph(state, capture->graph);
}

CUresult launch_graph(State& state, GraphExec& exec, Stream* stream, Lock& lock) {
  Scheduler& scheduler = state.scheduler;
  const std::shared_ptr<Graph> graph = exec.nodes;
  if (stream->capture != nullptr) {
    if (!graph->blocks.empty())
      return fail(CUDA_ERROR_NOT_SUPPORTED, "a graph with memory of its own is no child of another");
    for (const Node& node : graph->nodes) {
      WorkPtr work(node.work == nullptr ? nullptr : new Work(*node.work));
      const CUresult result = capture_node(stream, std::move(work), node.accesses, node.what);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }
  // The launch itself is a position of the stream: all branches begin after it, and the next position after
  // all of them.
  CUresult begun = begin_graph_launch(state, graph->blocks, exec.frees_on_launch, stream, lock);
  if (begun == CUDA_SUCCESS) begun = enqueue(state, stream, nullptr, {}, "cuGraphLaunch", lock);
  if (begun != CUDA_SUCCESS) return begun;
  struct Place {
    TimelineId timeline;
    uint64_t position;
    VectorClock clock;
  };
  const Place start{stream->timeline, scheduler.enqueued(stream->timeline),
                    scheduler.clock(stream->timeline)};
  std::vector<Place> places;
  std::vector<TimelineId> branches;
  for (const Node& node : graph->nodes) {
    // A node goes on with the branch of a predecessor that is still that branch's end.
    TimelineId timeline = kNoTimeline;
    for (const size_t before : node.after) {
      if (scheduler.enqueued(places[before].timeline) == places[before].position)
        timeline = places[before].timeline;
    }
    if (timeline == kNoTimeline) {
      timeline = scheduler.open();
      state.detector.name_timeline(timeline, stream->id);
      branches.push_back(timeline);
      scheduler.order_after(timeline, start.timeline, start.position, start.clock);
    }
    for (const size_t before : node.after) {
      scheduler.order_after(timeline, places[before].timeline, places[before].position, places[before].clock);
    }
    WorkPtr work(node.work == nullptr ? nullptr : new Work(*node.work));
    enqueue_on(state, timeline, *stream, std::move(work), node.accesses, node.what, lock);
    places.push_back({timeline, scheduler.enqueued(timeline), scheduler.clock(timeline)});
  }
  for (const TimelineId branch : branches) {
    scheduler.order_after(stream->timeline, branch, scheduler.enqueued(branch), scheduler.clock(branch));
    scheduler.close(branch);
  }
  const CUresult ended = enqueue(state, stream, nullptr, {}, "cuGraphLaunch", lock);
  end_graph_launch(state, graph->blocks, *stream);
  return ended;
}

}  // namespace spillway::sim
