// Capture and graphs, as far as captured graphs are instantiated, launched and destroyed.
#include "sim/cuda/call.h"
#include "sim/cuda/capture.h"

using namespace spillway::sim;

namespace {

Graph* find_graph(CUgraph handle) {
  auto* graph = reinterpret_cast<Graph*>(handle);
  return Slots<Graph>::is_alive(graph) ? graph : nullptr;
}

CUstreamCaptureStatus status_of(const Stream& stream) {
  if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// Null for a default stream without a context, which captures nothing, is an error as everywhere.
Stream* stream_of(Call& call, CUstream handle, CUresult* result) {
  Stream* stream = call.refused() ? nullptr : find_stream(call.state(), handle);
  *result = call.refused() ? call.result() : (stream == nullptr ? refuse_stream(handle) : CUDA_SUCCESS);
  return stream;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, size_t* count) {
  Call call(EntryPoint::k_cuStreamGetCaptureInfo);
  CUresult result = CUDA_SUCCESS;
  Stream* stream = stream_of(call, handle, &result);
  if (stream == nullptr) return result;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy && stream->capture == nullptr) {
    result = check_legacy(call.state(), stream, false);
    if (result != CUDA_SUCCESS) return result;
  }
  *status = status_of(*stream);
  if (count != nullptr) *count = 0;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream->capture->graph);
  stream->capture_dependencies.clear();
  for (const size_t node : stream->capture_tail) {
    stream->capture_dependencies.push_back(
        reinterpret_cast<CUgraphNode>(&stream->capture->graph->nodes[node]));
  }
  if (dependencies != nullptr) *dependencies = stream->capture_dependencies.data();
  if (count != nullptr) *count = stream->capture_dependencies.size();
  return CUDA_SUCCESS;
}

// The flags of the documentation, those that exclude each other apart.
bool are_valid(unsigned long long flags, unsigned long long allowed) {
  constexpr unsigned long long kExclusive =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
  return (flags & ~allowed) == 0 && (flags & kExclusive) != kExclusive;
}

constexpr unsigned long long kInstantiateFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                                 CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                                                 CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

CUresult instantiate(EntryPoint entry, CUgraphExec* exec, CUgraph handle, unsigned long long flags = 0,
                     unsigned long long allowed = kInstantiateFlags) {
  Call call(entry);
  if (call.refused()) return call.result();
  const Graph* graph = find_graph(handle);
  if (exec == nullptr || graph == nullptr || !are_valid(flags, allowed)) return CUDA_ERROR_INVALID_VALUE;
  auto copy = std::make_shared<Graph>();
  for (const Node& node : graph->nodes) {
    Node& made = copy->nodes.emplace_back();
    made.work.reset(node.work == nullptr ? nullptr : new Work(*node.work));
    made.accesses = node.accesses;
    made.what = node.what;
    made.after = node.after;
  }
  copy->blocks = graph->blocks;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
    if (const CUresult result = upload_graph_blocks(call.state(), copy->blocks); result != CUDA_SUCCESS)
      return result;
  }
  retain_graph_blocks(call.state(), copy->blocks);
  GraphExec* slot = graph_exec_slots().make();
  slot->frees_on_launch = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  slot->nodes = std::move(copy);
  *exec = reinterpret_cast<CUgraphExec>(slot);
  return CUDA_SUCCESS;
}

CUresult copy_handles(const std::vector<CUgraphNode>& from, CUgraphNode* to, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (to != nullptr) {
    for (size_t i = 0; i < *count; ++i) to[i] = i < from.size() ? from[i] : nullptr;
  }
  if (to == nullptr || *count > from.size()) *count = from.size();
  return CUDA_SUCCESS;
}

struct NewNode {
  CUgraphNode* out;
  CUgraph graph;
  const CUgraphNode* before;
  size_t count;
};

// A node that allocates or frees this block.
CUgraphNode add_node(State& state, Graph& graph, const NewNode& wanted, CUdeviceptr block, const char* what) {
  Node& node = graph.nodes.emplace_back();
  node.graph = &graph;
  node.index = graph.nodes.size() - 1;
  node.what = what;
  node.accesses = {whole_graph_block(state, block)};
  for (size_t i = 0; i < wanted.count; ++i)
    node.after.push_back(reinterpret_cast<const Node*>(wanted.before[i])->index);
  return reinterpret_cast<CUgraphNode>(&node);
}

// Null where the arguments are none of a node's.
Graph* graph_of(const NewNode& node) {
  Graph* graph = find_graph(node.graph);
  return node.out == nullptr || (node.count != 0 && node.before == nullptr) ? nullptr : graph;
}

// `parameters` is of either version of the structure.
template <typename Parameters>
CUresult add_allocation(Call& call, const NewNode& node, Parameters* parameters) {
  if (call.refused()) return call.result();
  Graph* graph = graph_of(node);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      parameters->poolProps.location.id != call.context()->device)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "allocation nodes have memory of the current device here");
  const CUresult result = add_graph_block(call, graph->blocks, &parameters->dptr, parameters->bytesize,
                                          parameters->poolProps.location.id);
  if (result == CUDA_SUCCESS)
    *node.out = add_node(call.state(), *graph, node, parameters->dptr, kAllocationNode);
  return result;
}

CUresult add_free(Call& call, const NewNode& node, CUdeviceptr pointer) {
  if (call.refused()) return call.result();
  Graph* graph = graph_of(node);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = add_graph_free(call.state(), graph->blocks, pointer);
  if (result == CUDA_SUCCESS) *node.out = add_node(call.state(), *graph, node, pointer, kFreeNode);
  return result;
}

}  // namespace

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  Call call(EntryPoint::k_cuStreamBeginCapture);
  CUresult result = CUDA_SUCCESS;
  Stream* stream = stream_of(call, handle, &result);
  if (stream == nullptr) return result;
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  return begin_capture(call.state(), stream, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return cuStreamBeginCapture_v2(per_thread(stream), mode);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Call call(EntryPoint::k_cuStreamEndCapture);
  CUresult result = CUDA_SUCCESS;
  Stream* stream = stream_of(call, handle, &result);
  if (stream == nullptr) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return end_capture(call.state(), stream, graph);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return cuStreamEndCapture(per_thread(stream), graph);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  Call call(EntryPoint::k_cuStreamIsCapturing);
  CUresult result = CUDA_SUCCESS;
  Stream* stream = stream_of(call, handle, &result);
  if (stream == nullptr) return result;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // The legacy stream cannot say while a blocking stream captures.
  result = check_legacy(call.state(), stream, false);
  if (result != CUDA_SUCCESS) return result;
  *status = status_of(*stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return cuStreamIsCapturing(per_thread(stream), status);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, count);
}
CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                        CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  return capture_info(per_thread(stream), status, id, graph, dependencies, count);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, dependencies, count);
}
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                        CUgraph* graph, const CUgraphNode** dependencies,
                                        const CUgraphEdgeData** edges, size_t* count) {
  return cuStreamGetCaptureInfo_v3(per_thread(stream), status, id, graph, dependencies, edges, count);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  Call call(EntryPoint::k_cuThreadExchangeStreamCaptureMode);
  if (call.refused()) return call.result();
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, this_thread().capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  Call call(EntryPoint::k_cuGraphCreate);
  if (call.refused()) return call.result();
  if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *graph = reinterpret_cast<CUgraph>(graph_slots().make());
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
  Call call(EntryPoint::k_cuGraphDestroy);
  if (call.refused()) return call.result();
  Graph* graph = find_graph(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  drop_graph(call.state(), graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* before, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  Call call(EntryPoint::k_cuGraphAddMemAllocNode, kNeedsContext);
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                               : add_allocation(call, {out, graph, before, count}, parameters);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* before, size_t count,
                               CUdeviceptr pointer) {
  Call call(EntryPoint::k_cuGraphAddMemFreeNode, kNeedsContext);
  return add_free(call, {out, graph, before, count}, pointer);
}

CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* before, const CUgraphEdgeData*,
                           size_t count, CUgraphNodeParams* parameters) {
  Call call(EntryPoint::k_cuGraphAddNode, kNeedsContext);
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const NewNode node{out, graph, before, count};
  if (parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) return add_allocation(call, node, &parameters->alloc);
  if (parameters->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return add_free(call, node, parameters->free.dptr);
  return fail(CUDA_ERROR_NOT_SUPPORTED, "cuGraphAddNode adds allocation and free nodes here");
}
CUresult cuGraphAddNode_v1(CUgraphNode* out, CUgraph graph, const CUgraphNode* before, size_t count,
                           CUgraphNodeParams* parameters) __asm__("cuGraphAddNode");
CUresult cuGraphAddNode_v1(CUgraphNode* out, CUgraph graph, const CUgraphNode* before, size_t count,
                           CUgraphNodeParams* parameters) {
  return cuGraphAddNode_v2(out, graph, before, nullptr, count, parameters);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiate(EntryPoint::k_cuGraphInstantiate, exec, graph, flags);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*, size_t) {
  return instantiate(EntryPoint::k_cuGraphInstantiate, exec, graph);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result =
      instantiate(EntryPoint::k_cuGraphInstantiateWithParams, exec, graph, parameters->flags,
                  kInstantiateFlags | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  parameters->hErrNode_out = nullptr;
  parameters->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  Call call(EntryPoint::k_cuGraphLaunch);
  CUresult result = CUDA_SUCCESS;
  Stream* stream = stream_of(call, stream_handle, &result);
  if (stream == nullptr) return result;
  auto* exec = reinterpret_cast<GraphExec*>(handle);
  if (!Slots<GraphExec>::is_alive(exec)) return CUDA_ERROR_INVALID_VALUE;
  return launch_graph(call.state(), *exec, stream, call.lock());
}
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return cuGraphLaunch(exec, per_thread(stream));
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream) {
  Call call(EntryPoint::k_cuGraphUpload);
  if (call.refused()) return call.result();
  const auto* exec = reinterpret_cast<GraphExec*>(handle);
  return Slots<GraphExec>::is_alive(exec) ? upload_graph_blocks(call.state(), exec->nodes->blocks)
                                          : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return cuGraphUpload(exec, stream);
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  Call call(EntryPoint::k_cuGraphExecDestroy);
  if (call.refused()) return call.result();
  auto* exec = reinterpret_cast<GraphExec*>(handle);
  if (!Slots<GraphExec>::is_alive(exec)) return CUDA_ERROR_INVALID_VALUE;
  release_graph_blocks(call.state(), exec->nodes->blocks);
  exec->nodes.reset();
  graph_exec_slots().drop(exec);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  Call call(EntryPoint::k_cuGraphGetNodes);
  if (call.refused()) return call.result();
  Graph* graph = find_graph(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> all;
  for (Node& node : graph->nodes) all.push_back(reinterpret_cast<CUgraphNode>(&node));
  return copy_handles(all, nodes, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* edges,
                                       size_t* count) {
  Call call(EntryPoint::k_cuGraphNodeGetDependencies);
  if (call.refused()) return call.result();
  const auto* node = reinterpret_cast<const Node*>(handle);
  if (node == nullptr || node->graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> before;
  for (const size_t index : node->after)
    before.push_back(reinterpret_cast<CUgraphNode>(&node->graph->nodes[index]));
  const CUresult result = copy_handles(before, nodes, count);
  if (result == CUDA_SUCCESS && edges != nullptr && nodes != nullptr) {
    for (size_t i = 0; i < *count; ++i) edges[i] = CUgraphEdgeData{};
  }
  return result;
}
CUresult cuGraphNodeGetDependencies_v1(CUgraphNode handle, CUgraphNode* nodes,
                                       size_t* count) __asm__("cuGraphNodeGetDependencies");
CUresult cuGraphNodeGetDependencies_v1(CUgraphNode handle, CUgraphNode* nodes, size_t* count) {
  return cuGraphNodeGetDependencies_v2(handle, nodes, nullptr, count);
}

}  // extern "C"
