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

# Sources of a target are compiled several at a time, which takes a third of the time that they take one by one: most of it is
# what they include. Off for tools that read the project one file at a time, and for who compiles one file again and again.
option(SPILLWAY_UNITY "Compile the sources of a target several at a time" ON)
set(CMAKE_UNITY_BUILD ${SPILLWAY_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What one checkout compiled serves the next: paths below the root are hashed as relative ones.
  set(cached env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${cached})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${cached})
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
if(SPILLWAY_COVERAGE)
  add_compile_options(--coverage)
  add_link_options(--coverage)
endif()

# fmt's code as part of what is built. A release of fmt that promises other instances than cmake/fmt.cpp has is taken as a
# header alone, which takes longer to compile.
find_package(fmt REQUIRED)
get_target_property(fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
if(NOT DEFINED SPILLWAY_FMT_COMPILES)
  try_compile(SPILLWAY_FMT_COMPILES ${CMAKE_BINARY_DIR}/fmt
    SOURCES ${CMAKE_SOURCE_DIR}/cmake/fmt.cpp ${CMAKE_SOURCE_DIR}/cmake/fmt_try.cpp
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${fmt_include}" CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
endif()
if(SPILLWAY_FMT_COMPILES)
  add_library(spillway_fmt STATIC ${CMAKE_SOURCE_DIR}/cmake/fmt.cpp)
  target_include_directories(spillway_fmt SYSTEM PUBLIC ${fmt_include})
else()
  add_library(spillway_fmt INTERFACE)
  target_link_libraries(spillway_fmt INTERFACE fmt::fmt-header-only)
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
