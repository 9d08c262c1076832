# Fails where PROGRAM does not print exactly what FILE holds. FILE is committed so that it can be read without building.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE printed RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} failed: ${result}")
endif()
file(READ ${FILE} held)
if(NOT printed STREQUAL held)
  message(FATAL_ERROR "${FILE} is not current: ${PROGRAM} > ${FILE}")
endif()
