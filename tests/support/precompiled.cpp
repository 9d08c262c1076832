// Nothing but what CMake includes before it: the headers that tests share, compiled once (SpillwayTest.cmake).
