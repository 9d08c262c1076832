# find_package(Spillway) gives the target Spillway::spillway.
include(${CMAKE_CURRENT_LIST_DIR}/SpillwayTargets.cmake)
