// Programs compile to one byte, which the simulated driver loads as it loads everything.
#include <stddef.h>

#include "handles.h"

CREATES(nvrtcCreateProgram)

int nvrtcVersion(int* major, int* minor) {
  *major = CUDA;
  *minor = CUDA == 12 ? 8 : 0;
  return 0;
}
static int one_byte(size_t* bytes) {
  *bytes = 1;
  return 0;
}
int nvrtcGetPTXSize(void* program, size_t* bytes) {
  (void)program;
  return one_byte(bytes);
}
int nvrtcGetCUBINSize(void* program, size_t* bytes) {
  (void)program;
  return one_byte(bytes);
}
int nvrtcGetProgramLogSize(void* program, size_t* bytes) {
  (void)program;
  return one_byte(bytes);
}
static int nothing(char* text) {
  text[0] = '\0';
  return 0;
}
int nvrtcGetPTX(void* program, char* text) {
  (void)program;
  return nothing(text);
}
int nvrtcGetCUBIN(void* program, char* text) {
  (void)program;
  return nothing(text);
}
int nvrtcGetProgramLog(void* program, char* text) {
  (void)program;
  return nothing(text);
}
int nvrtcGetLoweredName(void* program, const char* name, const char** lowered) {
  (void)program;
  *lowered = name;
  return 0;
}
const char* nvrtcGetErrorString(int result) {
  return result == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR (simulated device)";
}
