#include "gateway/json_list.h"

#include <algorithm>
#include <charconv>

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

const Json* id_of(const Json& item) { return item.find("id"); }

}  // namespace

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
    while (!query.empty()) {
        const auto end = query.find('&');
        const std::string_view pair = query.substr(0, end);
        query = end == std::string_view::npos ? std::string_view{} : query.substr(end + 1);
        const auto equals = pair.find('=');
        if (decoded(pair.substr(0, equals)) != name) continue;
        return equals == std::string_view::npos ? std::string() : decoded(pair.substr(equals + 1));
    }
    return std::nullopt;
}

Result<PageQuery> read_page(std::string_view query, bool newest_first) {
    PageQuery page;
    page.newest_first = newest_first;
    if (const auto limit = query_value(query, "limit")) {
        const auto [end, error] =
            std::from_chars(limit->data(), limit->data() + limit->size(), page.limit);
        if (error != std::errc{} || end != limit->data() + limit->size() || page.limit == 0)
            return err(Code::kInvalidArgument, "`limit` must be a number from 1 to 100.", "limit");
        page.limit = std::min<std::uint32_t>(page.limit, 100);
    }
    if (const auto order = query_value(query, "order")) {
        if (*order != "asc" && *order != "desc")
            return err(Code::kInvalidArgument, "`order` must be 'asc' or 'desc'.", "order");
        page.newest_first = *order == "desc";
    }
    page.after = query_value(query, "after").value_or("");
    return page;
}

std::string list_object(const Json::Array& data, bool has_more) {
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
    w.member("has_more", has_more).end_object();
    return out;
}

Result<std::string> page_of(const Json::Array& items, const PageQuery& page) {
    Json::Array ordered = items;
    if (page.newest_first) std::ranges::reverse(ordered);
    auto begin = ordered.begin();
    if (!page.after.empty()) {
        begin = std::ranges::find_if(ordered, [&](const Json& item) {
            return id_of(item) != nullptr && *id_of(item) == Json(page.after);
        });
        if (begin == ordered.end())
            return err(Code::kNotFound, fmt::format("There is no item '{}'.", page.after), "after");
        ++begin;
    }
    const auto left = static_cast<std::size_t>(ordered.end() - begin);
    const std::size_t count = std::min<std::size_t>(left, page.limit);
    const Json::Array data(begin, begin + static_cast<std::ptrdiff_t>(count));
    return list_object(data, count < left);
}

}  // namespace nereid::gateway
