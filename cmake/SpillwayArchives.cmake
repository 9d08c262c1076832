# spillway_find_archives(VARIABLE NAME ...): the archives of libraries, so that what is linked with them needs no such library
# on another machine. Where one is missing, all of them by name, as the linker finds them: such a build serves the machine
# that it was made on.
function(spillway_find_archives variable)
  set(archives "")
  foreach(name IN LISTS ARGN)
    find_library(SPILLWAY_ARCHIVE_${name} NAMES lib${name}.a)
    mark_as_advanced(SPILLWAY_ARCHIVE_${name})
    if(NOT SPILLWAY_ARCHIVE_${name})
      message(STATUS "lib${name}.a was not found: ${variable} is linked dynamically")
      set(${variable} ${ARGN} PARENT_SCOPE)
      return()
    endif()
    list(APPEND archives ${SPILLWAY_ARCHIVE_${name}})
  endforeach()
  set(${variable} ${archives} PARENT_SCOPE)
endfunction()
