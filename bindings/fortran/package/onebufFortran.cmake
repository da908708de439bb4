# onebuf::fortran: the Fortran modules, compiled from their sources by the project's own compiler.
get_filename_component(_onebuf_sources "${CMAKE_CURRENT_LIST_DIR}/../../../share/onebuf/fortran" ABSOLUTE)

if(NOT TARGET onebuf::fortran)
  file(GLOB _onebuf_files "${_onebuf_sources}/*.f90")
  add_library(onebuf_fortran STATIC EXCLUDE_FROM_ALL ${_onebuf_files})
  set_target_properties(onebuf_fortran PROPERTIES
    Fortran_MODULE_DIRECTORY "${CMAKE_BINARY_DIR}/onebuf-fortran")
  target_include_directories(onebuf_fortran PUBLIC "${CMAKE_BINARY_DIR}/onebuf-fortran")
  # Stages of pipelines run on several threads: no local variable may be shared by the callers of a procedure.
  if(CMAKE_Fortran_COMPILER_ID STREQUAL "GNU")
    target_compile_options(onebuf_fortran PRIVATE -frecursive)
  endif()
  target_link_libraries(onebuf_fortran PUBLIC onebuf::onebuf)
  add_library(onebuf::fortran ALIAS onebuf_fortran)
  unset(_onebuf_files)
endif()

unset(_onebuf_sources)
