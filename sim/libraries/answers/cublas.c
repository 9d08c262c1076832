#include "handles.h"

CREATES(cublasCreate_v2)

int cublasGetPointerMode_v2(void* handle, int* mode) {
  (void)handle;
  *mode = 0;  // results go to the host
  return 0;
}
int cublasGetMathMode(void* handle, int* mode) {
  (void)handle;
  *mode = 0;
  return 0;
}
