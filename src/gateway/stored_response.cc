#include "gateway/stored_response.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace nereid::gateway {
namespace {

constexpr std::size_t kMaxTurns = 10'000;
constexpr std::uint32_t kItemsPerRead = 1000;
constexpr std::size_t kMaxReferred = 100;

std::string text_of(const Json& body, std::string_view name) {
    const Json* v = body.find(name);
    return v != nullptr && v->is_string() ? v->as_string() : std::string();
}

Error no_such(std::string_view what, const std::string& id, std::string param) {
    return {Code::kNotFound, fmt::format("{} with id '{}' not found.", what, id.substr(0, 128)),
            std::move(param)};
}

void append(Json::Array& to, const Json* items) {
    if (items == nullptr || !items->is_array()) return;
    to.insert(to.end(), items->as_array().begin(), items->as_array().end());
}

io::Task<Result<Json::Array>> conversation_items(Exchange& x, std::string id) {
    auto there = co_await x.core().records->get(x.loop(), response_key(x, kConversationKind, id));
    if (!there.ok()) {
        if (there.code() != Code::kNotFound) co_return there.error();
        co_return no_such("Conversation", id, "conversation");
    }
    Json::Array out;
    store::ListQuery query{.kind = kItemKind, .tenant = x.record.key, .parent = id, .after = {}};
    query.limit = kItemsPerRead;
    for (;;) {
        auto page = co_await x.core().records->list(x.loop(), query);
        if (!page.ok()) co_return page.error();
        for (const store::Record& r : *page) {
            if (auto item = parse_stored(r.body); item.ok()) out.push_back(*std::move(item));
        }
        if (page->size() < kItemsPerRead) co_return out;
        query.after_order = page->back().order;
    }
}

// The items of a conversation up to the last one of a turn in it; none when nothing of the turn is
// there any more.
Json::Array until_end_of(const StoredResponse& turn, Json::Array items) {
    Json::Array own = turn.input;
    append(own, turn.response.find("output"));
    std::set<std::string> ids;
    for (const Json& item : own) ids.insert(text_of(item, "id"));
    while (!items.empty() && !ids.contains(text_of(items.back(), "id"))) items.pop_back();
    return items;
}

// "msg_<hex>_1", "fc_<hex>i0": the response whose item it is; empty when it is not ours.
std::string response_of_item(std::string_view item) {
    const auto begin = item.find('_');
    if (begin == std::string_view::npos) return {};
    const std::string_view rest = item.substr(begin + 1);
    const auto end = rest.find_first_not_of("0123456789abcdef");
    return end == std::string_view::npos ? std::string()
                                         : "resp_" + std::string(rest.substr(0, end));
}

}  // namespace

Result<Json> parse_stored(std::string_view text) { return Json::parse(text, Json::kDeepest); }

store::Key response_key(const Exchange& x, std::string_view kind, std::string_view id) {
    return {.kind = std::string(kind), .tenant = x.record.key, .id = std::string(id)};
}

std::int64_t expiry(const Exchange& x) {
    const Duration ttl = x.options().state_ttl;
    return ttl <= Duration{0} ? 0 : x.clock().wall_now().seconds() + ttl / 1s;
}

std::string job_name(const Exchange& x, std::string_view id) {
    return x.record.key + "/" + std::string(id);
}

store::Record item_record(const Exchange& x, const std::string& conversation, const Json& item) {
    store::Record r;
    r.key = response_key(x, kItemKind, conversation + "/" + text_of(item, "id"));
    r.parent = conversation;
    r.body = item.dump();
    r.expires = expiry(x);
    return r;
}

namespace {
store::Record record_of(const Exchange& x, const std::string& id, std::string_view response,
                        const Json::Array& input, std::string_view previous,
                        std::string_view conversation) {
    store::Record r;
    r.key = response_key(x, kResponseKind, id);
    r.expires = expiry(x);
    JsonWriter w(r.body);
    w.begin_object().key("response").raw(response).key("input").begin_array();
    for (const Json& item : input) w.value(item);
    w.end_array().member("previous", previous).member("conversation", conversation).end_object();
    return r;
}
}  // namespace

store::Record response_record(const Exchange& x, const std::string& id, std::string_view response,
                              const dialect::responses::Create& create) {
    return record_of(x, id, response, create.input, create.previous_response_id,
                     create.conversation);
}
store::Record response_record(const Exchange& x, const std::string& id,
                              const StoredResponse& stored) {
    return record_of(x, id, stored.response.dump(), stored.input, stored.previous,
                     stored.conversation);
}

Result<StoredResponse> read_response_record(const store::Record& record) {
    auto body = parse_stored(record.body);
    if (!body.ok() || body->find("response") == nullptr)
        return err(Code::kCorrupt, "the stored response cannot be read");
    StoredResponse out;
    out.response = *body->find("response");
    append(out.input, body->find("input"));
    out.previous = text_of(*body, "previous");
    out.conversation = text_of(*body, "conversation");
    return out;
}

io::Task<Result<StoredResponse>> load_response(Exchange& x, std::string id, std::string param) {
    auto record = co_await x.core().records->get(x.loop(), response_key(x, kResponseKind, id));
    if (record.ok()) co_return read_response_record(*record);
    if (record.code() != Code::kNotFound) co_return record.error();
    co_return no_such(param == "previous_response_id" ? "Previous response" : "Response", id,
                      std::move(param));
}

io::Task<void> resolve_references(Exchange& x, dialect::responses::Create& create,
                                  const Json::Array& history) {
    std::set<std::string> here;  // no need to look for these
    std::set<std::string> looked;
    std::map<std::string, Json> found;
    for (Json& item : create.input) {
        if (text_of(item, "type") != "item_reference") continue;
        if (here.empty()) {
            here.insert("");
            for (const Json& known : history) here.insert(text_of(known, "id"));
        }
        const std::string id = text_of(item, "id");
        const std::string response = response_of_item(id);
        if (response.empty() || here.contains(id)) continue;
        if (looked.size() < kMaxReferred && looked.insert(response).second) {
            auto stored = co_await load_response(x, response, {});
            if (stored.ok()) append(stored->input, stored->response.find("output"));
            for (Json& known : stored.ok() ? stored->input : Json::Array())
                found.emplace(text_of(known, "id"), known);
        }
        if (const auto at = found.find(id); at != found.end()) item = at->second;
    }
}

io::Task<Result<Json::Array>> load_history(Exchange& x, const dialect::responses::Create& create) {
    if (!create.conversation.empty()) co_return co_await conversation_items(x, create.conversation);
    std::vector<StoredResponse> turns;
    std::string id = create.previous_response_id;
    while (!id.empty() && turns.size() < kMaxTurns) {
        auto turn = co_await load_response(x, id, "previous_response_id");
        if (!turn.ok()) co_return turn.error();
        const std::string status = text_of(turn->response, "status");
        if (status == "queued" || status == "in_progress") {
            co_return Error{Code::kConflict,
                            fmt::format("Previous response '{}' has not ended yet.", id),
                            "previous_response_id"};
        }
        id = turn->previous;
        turns.push_back(*std::move(turn));
    }
    Json::Array out;
    if (!turns.empty() && !turns.back().conversation.empty()) {
        // The chain began in a conversation, at whose end then its first turn is; or was, and then
        // the turn itself is what is left.
        auto items = co_await conversation_items(x, turns.back().conversation);
        if (!items.ok() && items.code() != Code::kNotFound) co_return items.error();
        if (items.ok()) out = until_end_of(turns.back(), *std::move(items));
        if (!out.empty()) turns.pop_back();
    }
    for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
        out.insert(out.end(), turn->input.begin(), turn->input.end());
        append(out, turn->response.find("output"));
    }
    co_return out;
}

}  // namespace nereid::gateway
