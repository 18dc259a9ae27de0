# Links the command and libtinkc for machines with an older C library than this one's (packaging/make-wheel).
#
# The objects are the compiler's own; `zig cc` is only the linker: it brings the start files and the symbol versions of
# the C library named by TINKC_PORTABLE_TARGET, such as x86_64-linux-gnu.2.28. What the objects call that is newer than
# that is in newer_libc.c. TINKC_PORTABLE_ZIG is the command that starts zig.
if(NOT TINKC_PORTABLE_ZIG OR NOT TINKC_PORTABLE_TARGET)
    message(FATAL_ERROR "TINKC_PORTABLE_ZIG and TINKC_PORTABLE_TARGET must be set: use packaging/make-wheel")
endif()
execute_process(COMMAND ${CMAKE_C_COMPILER} -print-libgcc-file-name OUTPUT_VARIABLE LIBGCC OUTPUT_STRIP_TRAILING_WHITESPACE)
set(portable_link "${TINKC_PORTABLE_ZIG} cc -target ${TINKC_PORTABLE_TARGET}")
set(CMAKE_C_LINK_EXECUTABLE "${portable_link} <LINK_FLAGS> <OBJECTS> -o <TARGET> <LINK_LIBRARIES> ${LIBGCC}")
set(CMAKE_C_CREATE_SHARED_LIBRARY "${portable_link} -shared <LINK_FLAGS> -Wl,-soname,<TARGET_SONAME> <OBJECTS> -o <TARGET> <LINK_LIBRARIES> ${LIBGCC}")
set(CMAKE_C_CREATE_SHARED_MODULE "${portable_link} -shared <LINK_FLAGS> <OBJECTS> -o <TARGET> <LINK_LIBRARIES> ${LIBGCC}")
set(CMAKE_SHARED_LIBRARY_LINK_C_FLAGS "")
set(CMAKE_EXE_EXPORTS_C_FLAG "")
