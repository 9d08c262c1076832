# Compiler settings that every target of the project shares, and where cuda.h comes from.

set(SPILLWAY_SANITIZE "" CACHE STRING "address (with undefined) or thread; empty for none")
option(SPILLWAY_COVERAGE "Count lines for gcov" OFF)

# Off where tools read the project one file at a time, and where speed is not the point.
set(tuned OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT SPILLWAY_SANITIZE AND NOT SPILLWAY_COVERAGE AND
   NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(tuned ON)
endif()
option(SPILLWAY_TUNED "Compile the library for speed, with GCC's own options" ${tuned})

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(spillway_options INTERFACE)
target_compile_options(spillway_options INTERFACE -Wall -Wextra -Wconversion -Werror)
target_include_directories(spillway_options INTERFACE ${CMAKE_SOURCE_DIR})

if(SPILLWAY_SANITIZE STREQUAL "address")
  # A null pointer that is used ends in the address sanitizer's report; asking for it each time as well takes a fifth to a
  # third of the time to compile.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=null -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(SPILLWAY_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  add_link_options(-fsanitize=thread)
elseif(NOT SPILLWAY_SANITIZE STREQUAL "")
  message(FATAL_ERROR "SPILLWAY_SANITIZE is '${SPILLWAY_SANITIZE}'; allowed: address, thread, or empty")
endif()
# fmt's code as part of the library, so that a program needs no libfmt beside it. Builds for a sanitizer are never
# shipped: with the machine's they compile in a third less time.
find_package(fmt REQUIRED)
add_library(spillway_fmt INTERFACE)
if(SPILLWAY_SANITIZE)
  target_link_libraries(spillway_fmt INTERFACE fmt::fmt)
else()
  target_link_libraries(spillway_fmt INTERFACE fmt::fmt-header-only)
endif()
if(SPILLWAY_COVERAGE)
  add_compile_options(--coverage)
  add_link_options(--coverage)
endif()

# cuda.h: the pinned wheel that scripts/ installs comes first, so that every machine builds against one
# version; a toolkit serves where the scripts were not used. Only headers are needed, never a library.
find_path(SPILLWAY_CUDA_INCLUDE_DIR cuda.h
  HINTS ${CMAKE_SOURCE_DIR}/.venv/cuda-headers/nvidia/cu13/include
  PATHS $ENV{CUDA_HOME}/include /usr/local/cuda/include
  PATH_SUFFIXES nvidia/cu13/include include
  DOC "Folder with cuda.h, version 12.0 or newer")
if(NOT SPILLWAY_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h was not found: run scripts/quickstart, or set SPILLWAY_CUDA_INCLUDE_DIR to a folder that has it")
endif()
add_library(spillway_cuda_headers INTERFACE)
target_include_directories(spillway_cuda_headers SYSTEM INTERFACE ${SPILLWAY_CUDA_INCLUDE_DIR})
