# spillway_embed(OUTPUT NAME FILE [NAME FILE ...]): a C++ source that defines each NAME in namespace spillway as a
# std::string_view of the file's bytes. The assembler reads the files: as an array in C++ a font takes ten seconds.
function(spillway_embed output)
  set(text "#include <string_view>\n")
  while(ARGN)
    list(POP_FRONT ARGN name file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    list(APPEND files ${file})
    file(SIZE ${file} bytes)
    string(APPEND text "
asm(R\"(.pushsection .rodata
.hidden spillway_${name}_bytes
.globl spillway_${name}_bytes
spillway_${name}_bytes:
.incbin \"${file}\"
.byte 0
.popsection)\");
extern \"C\" const char spillway_${name}_bytes[];
namespace spillway {
extern const std::string_view ${name};
const std::string_view ${name}(spillway_${name}_bytes, ${bytes});
}
")
  endwhile()
  file(CONFIGURE OUTPUT ${output} CONTENT "${text}" @ONLY)
  set_source_files_properties(${output} PROPERTIES OBJECT_DEPENDS "${files}" SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
