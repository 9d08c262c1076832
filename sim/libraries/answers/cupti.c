#include <stddef.h>
#include <stdint.h>

#include "handles.h"

CREATES(cuptiSubscribe)

int cuptiGetVersion(uint32_t* version) {
  *version = CUDA * 10000;
  return 0;
}
int cuptiGetResultString(int result, const char** text) {
  *text = result == 0 ? "CUPTI_SUCCESS" : "CUPTI_ERROR (simulated device)";
  return 0;
}
// Nothing is recorded: the first record asked for is past the end.
int cuptiActivityGetNextRecord(void* buffer, size_t bytes, void** record) {
  (void)buffer, (void)bytes;
  *record = 0;
  return 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED
}
int cuptiActivityGetNumDroppedRecords(void* context, uint32_t stream, size_t* dropped) {
  (void)context, (void)stream;
  *dropped = 0;
  return 0;
}
