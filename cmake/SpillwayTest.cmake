# spillway_test(NAME SOURCES ... LIBRARIES ... [LABELS one]): a GoogleTest program whose cases are ctest's tests.
# Tests run on the simulated driver, named by SPILLWAY_LIBCUDA. With SPILLWAY_TEST_GPU=ON they are told so by a variable of that
# name instead, and the same programs run on the machine's own driver: configure so, then `ctest -L gpu`.
enable_testing()
include(GoogleTest)
option(SPILLWAY_TEST_GPU "Run the tests on this machine's own CUDA driver" OFF)
find_package(GTest REQUIRED)

if(SPILLWAY_TEST_GPU)
  set(SPILLWAY_TEST_DRIVER "SPILLWAY_TEST_GPU=1")
else()
  set(SPILLWAY_TEST_DRIVER "SPILLWAY_LIBCUDA=${CMAKE_BINARY_DIR}/lib/sim/libcuda.so.1")
endif()

function(spillway_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE spillway_options ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  if(SPILLWAY_TUNED)
    # The ordinary code of what was compiled for both: optimising at link time would cost each program ten seconds.
    target_link_options(${name} PRIVATE -fno-lto)
  endif()
  set(properties TIMEOUT 600 ENVIRONMENT "${SPILLWAY_TEST_DRIVER}")
  # A property without a value would take the next one's name for it.
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
endfunction()
