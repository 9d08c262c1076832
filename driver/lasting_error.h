// Says which of the driver's errors last: cuda.h says of them that the process is in an inconsistent state,
// that any further work returns the same error, or that the context or its memory cannot be used any more.
#pragma once

#include <cuda.h>

namespace spillway {

constexpr bool is_lasting(CUresult result) {
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case 226:  // CUDA_ERROR_CONTAINED, newer than the oldest header
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case 721:  // CUDA_ERROR_TENSOR_MEMORY_LEAK, likewise
    case 810:  // CUDA_ERROR_MPS_CLIENT_TERMINATED, likewise
    case CUDA_ERROR_EXTERNAL_DEVICE:
      return true;
    default:
      return false;
  }
}

}  // namespace spillway
