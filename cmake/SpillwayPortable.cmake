# spillway_make_portable(TARGET ...): libraries and programs that run on machines with an older C and C++ library than the one
# that builds them: glibc 2.28 and GCC 8's libstdc++ (cmake/portable/). With SPILLWAY_PORTABLE alone, as scripts/release sets
# it on Debian 12; what users build for their own machine need not be so.
option(SPILLWAY_PORTABLE "Link what is shipped for every Linux on x86-64 that has glibc 2.28 or later" OFF)
if(SPILLWAY_PORTABLE)
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  set(portable ${CMAKE_BINARY_DIR}/portable)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/portable/make_stubs.py)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/portable/make_stubs.py ${portable} --cc ${CMAKE_C_COMPILER}
    COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE ${portable}/options "\"-L${portable}\"\n") # for who calls the compiler without CMake
  add_library(spillway_shims OBJECT ${CMAKE_SOURCE_DIR}/cmake/portable/shims.c)
  add_library(spillway_start OBJECT ${CMAKE_SOURCE_DIR}/cmake/portable/start.c)
  # Seen from outside they would take the place of the C library's own in the whole process.
  set_target_properties(spillway_shims spillway_start PROPERTIES C_VISIBILITY_PRESET hidden)
endif()

function(spillway_make_portable)
  if(NOT SPILLWAY_PORTABLE)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:spillway_shims>)
    # What libraries of this machine need of newer ones is theirs to find.
    target_link_options(${target} PRIVATE -L${portable} -Wl,--allow-shlib-undefined
      -Wl,--no-as-needed,${portable}/libpthread.so.0,${portable}/libdl.so.2,${portable}/librt.so.1)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:spillway_start>)
      target_link_options(${target} PRIVATE -Wl,--wrap=__libc_start_main)
    endif()
  endforeach()
endfunction()
