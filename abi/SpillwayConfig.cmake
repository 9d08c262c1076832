# find_package(Spillway) gives the targets Spillway::spillway, the shared library, and Spillway::static, the archive.
include(${CMAKE_CURRENT_LIST_DIR}/SpillwayTargets.cmake)
