// Defines what PyTorch's libraries import and this device does not have. Each answers cudaErrorNotSupported,
// as CUDA does on a device that lacks a feature, and hands nothing out.
#include "sim/cudart/runtime.h"

namespace {
cudaError_t refuse() {
  return spillway::cudart::note(cudaErrorNotSupported);
}
}  // namespace

extern "C" {

// ---- Managed memory

cudaError_t cudaMallocManaged(void**, size_t, unsigned int) {
  return refuse();
}

// ---- Code that is loaded at run time: kernels here are the names that a program was compiled with

cudaError_t cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned int,
                                cudaLibraryOption*, void**, unsigned int) {
  return refuse();
}

cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t*, const char*, cudaJitOption*, void**, unsigned int,
                                    cudaLibraryOption*, void**, unsigned int) {
  return refuse();
}

cudaError_t cudaLibraryUnload(cudaLibrary_t) {
  return refuse();
}

cudaError_t cudaLibraryGetGlobal(void**, size_t*, cudaLibrary_t, const char*) {
  return refuse();
}

cudaError_t cudaLibraryGetManaged(void**, size_t*, cudaLibrary_t, const char*) {
  return refuse();
}

cudaError_t cudaLibraryGetUnifiedFunction(void**, cudaLibrary_t, const char*) {
  return refuse();
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t*, cudaLibrary_t, const char*) {
  return refuse();
}

cudaError_t cudaLibraryGetKernelCount(unsigned int*, cudaLibrary_t) {
  return refuse();
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) {
  return refuse();
}

// ---- Graphs built node by node, and what lives as long as a graph

cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*,
                             size_t, cudaGraphNodeParams*) {
  return refuse();
}

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned int,
                                             unsigned int) {
  return refuse();
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t*,
                                          const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
  return refuse();
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*,
                                                size_t, unsigned int) {
  return refuse();
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned int, unsigned int) {
  return refuse();
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned int) {
  return refuse();
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned int, unsigned int) {
  return refuse();
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned int) {
  return refuse();
}

}  // extern "C"
