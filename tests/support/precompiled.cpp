// What CMake includes before it, compiled once: the headers that tests share (SpillwayTest.cmake).
