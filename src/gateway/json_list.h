// Small pieces of the state endpoints: query parameters and pages of lists. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace nereid::gateway {

// The value of a parameter of a raw query string, percent-decoded; nullopt when it is not there.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

struct PageQuery {
    std::uint32_t limit = 20;
    std::string after;
    bool newest_first = true;
};
// limit (1..100; more than 100 is 100), after, order (asc, desc). kInvalidArgument with `param`.
Result<PageQuery> read_page(std::string_view query, bool newest_first);

// {"object":"list","data":[...],"first_id","last_id","has_more"}; each element has an id.
std::string list_object(const Json::Array& data, bool has_more);
// The page of `items` (oldest first) that `page` asks for. kNotFound for an unknown `after`.
Result<std::string> page_of(const Json::Array& items, const PageQuery& page);

}  // namespace nereid::gateway
