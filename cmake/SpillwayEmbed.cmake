# spillway_embed(OUTPUT NAME FILE [NAME FILE ...]): a C++ source that defines each NAME in namespace spillway as a
# std::string_view of the file's bytes. Made when configuring, and again when a file changes.
function(spillway_embed output)
  set(text "#include <string_view>\n\nnamespace spillway {\n")
  while(ARGN)
    list(POP_FRONT ARGN name file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} hex HEX)
    string(LENGTH "${hex}" digits)
    math(EXPR bytes "${digits} / 2")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," array "${hex}")
    string(APPEND text
      "static const char ${name}Bytes[] = {${array}0};\n"
      "extern const std::string_view ${name};\nconst std::string_view ${name}(${name}Bytes, ${bytes});\n")
  endwhile()
  string(APPEND text "}\n")
  file(CONFIGURE OUTPUT ${output} CONTENT "${text}" @ONLY)
endfunction()
