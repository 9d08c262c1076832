/* Result codes of the C ABI, shared by every layer. A code is never renumbered; new ones go at the end. */
#ifndef SPILLWAY_STATUS_H
#define SPILLWAY_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum spw_status {
  SPW_OK = 0,
  SPW_ERROR_INVALID_ARGUMENT = 1, /* a size, device, name or structure that cannot be right */
  SPW_ERROR_OUT_OF_MEMORY = 2,    /* the device, or the limit set on it, has no room left */
  SPW_ERROR_INVALID_POINTER = 3,  /* not a live block of this allocator: foreign, freed, or inside a block */
  SPW_ERROR_INVALID_STATE = 4,    /* the call is legal, but not now (a pool that is not open, no context) */
  SPW_ERROR_UNSUPPORTED = 5,      /* this driver or device cannot do it */
  SPW_ERROR_DRIVER = 6,           /* the CUDA driver answered with an error; the text names it */
  SPW_ERROR_IO = 7,               /* a file could not be read or written */
  SPW_ERROR_CONFIG = 8,           /* an option's name or value is wrong */
  SPW_ERROR_INTERNAL = 9,         /* a broken invariant of Spillway itself */
  SPW_ERROR_DATA_LOST = 10        /* bytes that were moved out of the device cannot be read as they were */
} spw_status;

#ifdef __cplusplus
}
#endif
#endif
