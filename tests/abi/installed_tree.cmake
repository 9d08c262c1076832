# Installs the library, builds a program against the installed tree alone, and runs it.
# -DBUILD=, -DSOURCE= (the program), -DSCRATCH=, -DGENERATOR=, -DCOMPILER=, -DMAKE_PROGRAM=, -DSOVERSION=, -DVERSION=
file(REMOVE_RECURSE ${SCRATCH})
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${result}\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/installed --component library)

file(GLOB_RECURSE installed RELATIVE ${SCRATCH}/installed LIST_DIRECTORIES false ${SCRATCH}/installed/*)
list(TRANSFORM installed REPLACE "^lib(64)?(/[a-z0-9_]+-linux-gnu)?/" "lib/")
list(TRANSFORM installed REPLACE "SpillwayTargets-[a-z]+" "SpillwayTargets-TYPE")
list(SORT installed)
set(expected
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
  lib/libspillway.so
  lib/libspillway.so.${SOVERSION}
  lib/libspillway.so.${VERSION}
  lib/libspillway_preload.so)
list(SORT expected)
if(NOT installed STREQUAL expected)
  message(FATAL_ERROR "installed files:\n  ${installed}\nexpected:\n  ${expected}")
endif()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}
  -DCMAKE_C_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${SCRATCH}/installed)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/consumer)
