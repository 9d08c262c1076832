// Handles of objects that have no state: distinct, never null, never read.
#ifndef SPILLWAY_SIM_LIBRARIES_HANDLES_H
#define SPILLWAY_SIM_LIBRARIES_HANDLES_H

#include <stdint.h>

static inline void* new_handle(void) {
  static uintptr_t last = 0x5b110000;
  return (void*)__atomic_add_fetch(&last, 16, __ATOMIC_RELAXED);
}

// A function that creates an object whose handle goes to its first argument.
#define CREATES(name)       \
  int name(void** handle) { \
    *handle = new_handle(); \
    return 0;               \
  }
#define SUCCEEDS(name) \
  int name(void) {     \
    return 0;          \
  }

#endif
