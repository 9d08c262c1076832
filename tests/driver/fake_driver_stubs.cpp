// Every symbol of driver/functions.inc as a function that answers CUDA_ERROR_NOT_SUPPORTED. They are weak, so
// that fake_driver.cpp can say more about some of them. FAKE_WITHOUT_VMM leaves out all but the required
// ones; a single one is left out by defining its name to another: -DcuMemcpyAsync=elsewhere.

extern "C" {
#define SPW_FAKE_kRequired(symbol)                            \
  __attribute__((weak, visibility("default"))) int symbol() { \
    return 801;                                               \
  }
#ifdef FAKE_WITHOUT_VMM
#define SPW_FAKE_kVmm(symbol)
#define SPW_FAKE_kOptional(symbol)
#else
#define SPW_FAKE_kVmm(symbol) SPW_FAKE_kRequired(symbol)
#define SPW_FAKE_kOptional(symbol) SPW_FAKE_kRequired(symbol)
#endif
#define SPW_DRIVER_FUNCTION(name, since, need, symbol) SPW_FAKE_##need(symbol)
#include "driver/functions.inc"
}
