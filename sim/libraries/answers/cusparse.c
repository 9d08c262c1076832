#include "handles.h"

CREATES(cusparseCreate)
SUCCEEDS(cusparseDestroy)
SUCCEEDS(cusparseSetStream)

const char* cusparseGetErrorString(int status) {
  return status == 0 ? "CUSPARSE_STATUS_SUCCESS" : "CUSPARSE_STATUS_NOT_SUPPORTED (simulated device)";
}
