# Turns src/rooms.txt into targets. For each room R with its folder src/R:
#
#   nereid_R          static library of src/R/**/*.cc; it links the rooms that rooms.txt allows it to include
#   R_test            every src/R/**/*_test.cc with GoogleTest, one ctest entry; runs in the root of the repository
#   R_<name>_fuzz     one libFuzzer executable per <name>_fuzz.cc; the ctest entry replays tests/corpus/<name>/ and fuzzes 3 s
#   R_<name>_bench    one Google Benchmark executable per <name>_bench.cc
#   nereid            the executable, from src/app/main.cc and room app
#
# A room without sources is an empty interface library, so that rooms.txt can run ahead of the code.

set(NEREID_FUZZ_SECONDS 3 CACHE STRING "How long ctest fuzzes after replaying a corpus")

add_library(nereid_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
target_link_libraries(nereid_pch PRIVATE nereid_flags nereid_system)
target_precompile_headers(nereid_pch PRIVATE ${CMAKE_SOURCE_DIR}/src/pch.h)

# Common to every target of ours. NOPCH for files whose flags differ from the precompiled header's.
function(nereid_target target)
  target_link_libraries(${target} PRIVATE nereid_flags nereid_system)
  if(NOT "NOPCH" IN_LIST ARGN)
    target_precompile_headers(${target} REUSE_FROM nereid_pch)
  endif()
endfunction()

# Reads rooms.txt into NEREID_ROOMS (in order) and NEREID_DEPS_<room>; any mistake stops the configuration.
function(nereid_read_rooms path)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(STRINGS ${path} lines)
  set(rooms "")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "#.*" "" line "${line}")
    string(STRIP "${line}" line)
    if(line STREQUAL "")
      continue()
    endif()
    if(NOT line MATCHES "^([a-z_]+):(.*)$")
      message(FATAL_ERROR "${path}: cannot read \"${line}\"; a line is `room: room room  # purpose`")
    endif()
    set(room ${CMAKE_MATCH_1})
    string(STRIP "${CMAKE_MATCH_2}" deps)
    string(REGEX REPLACE "[ \t]+" ";" deps "${deps}")
    if(deps STREQUAL "*")
      set(deps ${rooms})
    endif()
    foreach(dep IN LISTS deps)
      if(NOT dep IN_LIST rooms)
        message(FATAL_ERROR "${path}: room ${room} names ${dep}, which is not a room above it")
      endif()
    endforeach()
    list(APPEND rooms ${room})
    set(NEREID_DEPS_${room} ${deps} PARENT_SCOPE)
  endforeach()
  set(NEREID_ROOMS ${rooms} PARENT_SCOPE)
endfunction()

function(nereid_add_room room)
  set(dir ${CMAKE_CURRENT_SOURCE_DIR}/${room})
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${dir}/*.cc)
  if(NOT NEREID_ENGINE_LLAMA)
    list(FILTER all EXCLUDE REGEX "/src/(engine/llama|text/gguf)/")
  endif()
  set(tests ${all})
  set(fuzzers ${all})
  set(benches ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz|bench)\\.cc$")
  list(REMOVE_ITEM sources ${dir}/main.cc)

  set(deps ${NEREID_DEPS_${room}})
  list(TRANSFORM deps PREPEND nereid_)
  if(sources)
    add_library(nereid_${room} STATIC ${sources})
    nereid_target(nereid_${room})
    target_link_libraries(nereid_${room} PUBLIC ${deps})
    if(room STREQUAL "io" OR room STREQUAL "store")
      target_link_libraries(nereid_${room} PRIVATE nereid_system_${room})
    endif()
    if(NEREID_ENGINE_LLAMA AND (room STREQUAL "text" OR room STREQUAL "engine"))
      target_link_libraries(nereid_${room} PRIVATE nereid_llama)
    endif()
  else()
    add_library(nereid_${room} INTERFACE)
    target_link_libraries(nereid_${room} INTERFACE ${deps})
  endif()

  if(tests AND NEREID_TESTS)
    add_executable(${room}_test ${tests})
    nereid_target(${room}_test)
    target_link_libraries(${room}_test PRIVATE nereid_${room} GTest::gmock_main)
    nereid_room_externals(${room}_test ${room})
    add_test(NAME ${room}_test COMMAND ${room}_test --gtest_brief=1 WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    nereid_test_environment(${room}_test)
    set_property(TEST ${room}_test PROPERTY TIMEOUT 300)
  endif()

  if(fuzzers AND NEREID_FUZZ)
    foreach(file IN LISTS fuzzers)
      get_filename_component(stem ${file} NAME_WE)
      string(REGEX REPLACE "_fuzz$" "" name ${stem})
      set(target ${room}_${name}_fuzz)
      add_executable(${target} ${file})
      nereid_target(${target})
      target_link_libraries(${target} PRIVATE nereid_${room})
      nereid_room_externals(${target} ${room})
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
      # The first folder takes what the fuzzer finds, the second is the repository's corpus and only read.
      set(found ${CMAKE_BINARY_DIR}/fuzz/${name})
      set(corpus ${CMAKE_SOURCE_DIR}/tests/corpus/${name})
      file(MAKE_DIRECTORY ${found})
      if(NOT IS_DIRECTORY ${corpus})
        set(corpus "")
      endif()
      add_test(NAME ${target} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
        COMMAND ${target} -max_total_time=${NEREID_FUZZ_SECONDS} -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
                -artifact_prefix=${CMAKE_BINARY_DIR}/fuzz/ ${found} ${corpus})
      nereid_test_environment(${target})
    endforeach()
  endif()

  if(benches AND NEREID_BENCH)
    foreach(file IN LISTS benches)
      get_filename_component(stem ${file} NAME_WE)
      add_executable(${room}_${stem} ${file})
      nereid_target(${room}_${stem})
      target_link_libraries(${room}_${stem} PRIVATE nereid_${room} benchmark::benchmark_main)
      nereid_room_externals(${room}_${stem} ${room})
    endforeach()
  endif()

  if(room STREQUAL "app" AND EXISTS ${dir}/main.cc AND NEREID_ENGINE_LLAMA)
    add_executable(nereid ${dir}/main.cc)
    nereid_target(nereid)
    target_link_libraries(nereid PRIVATE nereid_app)
    install(TARGETS nereid RUNTIME DESTINATION bin)
  endif()
endfunction()

# Tests of a room may use what the room itself uses privately.
function(nereid_room_externals target room)
  if(room STREQUAL "io" OR room STREQUAL "store")
    target_link_libraries(${target} PRIVATE nereid_system_${room})
  endif()
  if(NEREID_ENGINE_LLAMA AND (room STREQUAL "text" OR room STREQUAL "engine"))
    target_link_libraries(${target} PRIVATE nereid_llama)
  endif()
endfunction()

function(nereid_test_environment test)
  set_property(TEST ${test} PROPERTY ENVIRONMENT
    ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-19
    UBSAN_OPTIONS=print_stacktrace=1
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:external_symbolizer_path=/usr/bin/llvm-symbolizer-19"
    NEREID_BINARY=${CMAKE_BINARY_DIR}/bin/nereid
    NEREID_MODEL=${NEREID_CACHE}/models/SmolLM2-135M-Instruct.Q4_1.gguf)
endfunction()

function(nereid_add_rooms path)
  nereid_read_rooms(${path})
  foreach(room IN LISTS NEREID_ROOMS)
    nereid_add_room(${room})
  endforeach()
endfunction()
