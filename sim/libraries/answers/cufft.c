#include <stddef.h>

#include "handles.h"

int cufftCreate(int* plan) {
  static int last = 0;
  *plan = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  return 0;
}

int cufftXtMakePlanMany(int plan, int rank, void* n, void* in_embed, long long in_stride,
                        long long in_distance, int in_type, void* out_embed, long long out_stride,
                        long long out_distance, int out_type, long long batch, size_t* work_bytes,
                        int execution_type) {
  (void)plan, (void)rank, (void)n, (void)in_embed, (void)in_stride, (void)in_distance, (void)in_type;
  (void)out_embed, (void)out_stride, (void)out_distance, (void)out_type, (void)batch, (void)execution_type;
  *work_bytes = 0;
  return 0;
}
