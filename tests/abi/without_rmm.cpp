#include "tests/abi/without_rmm.h"

#include "include/spillway/memory_resource.hpp"

namespace spillway::test {

std::string caught_without_rmm() {
  void (*const volatile thrower)(spw_status) = check;
  try {
    thrower(SPW_ERROR_OUT_OF_MEMORY);
  } catch (const OutOfMemory& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace spillway::test
