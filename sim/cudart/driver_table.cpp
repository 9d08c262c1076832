#include "sim/cudart/driver_table.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace spillway::cudart {
namespace {

template <typename Function>
void resolve(const DriverTable& table, const char* name, int version, Function* out) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result =
      table.get_proc_address(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
  if (result != CUDA_SUCCESS || found != CU_GET_PROC_ADDRESS_SUCCESS) return;
  static_assert(sizeof address == sizeof *out);
  std::memcpy(out, &address, sizeof address);
}

bool load(DriverTable* table) {
  const char* path = std::getenv("SPILLWAY_LIBCUDA");
  // Never closed: the driver has to outlive every static destructor that might still call it.
  void* library = dlopen(path != nullptr && *path != '\0' ? path : "libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return false;
  void* address = dlsym(library, "cuGetProcAddress_v2");
  if (address == nullptr) return false;
  std::memcpy(&table->get_proc_address, &address, sizeof address);
#define SPW_CUDART_RESOLVE(member, function, version) resolve(*table, #function, version, &table->member);
  SPW_CUDART_DRIVER_FUNCTIONS(SPW_CUDART_RESOLVE)
#undef SPW_CUDART_RESOLVE
  return true;
}

}  // namespace

const DriverTable* driver() {
  static DriverTable table;
  static const bool kLoaded = load(&table);
  return kLoaded ? &table : nullptr;
}

}  // namespace spillway::cudart
