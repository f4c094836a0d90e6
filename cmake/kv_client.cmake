# libnereid_kv.so: the KV cache client for engines (include/nereid_kv.h). It is loaded into processes that fork and bring
# other libraries, so it is built by itself: everything hidden but the C ABI, its own libstdc++, no OpenSSL, Boost or fmt
# library, and never instrumented (a Python without the sanitizer's runtime must load it).
add_library(nereid_kv_client SHARED
  src/kv/client/client.cc src/kv/wire/wire.cc src/kv/tier/arena.cc src/kv/tier/copy_crc.cc
  src/base/crc32c.cc src/base/result.cc src/base/check.cc)
set_target_properties(nereid_kv_client PROPERTIES OUTPUT_NAME nereid_kv VERSION 1.0.0 SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin INTERPROCEDURAL_OPTIMIZATION OFF)
target_include_directories(nereid_kv_client PRIVATE ${CMAKE_SOURCE_DIR}/src PUBLIC ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(nereid_kv_client PRIVATE FMT_HEADER_ONLY NDEBUG)
target_compile_options(nereid_kv_client PRIVATE -Wall -Wextra -Wshadow -Wconversion -Werror -O2 -fPIC
  -fvisibility=hidden -fvisibility-inlines-hidden -ffunction-sections -fdata-sections
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)
target_link_options(nereid_kv_client PRIVATE -fuse-ld=mold -static-libstdc++ -static-libgcc
  -Wl,--no-undefined -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/kv_client.map -Wl,--gc-sections -Wl,--as-needed)
set_property(TARGET nereid_kv_client PROPERTY LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/kv_client.map)
install(TARGETS nereid_kv_client LIBRARY DESTINATION lib)
install(FILES include/nereid_kv.h DESTINATION include)

# A C program over the C header: what an engine would do, and what tests/e2e/test_kv_cache.py runs.
add_executable(kv_client_c tests/kv_client/kv_client.c)
target_compile_options(kv_client_c PRIVATE -std=c11 -Wall -Wextra -Wpedantic -Werror)
target_link_options(kv_client_c PRIVATE -fuse-ld=mold)
target_link_libraries(kv_client_c PRIVATE nereid_kv_client)
