# The Rust libraries of ffi/, built once by ./dev (tools/dev/rust.sh) and shared by all presets.
#   nereid_guidance  static: grammars (only engine/llama includes their header, tools/tidy) and images (gateway)
#   nereid_recipe    its header, and where ./dev puts the shared library: text/recipe loads it when a model needs it, so that no
#                    build waits for it
set(NEREID_RUST ${NEREID_CACHE}/third_party/rust CACHE PATH "The finished Rust libraries of ffi/")

add_library(nereid_recipe INTERFACE)
target_include_directories(nereid_recipe SYSTEM INTERFACE ${CMAKE_SOURCE_DIR}/ffi/include)
target_link_libraries(nereid_recipe INTERFACE ${CMAKE_DL_LIBS})
if(NOT NEREID_PORTABLE)
  # A package has it beside the program instead.
  target_compile_definitions(nereid_recipe INTERFACE NEREID_RECIPE_LIBRARY="${NEREID_RUST}/libnereid_recipe.so")
endif()

if(NOT EXISTS ${NEREID_RUST}/libnereid_guidance.a)
  message(FATAL_ERROR "libnereid_guidance.a is not in ${NEREID_RUST}. Mend: `./dev setup` builds it (once; about 2 minutes on "
    "2 cores).")
endif()

add_library(nereid_guidance INTERFACE)
target_include_directories(nereid_guidance SYSTEM INTERFACE ${CMAKE_SOURCE_DIR}/ffi/include)
target_link_libraries(nereid_guidance INTERFACE ${NEREID_RUST}/libnereid_guidance.a Threads::Threads ${CMAKE_DL_LIBS} m)
