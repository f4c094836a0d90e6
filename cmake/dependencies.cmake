# Debian libraries that rooms may use. Who may use which is tools/tidy's business; what links where is here:
#   nereid_system     every room: fmt, simdjson, OpenSSL, toml++
#   nereid_system_io  room io only: Boost.Asio and Beast (headers), gRPC, liburing
#   nereid_system_store  room store only: SQLite, libpq
function(nereid_need what package found)
  if(NOT found)
    message(FATAL_ERROR "${what} was not found. Mend: `./dev setup`, or `apt-get install --no-install-recommends ${package}`.")
  endif()
endfunction()

find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)
nereid_need(pkg-config pkg-config "${PKG_CONFIG_FOUND}")

find_package(fmt 9 CONFIG QUIET)
nereid_need("fmt 9" libfmt-dev "${fmt_FOUND}")
find_package(OpenSSL 3 QUIET)
nereid_need("OpenSSL 3" libssl-dev "${OPENSSL_FOUND}")
pkg_check_modules(SIMDJSON QUIET IMPORTED_TARGET simdjson)
nereid_need(simdjson libsimdjson-dev "${SIMDJSON_FOUND}")
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h)
nereid_need("toml++" libtomlplusplus-dev "${TOMLPLUSPLUS_INCLUDE}")

add_library(nereid_system INTERFACE)
target_link_libraries(nereid_system INTERFACE fmt::fmt OpenSSL::SSL OpenSSL::Crypto PkgConfig::SIMDJSON Threads::Threads)
target_compile_definitions(nereid_system INTERFACE
  TOML_EXCEPTIONS=0                   # parse errors are values, as everywhere
  TOML_HEADER_ONLY=1)

set(Boost_NO_WARN_NEW_VERSIONS ON)
find_package(Boost 1.81 QUIET)
nereid_need("Boost 1.81 (libboost-dev is 1.74)" libboost1.81-dev "${Boost_FOUND}")
# Not through pkg-config: it takes half a minute to walk grpc++'s hundred requirements, and the shared library names its own.
find_library(GRPCPP_LIBRARY grpc++)
find_path(GRPCPP_INCLUDE grpcpp/grpcpp.h)
nereid_need("gRPC" libgrpc++-dev "${GRPCPP_LIBRARY}")
nereid_need("gRPC's headers" libgrpc++-dev "${GRPCPP_INCLUDE}")
find_path(PROTOBUF_INCLUDE google/protobuf/message.h)
nereid_need("protobuf" libprotobuf-dev "${PROTOBUF_INCLUDE}")
pkg_check_modules(URING QUIET IMPORTED_TARGET liburing)
nereid_need("liburing" liburing-dev "${URING_FOUND}")

add_library(nereid_system_io INTERFACE)
target_link_libraries(nereid_system_io INTERFACE Boost::headers PkgConfig::URING
  grpc++ grpc gpr protobuf absl_synchronization absl_cord absl_status absl_strings) # what headers of gRPC use inline, with it

pkg_check_modules(SQLITE QUIET IMPORTED_TARGET sqlite3)
nereid_need("SQLite 3" libsqlite3-dev "${SQLITE_FOUND}")
add_library(nereid_system_store INTERFACE)
pkg_check_modules(LIBPQ QUIET IMPORTED_TARGET libpq)
nereid_need("PostgreSQL's client library" libpq-dev "${LIBPQ_FOUND}")
target_link_libraries(nereid_system_store INTERFACE PkgConfig::SQLITE PkgConfig::LIBPQ)

if(NEREID_TESTS)
  find_package(GTest QUIET)
  nereid_need("GoogleTest" "libgtest-dev libgmock-dev" "${GTest_FOUND}")
endif()
if(NEREID_BENCH)
  find_package(benchmark QUIET)
  nereid_need("Google Benchmark" libbenchmark-dev "${benchmark_FOUND}")
endif()
