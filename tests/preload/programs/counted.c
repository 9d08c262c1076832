/* usage: counted CASE: memory that the driver serves and Spillway only counts. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "include/spillway/spillway.h"

/* What is served makes the device known, so that there is a dump of it. */
static void begin(void) {
  CUcontext context = NULL;
  CUdeviceptr pointer = 0;
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i)
    CHECK(cuMemAlloc(&pointer, 1 << 16) == CUDA_SUCCESS && cuMemFree(pointer) == CUDA_SUCCESS);
}

/* Of what the driver serves, by the name of its annotation; 0 before the first. */
static uint64_t counted_bytes(const char* name) {
  spw_status (*read)(int, const char*, uint64_t*) = NULL;
  uint64_t bytes = 0;
  *(void**)&read = dlsym(dlopen("libspillway.so.0", RTLD_NOW | RTLD_NOLOAD), "spw_annotation");
  CHECK(read != NULL);
  return read(0, name, &bytes) == SPW_OK ? bytes : 0;
}

static void counted(void) {
  CUdeviceptr managed = 0;
  CUarray array = NULL;
  void* host = NULL;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties;
  CUDA_ARRAY_DESCRIPTOR description = {256, 256, CU_AD_FORMAT_FLOAT, 1};
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  begin();
  CHECK(cuMemAllocManaged(&managed, 3 << 20, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuArrayCreate(&array, &description) == CUDA_SUCCESS);
  CHECK(cuMemHostAlloc(&host, 1 << 20, 0) == CUDA_SUCCESS);
  CHECK(cuMemCreate(&handle, 4 << 20, &properties, 0) == CUDA_SUCCESS);
  CHECK(cuMemAllocManaged(&managed, 5 << 20, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemFree(managed) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy(NULL) != CUDA_SUCCESS);
}

/* Memory of allocation nodes, made by capture and without: some is freed by nodes, and some outlives a
 * launch. */
static void graph_memory(void) {
  enum { kMiB = 1 << 20 };
  CUstream stream = NULL;
  CUgraph captured_graph = NULL;
  CUgraph graph = NULL;
  CUgraphExec launched = NULL;
  CUgraphNode nodes[3];
  CUdeviceptr inside = 0;
  CUdeviceptr outlives[2] = {0, 0};
  CUDA_MEM_ALLOC_NODE_PARAMS parameters;
  begin();
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&inside, kMiB, stream) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) CHECK(cuMemAllocAsync(&outlives[i], 2 * kMiB, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(inside, stream) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(stream, &captured_graph) == CUDA_SUCCESS);
  CHECK(cuGraphInstantiateWithFlags(&launched, captured_graph, 0) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(launched, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(outlives[0], stream) == CUDA_SUCCESS && cuMemFree(outlives[1]) == CUDA_SUCCESS);
  CHECK(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  memset(&parameters, 0, sizeof parameters);
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters.bytesize = 3 * kMiB;
  CHECK(cuGraphAddMemAllocNode(&nodes[0], graph, NULL, 0, &parameters) == CUDA_SUCCESS);
  inside = parameters.dptr;
  parameters.bytesize = 4 * kMiB;
  CHECK(cuGraphAddMemAllocNode(&nodes[1], graph, nodes, 1, &parameters) == CUDA_SUCCESS);
  CHECK(cuGraphAddMemFreeNode(&nodes[2], graph, nodes, 2, inside) == CUDA_SUCCESS);
}

/* A graph of one block, which is for the program or the next launch to free. */
static CUgraphExec one_block_graph(CUstream stream, size_t bytes, unsigned long long flags,
                                   CUdeviceptr* block) {
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(block, bytes, stream) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(*block, 1, bytes, stream) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(cuGraphInstantiateWithFlags(&exec, graph, flags) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  return exec;
}

/* What a graph holds from one launch to the next, which frees it, is counted all the while. */
static void relaunched_graph(void) {
  enum { kBytes = 2 << 20 };
  CUstream stream = NULL;
  CUdeviceptr block = 0;
  CUdeviceptr served = 0;
  cuuint64_t reserved = 0;
  begin();
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUgraphExec exec = one_block_graph(stream, kBytes, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, &block);
  for (int i = 0; i < 4; ++i) {
    CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    CHECK(counted_bytes("preload_graph_bytes") == kBytes);
    CHECK(cuMemAllocAsync(&served, kBytes, stream) == CUDA_SUCCESS && served != block);
    CHECK(cuMemcpyDtoDAsync(served, block, kBytes, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(served, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  }
  CHECK(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS);
  CHECK(reserved == kBytes && counted_bytes("preload_graph_bytes") == kBytes);
  CHECK(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
  CHECK(counted_bytes("preload_graph_bytes") == 0);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS && cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS);
  CHECK(reserved == 0 && cuGraphExecDestroy(exec) == CUDA_SUCCESS);
}

/* Memory comes to a graph when it is launched or uploaded: what Spillway only caches makes room for it. */
static void graph_in_a_full_device(void) {
  CUstream stream = NULL;
  CUdeviceptr block = 0;
  CUdeviceptr cached = 0;
  size_t free_bytes = 0;
  size_t all = 0;
  begin();
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK(cuMemGetInfo(&free_bytes, &all) == CUDA_SUCCESS);
  const size_t bytes = all / 4 * 3;
  for (int uploads = 0; uploads < 2; ++uploads) {
    CUgraphExec exec = one_block_graph(stream, bytes, 0, &block);
    CHECK(cuMemAllocAsync(&cached, bytes, stream) == CUDA_SUCCESS);
    CHECK(uploads ? cuGraphUpload(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY
                  : cuGraphLaunch(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemFreeAsync(cached, stream) == CUDA_SUCCESS);
    if (uploads) CHECK(cuGraphUpload(exec, stream) == CUDA_SUCCESS);
    CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(block, stream) == CUDA_SUCCESS && cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS && cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  }
}

typedef CUresult (*AddNode)(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUgraphNodeParams*);
typedef CUresult (*AddNodeWithEdges)(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*,
                                     size_t, CUgraphNodeParams*);
/* The header gives its name to the newer one. */
#undef cuGraphAddNode
extern CUresult cuGraphAddNode(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUgraphNodeParams*);
extern CUresult cuGraphAddNode_v2(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
                                  CUgraphNodeParams*);

/* One of the two shapes adds a node of memory; answers its address. */
static CUdeviceptr add_memory_node(CUgraph graph, AddNode add, AddNodeWithEdges add_with_edges, size_t bytes,
                                   CUdeviceptr freed) {
  CUgraphNode node = NULL;
  CUgraphNodeParams parameters;
  memset(&parameters, 0, sizeof parameters);
  parameters.type = bytes != 0 ? CU_GRAPH_NODE_TYPE_MEM_ALLOC : CU_GRAPH_NODE_TYPE_MEM_FREE;
  if (bytes != 0) {
    parameters.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    parameters.alloc.bytesize = bytes;
  } else {
    parameters.free.dptr = freed;
  }
  CHECK((add != NULL ? add(&node, graph, NULL, 0, &parameters)
                     : add_with_edges(&node, graph, NULL, NULL, 0, &parameters)) == CUDA_SUCCESS);
  return bytes != 0 ? parameters.alloc.dptr : 0;
}

/* Nodes of any kind are added by one call, in two shapes, which a program is linked with or asks for. */
static void graph_nodes(void) {
  enum { kMiB = 1 << 20 };
  AddNode asked_old = NULL;
  AddNodeWithEdges asked_new = NULL;
  CUdriverProcAddressQueryResult status;
  CUgraph graph = NULL;
  begin();
  CHECK(cuGetProcAddress("cuGraphAddNode", (void**)&asked_old, 12020, 0, &status) == CUDA_SUCCESS);
  CHECK(cuGetProcAddress("cuGraphAddNode", (void**)&asked_new, 13000, 0, &status) == CUDA_SUCCESS);
  CHECK((void*)asked_old != (void*)asked_new);
  const struct {
    AddNode add;
    AddNodeWithEdges add_with_edges;
  } kWays[] = {{cuGraphAddNode, NULL}, {NULL, cuGraphAddNode_v2}, {asked_old, NULL}, {NULL, asked_new}};
  CHECK(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  for (size_t i = 0; i < 4; ++i) {
    const uint64_t before = counted_bytes("preload_graph_bytes");
    const CUdeviceptr freed = add_memory_node(graph, kWays[i].add, kWays[i].add_with_edges, 2 * kMiB, 0);
    CHECK(counted_bytes("preload_graph_bytes") == before + 2 * kMiB);
    (void)add_memory_node(graph, kWays[i].add, kWays[i].add_with_edges, (i + 1) * kMiB, 0);
    (void)add_memory_node(graph, kWays[i].add, kWays[i].add_with_edges, 0, freed);
    CHECK(counted_bytes("preload_graph_bytes") == before + (i + 1) * kMiB);
  }
}

/* The driver's own memory of cuMemAlloc, which either call frees. */
static void plain_memory(void) {
  CUdeviceptr blocks[3];
  begin();
  for (int i = 0; i < 3; ++i) CHECK(cuMemAlloc(&blocks[i], (size_t)(i + 1) << 20) == CUDA_SUCCESS);
  CHECK(counted_bytes("preload_plain_bytes") == 6 << 20);
  CHECK(cuMemFree(blocks[0]) == CUDA_SUCCESS && cuMemFreeAsync(blocks[1], NULL) == CUDA_SUCCESS);
  CHECK(counted_bytes("preload_plain_bytes") == 3 << 20);
}

/* Memory of cuMemCreate takes the device's until it is released as often as it was held, and mapped nowhere.
 */
static void mapped_memory(void) {
  enum { kBytes = 4 << 20 };
  CUmemAllocationProp properties;
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle other = 0;
  CUmemGenericAllocationHandle again = 0;
  CUdeviceptr range = 0;
  int file = -1;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  begin();
  CHECK(cuMemAddressReserve(&range, 3 * kBytes, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(cuMemCreate(&handle, kBytes, &properties, 0) == CUDA_SUCCESS);
  CHECK(cuMemCreate(&other, kBytes, &properties, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(range, kBytes, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(range + kBytes, kBytes, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(range + 2 * kBytes, kBytes, 0, other, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(range, kBytes, 0, other, 0) != CUDA_SUCCESS); /* is taken, and changes nothing */
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS && cuMemUnmap(range, kBytes) == CUDA_SUCCESS);
  CHECK(counted_bytes("preload_vmm_bytes") == 2 * kBytes);
  CHECK(cuMemRetainAllocationHandle(&again, (void*)(range + kBytes)) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(range + kBytes, 2 * kBytes) == CUDA_SUCCESS); /* of both handles at once */
  CHECK(counted_bytes("preload_vmm_bytes") == 2 * kBytes);
  CHECK(cuMemRelease(again) == CUDA_SUCCESS);
  CHECK(counted_bytes("preload_vmm_bytes") == kBytes);
  CHECK(cuMemExportToShareableHandle(&file, other, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
        CUDA_SUCCESS);
  CHECK(cuMemImportFromShareableHandle(&again, (void*)(intptr_t)file,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
  CHECK(close(file) == 0 && cuMemRelease(other) == CUDA_SUCCESS);
  CHECK(counted_bytes("preload_vmm_bytes") == kBytes);
  CHECK(cuMemRelease(again) == CUDA_SUCCESS);
  CHECK(counted_bytes("preload_vmm_bytes") == 0);
}

/* A program that takes no other memory, as PyTorch with expandable segments. */
static void only_created(void) {
  CUcontext context = NULL;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(cuMemCreate(&handle, 6 << 20, &properties, 0) == CUDA_SUCCESS);
}

int main(int count, char** arguments) {
  const struct {
    const char* name;
    void (*run)(void);
  } kCases[] = {{"everything", counted},
                {"graph-memory", graph_memory},
                {"graph-nodes", graph_nodes},
                {"plain", plain_memory},
                {"graph-relaunched", relaunched_graph},
                {"graph-full", graph_in_a_full_device},
                {"only-created", only_created},
                {"mapped", mapped_memory}};
  CHECK(count == 2 && cuInit(0) == CUDA_SUCCESS);
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    if (strcmp(kCases[i].name, arguments[1]) != 0) continue;
    kCases[i].run();
    return 0;
  }
  return 1;
}

void check(int condition, const char* text, const char* file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: %s\n", file, line, text);
  exit(1);
}
