// Small pieces of the state endpoints: query parameters and pages of lists. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nereid::gateway {

// The values of a parameter of a raw query string, percent-decoded, in their order.
std::vector<std::string> query_values(std::string_view query, std::string_view name);
// The first one; nullopt when it is not there.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

struct PageQuery {
    std::uint32_t limit = 20;
    std::string after;
    std::string before;  // those next to it on its other side; at most one of the two is set
    bool newest_first = true;
};
// limit (1..most; more is `most`), order (asc, desc), and where to go on: after (OpenAI's),
// after_id, before_id, page (Anthropic's). kInvalidArgument with `param`.
Result<PageQuery> read_page(std::string_view query, bool newest_first, std::uint32_t most = 100);

struct PageRange {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool has_more = false;  // in the direction that was asked for
};
// The elements that `page` asks for; `ids` are in the list's order. kNotFound for an unknown one.
Result<PageRange> range_of(const std::vector<std::string_view>& ids, const PageQuery& page);

// {"object":"list","data":[...],"first_id","last_id","has_more"}; each element has an id. With
// `cursor` also "next_page", what Anthropic's newer lists go on with.
std::string list_object(const Json::Array& data, bool has_more, bool cursor = false);
// The page of `items` (oldest first) that `page` asks for. kNotFound for an unknown cursor.
Result<std::string> page_of(const Json::Array& items, const PageQuery& page);

}  // namespace nereid::gateway
