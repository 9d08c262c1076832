#include <stddef.h>
#include <string.h>

#include "handles.h"

CREATES(cublasLtCreate)
CREATES(cublasLtMatmulDescCreate)
CREATES(cublasLtMatrixLayoutCreate)
CREATES(cublasLtMatmulPreferenceCreate)

size_t cublasLtGetVersion(void) {
  return 130000;
}

// cublasLtMatmulHeuristicResult_t: 64 bytes of algorithm, workspace bytes, status, waves, reserved.
struct HeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

// One algorithm that needs no workspace.
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a, void* b, void* c, void* d,
                                   void* preference, int requested, struct HeuristicResult* results,
                                   int* count) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
  if (requested < 1) return 7;  // CUBLAS_STATUS_INVALID_VALUE
  memset(results, 0, sizeof *results);
  results->waves = 1;
  *count = 1;
  return 0;
}
