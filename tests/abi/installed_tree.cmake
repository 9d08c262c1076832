# Installs the library, builds programs against the installed tree alone, and runs them: a C program with CMake and
# with pkg-config, each on the shared and on the static library, and the C++ examples.
# -DBUILD=, -DSOURCE= (the program), -DEXAMPLES=, -DSCRATCH=, -DGENERATOR=, -DCOMPILER=, -DCXX_COMPILER=,
# -DMAKE_PROGRAM=, -DSOVERSION=, -DVERSION=, -DCUDA_INCLUDE=, -DCUDART=, -DNM=, -DREADELF=,
# -DPKG_CONFIG=
file(REMOVE_RECURSE ${SCRATCH})
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${result}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
  message(STATUS "${output}")
endfunction()

# A program meets no other name of a library in the archive.
function(check_names archive)
  run(${NM} -g --defined-only ${archive})
  string(REGEX MATCHALL "[0-9a-f]+ [A-Za-z] [^\n]+" names "${output}")
  list(FILTER names EXCLUDE REGEX " T spw_[a-z0-9_]+$")
  if(names OR NOT output MATCHES " T spw_alloc\n")
    message(FATAL_ERROR "${archive} has other global names than the C interface's: ${names}")
  endif()
endfunction()

# Whether the program asks for the shared library at run time must be as its kind says.
function(check_kind program kind)
  run(${READELF} -d ${program})
  if(kind STREQUAL "static" AND output MATCHES "libspillway")
    message(FATAL_ERROR "${program} was linked statically, and needs the shared library")
  elseif(NOT kind STREQUAL "static" AND NOT output MATCHES "libspillway.so.${SOVERSION}")
    message(FATAL_ERROR "${program} was linked with the shared library, and does not need it")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/first --component library)
# Nothing in the tree knows where it was installed.
file(RENAME ${SCRATCH}/first ${SCRATCH}/installed)

file(GLOB_RECURSE found RELATIVE ${SCRATCH}/installed LIST_DIRECTORIES false ${SCRATCH}/installed/*)
set(installed ${found})
list(TRANSFORM installed REPLACE "^lib(64)?(/[a-z0-9_]+-linux-gnu)?/" "lib/")
list(TRANSFORM installed REPLACE "SpillwayTargets-[a-z]+" "SpillwayTargets-TYPE")
list(SORT installed)
set(expected
  include/spillway/memory_resource.hpp
  include/spillway/offload.h
  include/spillway/pinned.h
  include/spillway/spillway.h
  include/spillway/stats.h
  include/spillway/status.h
  include/spillway/torch.h
  lib/cmake/Spillway/SpillwayConfig.cmake
  lib/cmake/Spillway/SpillwayConfigVersion.cmake
  lib/cmake/Spillway/SpillwayTargets-TYPE.cmake
  lib/cmake/Spillway/SpillwayTargets.cmake
  lib/libspillway.a
  lib/libspillway.so
  lib/libspillway.so.${SOVERSION}
  lib/libspillway.so.${VERSION}
  lib/pkgconfig/spillway-static.pc
  lib/pkgconfig/spillway.pc
  lib/libspillway_audit.so
  lib/libspillway_preload.so)
list(SORT expected)
if(NOT installed STREQUAL expected)
  message(FATAL_ERROR "installed files:\n  ${installed}\nexpected:\n  ${expected}")
endif()

set(with_cmake -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -DCMAKE_PREFIX_PATH=${SCRATCH}/installed)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build ${with_cmake} -DCMAKE_C_COMPILER=${COMPILER})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
foreach(kind spillway static)
  run(${SCRATCH}/build/consumer_${kind})
  check_kind(${SCRATCH}/build/consumer_${kind} ${kind})
endforeach()

# A compiler and pkg-config alone.
list(FILTER found INCLUDE REGEX "spillway\\.pc$")
get_filename_component(library_folder ${SCRATCH}/installed/${found}/../.. ABSOLUTE)
set(ENV{PKG_CONFIG_PATH} ${library_folder}/pkgconfig)
set(ENV{LD_LIBRARY_PATH} ${library_folder})
check_names(${library_folder}/libspillway.a)
foreach(package spillway spillway-static)
  run(${PKG_CONFIG} --cflags --libs ${package})
  separate_arguments(flags UNIX_COMMAND "${output}")
  string(REGEX REPLACE "^spillway-" "" kind ${package})
  run(${COMPILER} -o ${SCRATCH}/by_hand_${kind} ${SOURCE}/consumer.c ${flags} -ldl)
  run(${SCRATCH}/by_hand_${kind})
  check_kind(${SCRATCH}/by_hand_${kind} ${kind})
endforeach()
run(${PKG_CONFIG} --modversion spillway)
if(NOT output STREQUAL "${VERSION}\n")
  message(FATAL_ERROR "pkg-config says that the version is ${output}, not ${VERSION}")
endif()

# The programs that users begin with; abi.nvcc has the one that needs a compiler for devices.
run(${CMAKE_COMMAND} -S ${EXAMPLES} -B ${SCRATCH}/examples ${with_cmake} -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
  -DCUDA_INCLUDE_DIR=${CUDA_INCLUDE} -DCUDA_CUDART=${CUDART} -DCMAKE_CUDA_COMPILER=OFF)
run(${CMAKE_COMMAND} --build ${SCRATCH}/examples)
run(${SCRATCH}/examples/stream_ordered)
if(NOT output MATCHES "second half: 0\n")
  message(FATAL_ERROR "a program that repeats itself still asks the driver for memory: ${output}")
endif()
foreach(wrong 0 none)
  execute_process(COMMAND ${SCRATCH}/examples/stream_ordered ${wrong} RESULT_VARIABLE result ERROR_VARIABLE output)
  if(NOT result EQUAL 1 OR NOT output MATCHES "^stream_ordered: usage: [^\n]*\n$")
    message(FATAL_ERROR "stream_ordered ${wrong}: ${result}\n${output}")
  endif()
endforeach()
