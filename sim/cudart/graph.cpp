// Graphs, by capture only: a graph built node by node is not of this device.
#include "sim/cudart/runtime.h"

using spillway::cudart::call;
using spillway::cudart::DriverTable;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call(&DriverTable::stream_begin_capture, stream, static_cast<CUstreamCaptureMode>(mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call(&DriverTable::stream_end_capture, stream, graph);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  return call(&DriverTable::graph_instantiate, executable, graph, flags);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return call(&DriverTable::graph_instantiate, executable, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call(&DriverTable::graph_launch, executable, stream);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call(&DriverTable::graph_destroy, graph);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call(&DriverTable::graph_exec_destroy, executable);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return call(&DriverTable::graph_get_nodes, graph, nodes, count);
}

}  // extern "C"
