// The functions whose parameters CUDA 13 changed, as it has them: of libcudart.so.13 alone.
#include "sim/cudart/pointer_attributes.h"
#include "sim/cudart/properties.h"
#include "sim/cudart/runtime.h"

using spillway::cudart::call;
using spillway::cudart::DriverTable;

extern "C" {

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return spillway::cudart::properties_of(properties, device);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return spillway::cudart::attributes_of(attributes, pointer);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                     size_t* dependency_count) {
  auto* driver_id = reinterpret_cast<cuuint64_t*>(id);
  return call(&DriverTable::stream_get_capture_info, stream, reinterpret_cast<CUstreamCaptureStatus*>(status),
              driver_id, graph, dependencies, reinterpret_cast<const CUgraphEdgeData**>(edges),
              dependency_count);
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies,
                                         cudaGraphEdgeData* edges, size_t* count) {
  return call(&DriverTable::graph_node_get_dependencies, node, dependencies,
              reinterpret_cast<CUgraphEdgeData*>(edges), count);
}

}  // extern "C"
