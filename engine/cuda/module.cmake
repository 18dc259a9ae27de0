# The engine's module for NVIDIA GPUs, opened at run time: engine/cuda and the few lower files it stands on.
# It links the CUDA runtime statically and opens the driver and cuBLASLt by name, so it loads anywhere.
# TINKC_CUDA=AUTO leaves it out where the compiler is missing, and in builds that could not load it.
if(NOT TINKC_ENGINE OR NOT TINKC_CUDA)
    return()
endif()
if(TINKC_CUDA STREQUAL "AUTO" AND (TINKC_SANITIZE OR TINKC_STATIC OR TINKC_FUZZ OR CMAKE_CROSSCOMPILING))
    return()
endif()
find_program(NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
get_filename_component(CUDA_ROOT "${NVCC}" DIRECTORY)
get_filename_component(CUDA_ROOT "${CUDA_ROOT}" DIRECTORY)
find_library(CUDART_STATIC cudart_static HINTS ${CUDA_ROOT}/lib64 ${CUDA_ROOT}/lib)
if(NOT NVCC OR NOT CUDART_STATIC)
    if(NOT TINKC_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "TINKC_CUDA=ON needs nvcc and libcudart_static.a; set CUDA_HOME, or TINKC_CUDA=OFF")
    endif()
    return()
endif()
message(STATUS "Module for NVIDIA GPUs: ${NVCC}, for ${TINKC_CUDA_ARCHS} (-DTINKC_CUDA=OFF leaves it out)")

set(cuda_code)
foreach(arch ${TINKC_CUDA_ARCHS})
    list(APPEND cuda_code -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
list(APPEND cuda_code -gencode=arch=compute_80,code=compute_80)

# Sums are fused where the source says so and nowhere else: a kernel's bits must not depend on its neighbours.
set(cuda_flags -O3 --fmad=false -std=c++17 -lineinfo
    -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics,-fno-rtti)
file(GLOB cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/cuda/*.cu)
file(GLOB cuda_host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/cuda/*.c)
set(cuda_objects)
file(GLOB cuda_formats CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/math/format*.c)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
foreach(source ${cuda_kernels})
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM COMMENT "nvcc ${name}"
        COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${NVCC} ${cuda_flags} ${cuda_code} -I${CMAKE_SOURCE_DIR}/engine
                -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object})
    list(APPEND cuda_objects ${object})
endforeach()

add_library(tinkc-engine-cuda MODULE ${cuda_host} ${cuda_objects} src/base/err.c src/base/mem.c src/base/redact.c src/base/str.c
            engine/math/dtype.c ${cuda_formats} engine/device/residence.c)
target_include_directories(tinkc-engine-cuda PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src
                           ${CMAKE_SOURCE_DIR}/engine)
target_include_directories(tinkc-engine-cuda SYSTEM PRIVATE ${CUDA_ROOT}/include)
target_compile_options(tinkc-engine-cuda PRIVATE -ffunction-sections -fdata-sections)
target_link_libraries(tinkc-engine-cuda PRIVATE ${CUDART_STATIC} dl rt pthread m)
target_link_options(tinkc-engine-cuda PRIVATE -Wl,--no-undefined -Wl,--gc-sections
                    -Wl,--version-script=${CMAKE_SOURCE_DIR}/engine/cuda/module.map)
if(TINKC_PORTABLE) # the wheel: cuBLASLt is in NVIDIA's own, beside it
    target_sources(tinkc-engine-cuda PRIVATE packaging/portable/newer_libc.c)
    set_target_properties(tinkc-engine-cuda PROPERTIES BUILD_WITH_INSTALL_RPATH ON
                          INSTALL_RPATH "$ORIGIN/../nvidia/cu13/lib;$ORIGIN/../nvidia/cublas/lib")
endif()
install(TARGETS tinkc-engine-cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})

# The checks that need a card; tools/check-gpu runs them.
if(TINKC_TESTS)
    file(GLOB cuda_checks CONFIGURE_DEPENDS tests/gpu/check_*.c tests/gpu/gpu_*.c)
    add_executable(cuda_check tests/gpu/cuda_check.c ${cuda_checks} ${cuda_host} ${cuda_objects}
                   src/base/err.c src/base/mem.c src/base/redact.c src/base/str.c engine/math/dtype.c ${cuda_formats}
                   engine/device/residence.c)
    target_include_directories(cuda_check PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src
                               ${CMAKE_SOURCE_DIR}/engine ${CMAKE_SOURCE_DIR}/tests/gpu)
    target_include_directories(cuda_check SYSTEM PRIVATE ${CUDA_ROOT}/include)
    target_compile_options(cuda_check PRIVATE -ffunction-sections -fdata-sections)
    target_link_libraries(cuda_check PRIVATE ${CUDART_STATIC} dl rt pthread m)
    target_link_options(cuda_check PRIVATE -Wl,--gc-sections) # the files of base have more than it needs
    set_target_properties(cuda_check PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endif()
