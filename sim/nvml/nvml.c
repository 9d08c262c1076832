// A libnvidia-ml.so.1 for the simulated device: what PyTorch's allocator looks up by name. From 2.15 on it
// calls some of it for every expandable segment and does not look whether it is there. Names, types and codes
// as in NVIDIA's nvml.h, version 12. Functions that are absent here (nvmlInit, counts, clocks) are absent for
// callers too, who then ask the driver.
#include <stddef.h>

enum { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3 };

typedef struct Device* nvmlDevice_t;
static int device_for_all;

int nvmlInit_v2(void) {
  return kSuccess;
}
int nvmlShutdown(void) {
  return kSuccess;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == NULL) return kInvalidArgument;
  *version = 13000;
  return kSuccess;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, nvmlDevice_t* device) {
  if (bus == NULL || device == NULL) return kInvalidArgument;
  *device = (nvmlDevice_t)(void*)&device_for_all;
  return kSuccess;
}

// What processes use is the simulated driver's to say.
int nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count, void* infos) {
  (void)device;
  (void)infos;
  if (count == NULL) return kInvalidArgument;
  *count = 0;
  return kSuccess;
}

// No fabric, no NVLink.
int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, void* info) {
  (void)device;
  (void)info;
  return kNotSupported;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, int* type) {
  (void)device;
  (void)link;
  (void)type;
  return kNotSupported;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, void* info) {
  (void)device;
  (void)link;
  (void)info;
  return kNotSupported;
}
