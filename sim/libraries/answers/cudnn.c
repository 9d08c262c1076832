// cuDNN knows its version and refuses the rest: torch.backends.cudnn.enabled = False takes PyTorch's own
// kernels.
#include <stddef.h>

#include "handles.h"

CREATES(cudnnCreate)
SUCCEEDS(cudnnDestroy)
SUCCEEDS(cudnnSetStream)

size_t cudnnGetVersion(void) {
  return 91900;
}
size_t cudnnGetCudartVersion(void) {
  return CUDA * 1000;
}
int cudnnGetProperty(int property, int* value) {
  static const int kVersion[] = {9, 19, 0};
  *value = kVersion[property % 3];
  return 0;
}
const char* cudnnGetErrorString(int status) {
  return status == 0 ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_SUPPORTED (simulated device)";
}
void cudnnGetLastErrorString(char* text, size_t bytes) {
  if (bytes > 0) text[0] = '\0';
}
