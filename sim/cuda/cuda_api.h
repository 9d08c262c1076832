// cuda.h as the simulated driver uses it. The names that cuda.h turns into versioned ones stay so turned: a
// definition of cuMemAlloc here is cuMemAlloc_v2 in the library. The few names whose version depends on the
// header are defined by their full names.
#pragma once

#include <cuda.h>

#undef cuCtxCreate
#undef cuEventElapsedTime
#undef cuStreamGetCaptureInfo
#undef cuStreamWaitValue32
#undef cuStreamWriteValue32
#undef cuGetProcAddress
#undef cuDeviceGetUuid
#undef cuCtxDestroy
#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#undef cuStreamDestroy
#undef cuEventDestroy
#undef cuMemHostRegister
#undef cuStreamBeginCapture
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuDevicePrimaryCtxSetFlags
#undef cuGraphAddNode
#undef cuGraphInstantiate
#undef cuGraphNodeGetDependencies

// In a function of the per-thread default stream, by its name (_ptsz), the null stream is the calling
// thread's own.
inline CUstream per_thread(CUstream stream) {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}
