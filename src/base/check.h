// CHECK: an invariant of our own code; always on; prints file, line and message, then aborts.
// Never for input from outside: that is an Error.
#pragma once

#include <string_view>

namespace nereid {
[[noreturn]] void check_failed(const char* file, int line, const char* expr,
                               std::string_view message);
}

#define CHECK(cond)                                                \
    do {                                                           \
        if (!(cond)) [[unlikely]]                                  \
            ::nereid::check_failed(__FILE__, __LINE__, #cond, {}); \
    } while (false)
#define CHECK_MSG(cond, message)                                          \
    do {                                                                  \
        if (!(cond)) [[unlikely]]                                         \
            ::nereid::check_failed(__FILE__, __LINE__, #cond, (message)); \
    } while (false)
