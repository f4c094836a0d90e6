// Where and why a text is not JSON: the slow second pass after simdjson has refused it (simdjson's
// DOM does not tell the place). Internal to base/json.cc; also the independent model that tests and
// the fuzzer hold simdjson against.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace nereid {

struct JsonFault {
    std::size_t
        offset;  // of the first byte at fault; text.size() when something is missing at the end
    std::string what;  // "expected ':' after a member's name"
};

// The first fault, or nullopt when `text` is one RFC 8259 document of at most `max_depth` nested
// containers with paired surrogates and valid UTF-8. Numbers are checked for form, not range. No
// recursion.
std::optional<JsonFault> find_json_fault(std::string_view text, std::size_t max_depth);

// `text`, which has no fault, with ".0" after every integer that fits neither int64 nor uint64.
std::string widen_big_integers(std::string_view text);

}  // namespace nereid
