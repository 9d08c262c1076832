/* A program outside the project: C, built against the installed tree alone. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "spillway/spillway.h"

typedef int (*init_function)(unsigned);
typedef int (*retain_function)(void**, int);
typedef int (*current_function)(void*);

static int start_device(void) {
  const char* path = getenv("SPILLWAY_LIBCUDA");
  void* driver = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
  init_function init;
  retain_function retain;
  current_function set_current;
  void* context = NULL;
  if (driver == NULL) return -1;
  *(void**)&init = dlsym(driver, "cuInit");
  *(void**)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void**)&set_current = dlsym(driver, "cuCtxSetCurrent");
  if (init == NULL || retain == NULL || set_current == NULL) return -1;
  return init(0) == 0 && retain(&context, 0) == 0 ? set_current(context) : -1;
}

int main(void) {
  void* block = NULL;
  spw_stats stats;
  stats.size = sizeof stats;
  if (start_device() != 0) {
    fprintf(stderr, "no device\n");
    return 1;
  }
  if (spw_alloc(1 << 20, 0, NULL, &block) != SPW_OK || spw_stats_get(0, &stats) != SPW_OK) {
    fprintf(stderr, "%s\n", spw_last_error());
    return 1;
  }
  printf("%s: %lld bytes\n", spw_version(), (long long)stats.active_bytes.all.current);
  if (stats.active_bytes.all.current != 1 << 20 || spw_free(block) != SPW_OK) return 1;
  return spw_free(block) == SPW_ERROR_INVALID_POINTER ? 0 : 1;
}
