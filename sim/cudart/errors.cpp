// Names and texts of the runtime's errors, for the codes that the driver below can answer.
#include <cuda_runtime_api.h>

namespace {

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};

#define SPW_ERROR_TEXT(code, text) \
  { code, #code, text }
constexpr ErrorText kErrors[] = {
    SPW_ERROR_TEXT(cudaSuccess, "no error"),
    SPW_ERROR_TEXT(cudaErrorInvalidValue, "invalid argument"),
    SPW_ERROR_TEXT(cudaErrorMemoryAllocation, "out of memory"),
    SPW_ERROR_TEXT(cudaErrorInitializationError, "initialization error"),
    SPW_ERROR_TEXT(cudaErrorCudartUnloading, "driver shutting down"),
    SPW_ERROR_TEXT(cudaErrorInsufficientDriver,
                   "CUDA driver version is insufficient for CUDA runtime version"),
    SPW_ERROR_TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    SPW_ERROR_TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    SPW_ERROR_TEXT(cudaErrorDeviceUninitialized, "invalid device context"),
    SPW_ERROR_TEXT(cudaErrorAlreadyMapped, "resource already mapped"),
    SPW_ERROR_TEXT(cudaErrorNotMapped, "resource not mapped"),
    SPW_ERROR_TEXT(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    SPW_ERROR_TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    SPW_ERROR_TEXT(cudaErrorSymbolNotFound, "named symbol not found"),
    SPW_ERROR_TEXT(cudaErrorNotReady, "device not ready"),
    SPW_ERROR_TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    SPW_ERROR_TEXT(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    SPW_ERROR_TEXT(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    SPW_ERROR_TEXT(cudaErrorContextIsDestroyed, "context is destroyed"),
    SPW_ERROR_TEXT(cudaErrorHostMemoryAlreadyRegistered,
                   "part or all of the requested memory range is already mapped"),
    SPW_ERROR_TEXT(cudaErrorHostMemoryNotRegistered,
                   "pointer does not correspond to a registered memory region"),
    SPW_ERROR_TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    SPW_ERROR_TEXT(cudaErrorNotPermitted, "operation not permitted"),
    SPW_ERROR_TEXT(cudaErrorNotSupported, "operation not supported"),
    SPW_ERROR_TEXT(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    SPW_ERROR_TEXT(cudaErrorStreamCaptureInvalidated,
                   "operation failed due to a previous error during capture"),
    SPW_ERROR_TEXT(cudaErrorStreamCaptureMerge,
                   "operation would result in a merge of separate capture sequences"),
    SPW_ERROR_TEXT(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    SPW_ERROR_TEXT(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    SPW_ERROR_TEXT(cudaErrorStreamCaptureIsolation,
                   "dependency created on uncaptured work in another stream"),
    SPW_ERROR_TEXT(cudaErrorStreamCaptureImplicit,
                   "operation would make the legacy stream depend on a capturing blocking stream"),
    SPW_ERROR_TEXT(cudaErrorCapturedEvent,
                   "operation not permitted on an event last recorded in a capturing stream"),
    SPW_ERROR_TEXT(cudaErrorStreamCaptureWrongThread,
                   "attempt to terminate a thread-local capture sequence from another thread"),
    SPW_ERROR_TEXT(cudaErrorUnknown, "unknown error"),
};
#undef SPW_ERROR_TEXT

const ErrorText* find(cudaError_t code) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

// A driver code is passed on as it is: both enumerations give one meaning one number.
static_assert(static_cast<int>(cudaErrorMemoryAllocation) == 2);
static_assert(static_cast<int>(cudaErrorNotReady) == 600);
static_assert(static_cast<int>(cudaErrorStreamCaptureInvalidated) == 901);

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t code) {
  const ErrorText* error = find(code);
  return error != nullptr ? error->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t code) {
  const ErrorText* error = find(code);
  return error != nullptr ? error->text : "unrecognized error code";
}

}  // extern "C"
