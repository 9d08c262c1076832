// The driver entry points that the stand-in runtime uses, resolved the way NVIDIA's runtime resolves them:
// dlopen of libcuda.so.1 (or of the file named by SPILLWAY_LIBCUDA), dlsym of cuGetProcAddress_v2 and nothing
// else, then every function through it with the CUDA version whose signature is meant.
//
// Resolved once, on first use; immutable afterwards, so reading it is thread-safe and free.
#pragma once

#include <cuda.h>

// cudaProfiler.h declares these two, and no wheel of headers that the scripts install has it.
extern "C" {
CUresult cuProfilerStart();
CUresult cuProfilerStop();
}

// X(member, driver function, CUDA version of the signature)
#define SPW_CUDART_DRIVER_FUNCTIONS(X)                               \
  X(init, cuInit, 2000)                                              \
  X(driver_get_version, cuDriverGetVersion, 2020)                    \
  X(device_get, cuDeviceGet, 2000)                                   \
  X(device_get_count, cuDeviceGetCount, 2000)                        \
  X(device_get_name, cuDeviceGetName, 2000)                          \
  X(device_get_uuid, cuDeviceGetUuid, 11040)                         \
  X(device_total_mem, cuDeviceTotalMem, 3020)                        \
  X(device_get_attribute, cuDeviceGetAttribute, 2000)                \
  X(device_can_access_peer, cuDeviceCanAccessPeer, 4000)             \
  X(device_get_default_mem_pool, cuDeviceGetDefaultMemPool, 11020)   \
  X(primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000)              \
  X(ctx_get_current, cuCtxGetCurrent, 4000)                          \
  X(ctx_set_current, cuCtxSetCurrent, 4000)                          \
  X(ctx_synchronize, cuCtxSynchronize, 2000)                         \
  X(ctx_enable_peer_access, cuCtxEnablePeerAccess, 4000)             \
  X(ctx_priority_range, cuCtxGetStreamPriorityRange, 5050)           \
  X(mem_get_info, cuMemGetInfo, 3020)                                \
  X(mem_alloc, cuMemAlloc, 3020)                                     \
  X(mem_free, cuMemFree, 3020)                                       \
  X(mem_alloc_async, cuMemAllocAsync, 11020)                         \
  X(mem_free_async, cuMemFreeAsync, 11020)                           \
  X(mem_pool_get_attribute, cuMemPoolGetAttribute, 11020)            \
  X(mem_pool_set_attribute, cuMemPoolSetAttribute, 11020)            \
  X(mem_pool_set_access, cuMemPoolSetAccess, 11020)                  \
  X(mem_pool_trim_to, cuMemPoolTrimTo, 11020)                        \
  X(copy, cuMemcpy, 4000)                                            \
  X(copy_async, cuMemcpyAsync, 4000)                                 \
  X(copy_peer_async, cuMemcpyPeerAsync, 4000)                        \
  X(ipc_get_mem_handle, cuIpcGetMemHandle, 4010)                     \
  X(ipc_open_mem_handle, cuIpcOpenMemHandle, 11000)                  \
  X(ipc_close_mem_handle, cuIpcCloseMemHandle, 4010)                 \
  X(stream_create_with_priority, cuStreamCreateWithPriority, 5050)   \
  X(stream_destroy, cuStreamDestroy, 4000)                           \
  X(stream_query, cuStreamQuery, 2000)                               \
  X(stream_synchronize, cuStreamSynchronize, 2000)                   \
  X(stream_wait_event, cuStreamWaitEvent, 3020)                      \
  X(stream_is_capturing, cuStreamIsCapturing, 10000)                 \
  X(stream_get_capture_info, cuStreamGetCaptureInfo, 12030)          \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010) \
  X(graph_node_get_dependencies, cuGraphNodeGetDependencies, 12030)  \
  X(event_create, cuEventCreate, 2000)                               \
  X(event_destroy, cuEventDestroy, 4000)                             \
  X(event_record, cuEventRecord, 2000)                               \
  X(event_query, cuEventQuery, 2000)                                 \
  X(event_synchronize, cuEventSynchronize, 2000)                     \
  X(event_elapsed_time, cuEventElapsedTime, 12080)                   \
  X(event_record_with_flags, cuEventRecordWithFlags, 11010)          \
  X(stream_create, cuStreamCreate, 2000)                             \
  X(stream_get_priority, cuStreamGetPriority, 5050)                  \
  X(stream_add_callback, cuStreamAddCallback, 5000)                  \
  X(stream_begin_capture, cuStreamBeginCapture, 10010)               \
  X(stream_end_capture, cuStreamEndCapture, 10000)                   \
  X(launch_host_func, cuLaunchHostFunc, 10000)                       \
  X(launch_kernel, cuLaunchKernel, 4000)                             \
  X(module_load_data, cuModuleLoadData, 2000)                        \
  X(module_get_function, cuModuleGetFunction, 2000)                  \
  X(graph_instantiate, cuGraphInstantiateWithFlags, 11040)           \
  X(graph_launch, cuGraphLaunch, 10000)                              \
  X(graph_destroy, cuGraphDestroy, 10000)                            \
  X(graph_exec_destroy, cuGraphExecDestroy, 10000)                   \
  X(graph_get_nodes, cuGraphGetNodes, 10000)                         \
  X(graph_upload, cuGraphUpload, 11010)                              \
  X(graph_mem_trim, cuDeviceGraphMemTrim, 11040)                     \
  X(graph_mem_get, cuDeviceGetGraphMemAttribute, 11040)              \
  X(graph_mem_set, cuDeviceSetGraphMemAttribute, 11040)              \
  X(host_alloc, cuMemHostAlloc, 2020)                                \
  X(host_free, cuMemFreeHost, 2000)                                  \
  X(host_register, cuMemHostRegister, 6050)                          \
  X(host_unregister, cuMemHostUnregister, 4000)                      \
  X(host_get_device_pointer, cuMemHostGetDevicePointer, 3020)        \
  X(pointer_get_attributes, cuPointerGetAttributes, 7000)            \
  X(set_bytes, cuMemsetD8, 3020)                                     \
  X(set_bytes_async, cuMemsetD8Async, 3020)                          \
  X(device_get_pci_bus_id, cuDeviceGetPCIBusId, 4010)                \
  X(ipc_get_event_handle, cuIpcGetEventHandle, 4010)                 \
  X(ipc_open_event_handle, cuIpcOpenEventHandle, 4010)               \
  X(profiler_start, cuProfilerStart, 4000)                           \
  X(profiler_stop, cuProfilerStop, 4000)

namespace spillway::cudart {

struct DriverTable {
#define SPW_CUDART_MEMBER(member, function, version) decltype(&(function)) member = nullptr;
  SPW_CUDART_DRIVER_FUNCTIONS(SPW_CUDART_MEMBER)
#undef SPW_CUDART_MEMBER
  decltype(&cuGetProcAddress) get_proc_address = nullptr;
};

// nullptr where there is no driver library or it lacks cuGetProcAddress_v2; a member is null where the driver
// lacks that function.
const DriverTable* driver();

}  // namespace spillway::cudart
