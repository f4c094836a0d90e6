// Typed readers over a request's JSON: the value, or a kInvalidArgument that names the path and
// says what was expected. Internal to dialect. null is treated as "not given" by the callers,
// not here.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/units.h"

namespace nereid::dialect {

std::string at_index(std::string_view path, std::size_t index);         // "messages[2]"
std::string member_path(std::string_view path, std::string_view name);  // "messages[2].content"

std::unexpected<Error> wrong_type(const Json& value, const std::string& path,
                                  std::string_view expected);
std::unexpected<Error> bad_value(const std::string& path, std::string message);
std::unexpected<Error> missing(const std::string& path);
std::unexpected<Error> unsupported(const std::string& path, std::string message);

Result<bool> read_bool(const Json& value, const std::string& path);
Result<std::string> read_string(const Json& value, const std::string& path);
// min <= v <= max; `open` excludes min.
Result<double> read_number(const Json& value, const std::string& path, double min, double max,
                           bool open = false);
Result<std::int64_t> read_int(const Json& value, const std::string& path, std::int64_t min,
                              std::int64_t max = std::numeric_limits<std::int64_t>::max());
// A token count of at least `min`; what is beyond 32 bits is clamped (clients send 10^9 and more
// for "no limit").
Result<TokenCount> read_count(const Json& value, const std::string& path, std::int64_t min);
// An array of token ids, each 0 .. 2^31 - 1. Vocabulary bounds are the engine's.
Result<std::vector<TokenId>> read_token_ids(const Json& value, const std::string& path);

// Present and not null.
const Json* given(const Json& object, std::string_view name);
Result<std::string> required_string(const Json& object, std::string_view name,
                                    const std::string& path);
// A string member, empty when absent or null.
Result<std::string> optional_string(const Json& object, std::string_view name,
                                    const std::string& path);

}  // namespace nereid::dialect
