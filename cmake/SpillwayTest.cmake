# spillway_test(NAME SOURCES ... LIBRARIES ... [LABELS one] [SEEDED]): a GoogleTest program whose cases are ctest's tests.
# LABELS: `gpu`, what runs on a GPU as well, or `whole_gpu`, what does so with nothing beside it, since it takes more than 4 GiB or
# compares what the driver has free (`ctest -L gpu` finds both).
# SEEDED: they take as long as SPILLWAY_TEST_SEEDS and SPILLWAY_TEST_STEPS say.
# Where SPILLWAY_ONLY_THREADED is ON, a program consists of those of its sources that begin threads, and
# one without any is not built.
# Tests run on the simulated driver, named by SPILLWAY_LIBCUDA. With SPILLWAY_TEST_GPU=ON they are told so by a variable of that
# name instead, and the same programs run on the machine's own driver: configure so, then `ctest -L gpu`.
#
# What is labelled gpu runs on a simulated driver without controls besides, of 80 GiB, as uncontrolled.MODE.NAME, in each mode in
# which enqueued work may complete: what passes there asks for nothing that a real driver lacks.
enable_testing()
include(GoogleTest)
option(SPILLWAY_TEST_GPU "Run the tests on this machine's own CUDA driver" OFF)
find_package(GTest REQUIRED)

if(SPILLWAY_TEST_GPU)
  set(SPILLWAY_TEST_DRIVER "SPILLWAY_TEST_GPU=1")
else()
  set(SPILLWAY_TEST_DRIVER "SPILLWAY_LIBCUDA=${CMAKE_BINARY_DIR}/lib/sim/libcuda.so.1")
endif()

set(SPILLWAY_COMPLETIONS instant late run-ahead)
# Of what stands for a GPU, by the mode; the simulated libcuda.so.1 is in lib/uncontrolled.
set(SPILLWAY_UNCONTROLLED_DRIVER
  "SPILLWAY_TEST_GPU=1;SPILLWAY_LIBCUDA=${CMAKE_BINARY_DIR}/lib/uncontrolled/libcuda.so.1;SPILLWAY_UNCONTROLLED=completion:")

function(spillway_threaded_sources variable)
  set(found "")
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} threads REGEX "std::j?thread|std::async" LIMIT_COUNT 1)
    if(threads)
      list(APPEND found ${source})
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    endif()
  endforeach()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

function(spillway_test name)
  cmake_parse_arguments(arg "SEEDED" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(SPILLWAY_ONLY_THREADED)
    spillway_threaded_sources(threaded ${arg_SOURCES})
    if(NOT threaded)
      add_executable(${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
      return()
    endif()
    set(arg_SOURCES ${threaded})
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE spillway_options ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  if(SPILLWAY_TUNED)
    # The ordinary code of what was compiled for both: optimising at link time would cost each program ten seconds.
    target_link_options(${name} PRIVATE -fno-lto)
  endif()
  if(arg_LABELS MATCHES gpu)
    spillway_make_portable(${name}) # scripts/prove takes it to other machines
  endif()
  set(limit 600)
  if(arg_SEEDED)
    set(limit 7200)
  endif()
  set(properties TIMEOUT ${limit} ENVIRONMENT "${SPILLWAY_TEST_DRIVER}")
  # A property without a value would take the next one's name for it.
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  if(arg_LABELS STREQUAL "whole_gpu" AND SPILLWAY_TEST_GPU)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  if(arg_LABELS MATCHES gpu AND NOT SPILLWAY_TEST_GPU AND NOT SPILLWAY_SANITIZE AND NOT SPILLWAY_COVERAGE)
    add_dependencies(${name} spillway_sim_uncontrolled)
    foreach(completion IN LISTS SPILLWAY_COMPLETIONS)
      set(uncontrolled uncontrolled.${completion}.${name})
      add_test(NAME ${uncontrolled} COMMAND ${name} --gtest_brief=1)
      set_tests_properties(${uncontrolled} PROPERTIES TIMEOUT 600 LABELS uncontrolled
        ENVIRONMENT "${SPILLWAY_UNCONTROLLED_DRIVER}${completion};SPILLWAY_TEST_STEPS=500")
    endforeach()
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
endfunction()
