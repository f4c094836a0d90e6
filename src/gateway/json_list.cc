#include "gateway/json_list.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"

namespace nereid::gateway {
namespace {

std::string decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        std::uint8_t byte = 0;
        if (text[i] == '%' && from_hex(text.substr(i + 1, 2), {&byte, 1})) {
            out += static_cast<char>(byte);
            i += 2;
        } else {
            out += text[i] == '+' ? ' ' : text[i];
        }
    }
    return out;
}

constexpr std::string_view kCursor = "page_";

const Json* id_of(const Json& item) { return item.find("id"); }

}  // namespace

std::vector<std::string> query_values(std::string_view query, std::string_view name) {
    std::vector<std::string> out;
    while (!query.empty()) {
        const auto end = query.find('&');
        const std::string_view pair = query.substr(0, end);
        query = end == std::string_view::npos ? std::string_view{} : query.substr(end + 1);
        const auto equals = pair.find('=');
        if (decoded(pair.substr(0, equals)) != name) continue;
        out.push_back(equals == std::string_view::npos ? std::string()
                                                       : decoded(pair.substr(equals + 1)));
    }
    return out;
}

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
    auto all = query_values(query, name);
    return all.empty() ? std::nullopt : std::optional(std::move(all.front()));
}

Result<PageQuery> read_page(std::string_view query, bool newest_first, std::uint32_t most) {
    PageQuery page;
    page.newest_first = newest_first;
    if (const auto limit = query_value(query, "limit")) {
        const auto [end, error] =
            std::from_chars(limit->data(), limit->data() + limit->size(), page.limit);
        if (error != std::errc{} || end != limit->data() + limit->size() || page.limit == 0)
            return err(Code::kInvalidArgument,
                       fmt::format("`limit` must be a number from 1 to {}.", most), "limit");
        page.limit = std::min(page.limit, most);
    }
    if (const auto order = query_value(query, "order")) {
        if (*order != "asc" && *order != "desc")
            return err(Code::kInvalidArgument, "`order` must be 'asc' or 'desc'.", "order");
        page.newest_first = *order == "desc";
    }
    for (const char* name : {"after", "after_id"}) {
        if (auto after = query_value(query, name)) page.after = *std::move(after);
    }
    if (auto cursor = query_value(query, "page"); cursor && !cursor->empty()) {
        if (!cursor->starts_with(kCursor))
            return err(Code::kInvalidArgument, "`page` is no `next_page` of a list.", "page");
        page.after = cursor->substr(kCursor.size());
    }
    page.before = query_value(query, "before_id").value_or("");
    if (!page.after.empty() && !page.before.empty()) {
        return err(Code::kInvalidArgument, "Give `after_id` or `before_id`, not both.",
                   "before_id");
    }
    return page;
}

Result<PageRange> range_of(const std::vector<std::string_view>& ids, const PageQuery& page) {
    const bool back = !page.before.empty();
    const std::string& cursor = back ? page.before : page.after;
    const auto found = cursor.empty() ? ids.begin() : std::ranges::find(ids, cursor);
    if (!cursor.empty() && found == ids.end()) {
        return err(Code::kNotFound, fmt::format("There is no item '{}'.", cursor.substr(0, 128)),
                   back ? "before_id" : "after");
    }
    const auto at = static_cast<std::size_t>(found - ids.begin());
    if (back) {
        const std::size_t begin = at > page.limit ? at - page.limit : 0;
        return PageRange{begin, at, begin > 0};
    }
    const std::size_t begin = cursor.empty() ? 0 : at + 1;
    const std::size_t end = std::min<std::size_t>(ids.size(), begin + page.limit);
    return PageRange{begin, end, end < ids.size()};
}

std::string list_object(const Json::Array& data, bool has_more, bool cursor) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("object", "list").key("data").begin_array();
    for (const Json& item : data) w.value(item);
    w.end_array();
    const auto name = [&](std::string_view key, const Json* item) {
        const Json* id = item == nullptr ? nullptr : id_of(*item);
        w.key(key);
        if (id == nullptr)
            w.null();
        else
            w.value(*id);
    };
    name("first_id", data.empty() ? nullptr : &data.front());
    name("last_id", data.empty() ? nullptr : &data.back());
    if (cursor) {
        const Json* last = data.empty() ? nullptr : id_of(data.back());
        w.key("next_page");
        if (has_more && last != nullptr && last->is_string())
            w.value(std::string(kCursor) + last->as_string());
        else
            w.null();
    }
    w.member("has_more", has_more).end_object();
    return out;
}

Result<std::string> page_of(const Json::Array& items, const PageQuery& page) {
    Json::Array ordered = items;
    if (page.newest_first) std::ranges::reverse(ordered);
    std::vector<std::string_view> ids;
    for (const Json& item : ordered) {
        const Json* id = id_of(item);
        ids.push_back(id != nullptr && id->is_string() ? id->as_string() : std::string_view{});
    }
    TRY(const PageRange range, range_of(ids, page));
    const auto at = [&](std::size_t i) { return ordered.begin() + static_cast<std::ptrdiff_t>(i); };
    return list_object(Json::Array(at(range.begin), at(range.end)), range.has_more);
}

}  // namespace nereid::gateway
