# Where the torch wheel is, for the parts that drive PyTorch's own allocator. SPILLWAY_HAVE_TORCH is OFF where there is
# no wheel, or in a sanitizer or coverage build: the wheel's binaries were built without them, and a peer is measured,
# not tested.
set(SPILLWAY_TORCH_DIR "" CACHE PATH "Folder of the installed torch package; empty looks into .venv")
set(SPILLWAY_HAVE_TORCH OFF)
set(SPILLWAY_TORCH_CUDA 13) # the major version that it was built for
if(SPILLWAY_SANITIZE STREQUAL "" AND NOT SPILLWAY_COVERAGE)
  if(SPILLWAY_TORCH_DIR)
    set(SPILLWAY_TORCH ${SPILLWAY_TORCH_DIR})
  else()
    file(GLOB wheels LIST_DIRECTORIES true ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
    list(POP_FRONT wheels SPILLWAY_TORCH)
  endif()
  if(SPILLWAY_TORCH AND EXISTS ${SPILLWAY_TORCH}/lib/libc10_cuda.so
      AND EXISTS ${SPILLWAY_TORCH}/include/c10/cuda/CUDACachingAllocator.h)
    set(SPILLWAY_HAVE_TORCH ON)
    file(STRINGS ${SPILLWAY_TORCH}/version.py version REGEX "^cuda[ :].*'[0-9]+\\.")
    string(REGEX REPLACE "^.*'([0-9]+)\\..*$" "\\1" SPILLWAY_TORCH_CUDA "${version}")
  elseif(SPILLWAY_TORCH_DIR)
    message(FATAL_ERROR "SPILLWAY_TORCH_DIR names no CUDA build of torch: ${SPILLWAY_TORCH_DIR}")
  endif()
endif()
