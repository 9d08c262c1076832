// Graphs, by capture only: a graph built node by node is not of this device.
#include "sim/cudart/runtime.h"

using spillway::cudart::call;
using spillway::cudart::call_without_context;
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

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return call(&DriverTable::graph_upload, executable, stream);
}

cudaError_t cudaDeviceGraphMemTrim(int device) {
  return call_without_context(&DriverTable::graph_mem_trim, device);
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute, void* value) {
  return call_without_context(&DriverTable::graph_mem_get, device,
                              static_cast<CUgraphMem_attribute>(attribute), value);
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute, void* value) {
  return call_without_context(&DriverTable::graph_mem_set, device,
                              static_cast<CUgraphMem_attribute>(attribute), value);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return call(&DriverTable::graph_get_nodes, graph, nodes, count);
}

}  // extern "C"
