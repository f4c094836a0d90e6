# The compiler, the flags of our own code, and the build's own speed (ccache, mold). Third-party code is built elsewhere
# with its own flags (tools/dev/third_party.sh).

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19)
  message(FATAL_ERROR
    "Nereid needs clang 19: g++ 12 miscompiles coroutines (docs: STYLE, \"Concurrency\"). Found "
    "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}. Mend: `./dev setup`, then configure with a preset "
    "(`cmake --preset debug`) in an empty build folder.")
endif()

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

if(NOT NEREID_CACHE)
  if(DEFINED ENV{NEREID_CACHE})
    set(NEREID_CACHE $ENV{NEREID_CACHE})
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(NEREID_CACHE $ENV{XDG_CACHE_HOME}/nereid)
  else()
    set(NEREID_CACHE $ENV{HOME}/.cache/nereid)
  endif()
endif()

# ccache misses every file that uses a precompiled header unless it is told to ignore the header's time stamp; with these
# settings and -fno-pch-timestamp a clean rebuild hits 100 %.
find_program(NEREID_CCACHE ccache)
if(NEREID_CCACHE)
  set(launcher env CCACHE_DIR=${NEREID_CACHE}/ccache CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${NEREID_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

if(NEREID_PORTABLE)
  # The executable finds llama.cpp's libraries beside itself, wherever that is; ggml looks for its CPU kernels there too.
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  set(CMAKE_INSTALL_RPATH $ORIGIN)
endif()

add_library(nereid_flags INTERFACE)
target_compile_options(nereid_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Werror
  -ffp-contract=off                       # the same build and seed give the same decisions: no fused multiply-add of the compiler's choosing
  -fno-omit-frame-pointer -fPIE         # given here, not by CMake: libraries and executables share one precompiled header
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}=. # the binary does not name the folder it was built in
  "SHELL:-Xclang -fno-pch-timestamp")
target_include_directories(nereid_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_link_options(nereid_flags INTERFACE -fuse-ld=mold -pie -Wl,--as-needed)

if(NEREID_SANITIZE)
  target_compile_options(nereid_flags INTERFACE -fsanitize=${NEREID_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(nereid_flags INTERFACE -fsanitize=${NEREID_SANITIZE})
endif()

# Coverage counters in every room, so that the fuzzers see where they are.
if(NEREID_FUZZ)
  target_compile_options(nereid_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(nereid_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

if(NEREID_LTO)
  include(CheckIPOSupported)
  check_ipo_supported(RESULT ok OUTPUT why LANGUAGES CXX)
  if(NOT ok)
    message(FATAL_ERROR "NEREID_LTO=ON, but: ${why}. Mend: `./dev setup` (llvm-19's ar and ranlib; the presets name them).")
  endif()
  set(CMAKE_CXX_COMPILE_OPTIONS_IPO -flto=thin)
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ON)
endif()
