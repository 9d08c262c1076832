# Python tests on real PyTorch: on the simulated device, or on a GPU where SPILLWAY_TEST_GPU is set.
# A folder of them returns first where SPILLWAY_HAVE_TORCH is OFF, which SpillwayTorch sets.
include_guard(DIRECTORY)
find_program(SPILLWAY_PYTHON NAMES python3 PATHS ${SPILLWAY_TORCH}/../../../../bin NO_DEFAULT_PATH REQUIRED)

# Programs of which a driver without controls may show another side.
set(SPILLWAY_LOOKS_AT_THE_DRIVER memory_api allocator_interface plain pinned_memory mempool)
# Helpers of tests/python are found from every folder.
set(helpers ${CMAKE_SOURCE_DIR}/tests/python)
set(on_gpu "")
if(SPILLWAY_TEST_GPU)
  set(on_gpu SPILLWAY_TEST_GPU=1)
endif()
set(environment PYTHONPATH=${CMAKE_SOURCE_DIR}/python:${helpers}
  SPILLWAY_LIBRARY=$<TARGET_FILE:spillway_shared> SPILLWAY_CUDA_INCLUDE=${SPILLWAY_CUDA_INCLUDE_DIR}
  SPILLWAY_CACHE=${CMAKE_BINARY_DIR}/extension SPILLWAY_COMMAND=$<TARGET_FILE:spillway>
  SPILLWAY_BUILD=${CMAKE_BINARY_DIR}
  ${on_gpu})
# What is compiled on first use is known again, in another checkout too.
if(CCACHE_PROGRAM)
  list(APPEND environment "CXX=${CCACHE_PROGRAM} ${CMAKE_CXX_COMPILER}" CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true)
endif()
set(on_device ${SPILLWAY_PYTHON} ${helpers}/on_device.py ${CMAKE_BINARY_DIR}/lib/sim)

# spillway_python_test(NAME [SIMULATED] [COMPUTES] [WHOLE_GPU] [LONG]): NAME_test.py, a program of unittest, as the test
# FOLDER.NAME. LONG: where asked for (ctest -C long, as scripts/test --long does).
# SIMULATED: of the simulated device alone. COMPUTES: on a GPU it looks at what kernels have computed, so that it does not run on the
# simulated driver without controls; the others do in each mode where asked for (ctest -C long), and always in one those that
# look at what the driver does: what is reported looks at the same. WHOLE_GPU: as spillway_test has it.
function(spillway_python_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SIMULATED;COMPUTES;WHOLE_GPU;LONG" "" "")
  if(arg_SIMULATED AND SPILLWAY_TEST_GPU)
    return()
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(test ${folder}.${name})
  set(configurations "")
  if(arg_LONG)
    set(configurations CONFIGURATIONS long)
  endif()
  add_test(NAME ${test} COMMAND ${on_device} ${CMAKE_CURRENT_SOURCE_DIR}/${name}_test.py ${configurations})
  set_tests_properties(${test} PROPERTIES ENVIRONMENT "${environment}" TIMEOUT 1800
    FIXTURES_REQUIRED torch_extension)
  if(NOT arg_SIMULATED)
    set(label gpu)
    if(arg_WHOLE_GPU)
      set(label whole_gpu)
    endif()
    set_tests_properties(${test} PROPERTIES LABELS ${label})
    if(arg_WHOLE_GPU AND SPILLWAY_TEST_GPU)
      set_tests_properties(${test} PROPERTIES RUN_SERIAL ON)
    endif()
    if(NOT arg_COMPUTES AND NOT SPILLWAY_TEST_GPU)
      spillway_uncontrolled_python_tests(${test} ${name})
    endif()
  endif()
endfunction()

# spillway_newest_python_test(NAME TEST...): these of a program's tests with the packages of scripts/requirements-newest.txt, where
# the other tests have older ones, as FOLDER.NAME_newest. Of the simulated device alone.
set(SPILLWAY_NEWEST_PACKAGES ${CMAKE_SOURCE_DIR}/.venv/newest CACHE PATH "Folder of these packages")
function(spillway_newest_python_test name)
  if(SPILLWAY_TEST_GPU)
    return()
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(test ${folder}.${name}_newest)
  add_test(NAME ${test} COMMAND ${on_device} ${CMAKE_CURRENT_SOURCE_DIR}/${name}_test.py ${ARGN})
  set_tests_properties(${test} PROPERTIES TIMEOUT 1800 FIXTURES_REQUIRED torch_extension
    ENVIRONMENT "${environment};SPILLWAY_TEST_NEWEST=${SPILLWAY_NEWEST_PACKAGES}"
    ENVIRONMENT_MODIFICATION PYTHONPATH=path_list_prepend:${SPILLWAY_NEWEST_PACKAGES})
endfunction()

function(spillway_uncontrolled_python_tests test name)
  foreach(completion IN LISTS SPILLWAY_COMPLETIONS)
    set(uncontrolled uncontrolled.${completion}.${test})
    set(configurations CONFIGURATIONS long)
    if(completion STREQUAL "late" AND name IN_LIST SPILLWAY_LOOKS_AT_THE_DRIVER)
      set(configurations "")
    endif()
    add_test(NAME ${uncontrolled} COMMAND ${on_device} ${CMAKE_CURRENT_SOURCE_DIR}/${name}_test.py ${configurations})
    set_tests_properties(${uncontrolled} PROPERTIES TIMEOUT 1800 LABELS uncontrolled FIXTURES_REQUIRED torch_extension
      ENVIRONMENT "${environment};SPILLWAY_TEST_GPU=1;SPILLWAY_UNCONTROLLED=completion:${completion}")
  endforeach()
endfunction()

# spillway_native_python_test(NAME): the same program on PyTorch's own allocator, simulated, as FOLDER.NAME_native. It judges the
# tests, not Spillway, and runs where asked for (ctest -C long, as scripts/test --long does).
function(spillway_native_python_test name)
  if(SPILLWAY_TEST_GPU)
    return()
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(test ${folder}.${name}_native)
  add_test(NAME ${test} COMMAND ${on_device} ${CMAKE_CURRENT_SOURCE_DIR}/${name}_test.py CONFIGURATIONS long)
  set_tests_properties(${test} PROPERTIES ENVIRONMENT "${environment};SPILLWAY_TEST_ALLOCATOR=native" TIMEOUT 1800
    FIXTURES_REQUIRED torch_extension)
endfunction()
