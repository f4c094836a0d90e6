# nereid_llama: llama.cpp, built once by ./dev (optimised, unsanitised) and shared by all presets. Only engine/llama and
# text/gguf include its headers (tools/tidy). With NEREID_ENGINE_LLAMA=OFF those two folders are left out of their rooms
# and NEREID_ENGINE_LLAMA is not defined.
if(NOT NEREID_ENGINE_LLAMA)
  return()
endif()

file(STRINGS ${CMAKE_SOURCE_DIR}/third_party/pins.env version REGEX "^LLAMA_VERSION=")
string(REPLACE "LLAMA_VERSION=" "" version ${version})
set(NEREID_LLAMA_SOURCE ${NEREID_CACHE}/src/llama.cpp-${version} CACHE PATH "llama.cpp's source tree")
if(NEREID_PORTABLE)
  set(variant portable)
else()
  set(variant native)
endif()
set(NEREID_LLAMA_BUILD ${NEREID_CACHE}/third_party/llama-${variant} CACHE PATH "llama.cpp's finished build")

if(NOT EXISTS ${NEREID_LLAMA_SOURCE}/include/llama.h)
  message(FATAL_ERROR "llama.cpp's source is not at ${NEREID_LLAMA_SOURCE}. Mend: `./dev setup` fetches and builds it "
    "(once; about 8 minutes on 2 cores), or configure with -DNEREID_ENGINE_LLAMA=OFF.")
endif()

add_library(nereid_llama INTERFACE)
foreach(dir include ggml/include common vendor tools/mtmd src)
  target_include_directories(nereid_llama SYSTEM INTERFACE ${NEREID_LLAMA_SOURCE}/${dir})
endforeach()
if(NEREID_PORTABLE)
  set(nereid_llama_libs bin/libllama-common.so bin/libmtmd.so bin/libllama.so bin/libggml.so bin/libggml-base.so)
  target_link_options(nereid_llama INTERFACE LINKER:-rpath-link,${NEREID_LLAMA_BUILD}/bin)
else()
  # The order is that of use: static libraries, each needs only what follows it.
  set(nereid_llama_libs
    common/libllama-common.a common/libllama-common-base.a tools/mtmd/libmtmd.a src/libllama.a
    ggml/src/libggml.a ggml/src/libggml-cpu.a ggml/src/libggml-base.a
    vendor/cpp-httplib/libcpp-httplib.a vendor/hash/libvendor-hash.a)
endif()
foreach(lib ${nereid_llama_libs})
  target_link_libraries(nereid_llama INTERFACE ${NEREID_LLAMA_BUILD}/${lib})
endforeach()
target_link_options(nereid_llama INTERFACE -fopenmp=libomp)
target_link_libraries(nereid_llama INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
