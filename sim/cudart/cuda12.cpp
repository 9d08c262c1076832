// The functions whose parameters CUDA 13 changed, as CUDA 12 has them: of libcudart.so.12 alone, for programs
// that were built for it. The headers are those of CUDA 13, so the older forms are declared here.
#include "sim/cudart/pointer_attributes.h"
#include "sim/cudart/properties.h"
#include "sim/cudart/runtime.h"

namespace spillway::cudart {
namespace {

// cudaDeviceProp of CUDA 12.0 to 12.9, with what nobody fills left as gaps: 1,032 bytes, offsets by NVIDIA's
// driver_types.h of these releases.
struct Properties12 {
  char name[256];
  cudaUUID_t uuid;
  char luid[8];
  unsigned int luidDeviceNodeMask;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
  int deviceOverlap;
  int multiProcessorCount;
  int kernelExecTimeoutEnabled;
  int integrated;
  int canMapHostMemory;
  int computeMode;
  int texturesAndSurfaces[40];
  size_t surfaceAlignment;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int tccDriver;
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryClockRate;
  int memoryBusWidth;
  int l2CacheSize;
  int persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int l1Caches[2];
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  int managedMemory;
  int boards[4];
  int pageableMemoryAccess;
  int concurrentManagedAccess;
  int computePreemptionSupported;
  int canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  int cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageTables[2];
  int maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisters[4];
  int memoryPoolsSupported;
  int gpuDirectRDMASupported;
  int rest[7];
  int hostNumaId;  // reserved there: CUDA 12 has no such property
  int reserved[62];
};

// cudaPointerAttributes without the reserved bytes that CUDA 13 put behind it.
struct PointerAttributes12 {
  cudaMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
};
static_assert(sizeof(PointerAttributes12) == 24);

static_assert(offsetof(Properties12, multiProcessorCount) == 388);
static_assert(offsetof(Properties12, l2CacheSize) == 616);
static_assert(offsetof(Properties12, sharedMemPerBlockOptin) == 696);
static_assert(offsetof(Properties12, maxBlocksPerMultiProcessor) == 712);
static_assert(offsetof(Properties12, memoryPoolsSupported) == 744);
static_assert(sizeof(Properties12) == 1032);

}  // namespace
}  // namespace spillway::cudart

using spillway::cudart::call;
using spillway::cudart::DriverTable;

extern "C" {

// The headers declare these names with the parameters of CUDA 13.
cudaError_t get_pointer_attributes(spillway::cudart::PointerAttributes12* attributes,
                                   const void* pointer) asm("cudaPointerGetAttributes");
cudaError_t get_dependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies,
                             size_t* count) asm("cudaGraphNodeGetDependencies");

cudaError_t cudaGetDeviceProperties_v2(spillway::cudart::Properties12* properties, int device) {
  return spillway::cudart::properties_of(properties, device);
}

cudaError_t get_pointer_attributes(spillway::cudart::PointerAttributes12* attributes, const void* pointer) {
  return spillway::cudart::attributes_of(attributes, pointer);
}

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t** dependencies, size_t* dependency_count) {
  const cudaGraphEdgeData** no_edges = nullptr;
  auto* driver_id = reinterpret_cast<cuuint64_t*>(id);
  return call(&DriverTable::stream_get_capture_info, stream, reinterpret_cast<CUstreamCaptureStatus*>(status),
              driver_id, graph, dependencies, reinterpret_cast<const CUgraphEdgeData**>(no_edges),
              dependency_count);
}

cudaError_t get_dependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies, size_t* count) {
  CUgraphEdgeData* no_edges = nullptr;
  return call(&DriverTable::graph_node_get_dependencies, node, dependencies, no_edges, count);
}

}  // extern "C"
