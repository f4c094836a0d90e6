#include "gateway/conversations.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gateway/json_list.h"
#include "gateway/stored_response.h"

namespace nereid::gateway {
namespace {

constexpr std::size_t kMaxItems = 10'000;

Error no_such_conversation(const std::string& id) {
    return {Code::kNotFound,
            fmt::format("Conversation with id '{}' not found.", id.substr(0, 128))};
}

Result<Json> metadata_of(const Json& body) {
    const Json* m = body.find("metadata");
    if (m == nullptr || m->is_null()) return Json(Json::Object{});
    if (!m->is_object())
        return err(Code::kInvalidArgument, "`metadata` must be an object.", "metadata");
    return *m;
}

Error missing(std::string_view name) {
    return {Code::kInvalidArgument, fmt::format("Missing required parameter: '{}'.", name),
            std::string(name)};
}

// The items of a body, as they are stored.
Result<Json::Array> items_of(const Exchange& x, const Json& body, std::string_view seed,
                             bool required) {
    const Json* items = body.find("items");
    if (items == nullptr || items->is_null()) {
        if (!required) return Json::Array{};
        return missing("items");
    }
    if (!items->is_array())
        return err(Code::kInvalidArgument, "`items` must be an array.", "items");
    TRY(Json::Array out, dialect::responses::read_items(*items, "items", seed, kMaxItems));
    TRY_VOID(dialect::responses::check_items(out, "items", x.seal()));
    dialect::responses::settle_items(out, {});
    return out;
}

void add_items(const Exchange& x, const std::string& id, const Json::Array& items,
               std::vector<store::Change>& changes) {
    for (const Json& item : items) {
        store::Change change{.op = store::Change::Op::kInsert, .record = {}};
        change.record = item_record(x, id, item);
        changes.push_back(std::move(change));
    }
}

io::Task<Result<store::Record>> load(Exchange& x, std::string id) {
    auto record = co_await x.core().records->get(x.loop(), response_key(x, kConversationKind, id));
    if (!record.ok() && record.code() == Code::kNotFound) co_return no_such_conversation(id);
    co_return record;
}

struct Created {
    std::string body;
    std::vector<store::Change> changes;
};
Result<Created> create(Exchange& x, const std::string& seed) {
    Json body;
    if (!x.http().body.empty()) {
        TRY(body, parse_body(x));
    }
    if (!body.is_null() && !body.is_object())
        return err(Code::kInvalidArgument, "The body must be a JSON object.");
    TRY(Json metadata, metadata_of(body));
    TRY(const Json::Array items, items_of(x, body, seed, false));
    Json conversation(Json::Object{{"id", "conv_" + seed}, {"object", "conversation"}});
    conversation.set("created_at", x.clock().wall_now().seconds());
    conversation.set("metadata", std::move(metadata));
    Created out{.body = conversation.dump(), .changes = {}};
    out.changes.resize(1);
    out.changes[0].record = {.key = response_key(x, kConversationKind, "conv_" + seed),
                             .body = out.body};
    out.changes[0].record.expires = expiry(x);
    add_items(x, "conv_" + seed, items, out.changes);
    return out;
}

// Of an update, which must bring some.
Result<Json> new_metadata(const Json& body) {
    const Json* m = body.find("metadata");
    if (m == nullptr) return missing("metadata");
    return metadata_of(body);
}

io::Task<void> update(Exchange& x, store::Record record) {
    auto body = parse_body(x);
    auto metadata = body.ok() ? new_metadata(*body) : Result<Json>(std::move(body.error()));
    if (!metadata.ok()) co_return co_await refuse(x, std::move(metadata.error()));
    auto conversation = parse_stored(record.body);
    if (!conversation.ok()) co_return co_await x.fail({Code::kCorrupt, "unreadable conversation"});
    conversation->set("metadata", *std::move(metadata));
    record.body = conversation->dump();
    record.expires = expiry(x);
    std::string answer = record.body;
    auto kept = co_await x.core().records->put(x.loop(), std::move(record));
    if (!kept.ok()) co_return co_await x.fail(std::move(kept.error()));
    co_await x.send_json(200, std::move(answer));
}

// Items go with their conversation.
io::Task<void> remove(Exchange& x, std::string id) {
    store::Records& records = *x.core().records;
    for (;;) {
        store::ListQuery query{
            .kind = kItemKind, .tenant = x.record.key, .parent = id, .after = {}};
        auto page = co_await records.list(x.loop(), query);
        if (!page.ok()) co_return co_await x.fail(std::move(page.error()));
        std::vector<store::Change> changes;
        for (store::Record& r : *page)
            changes.push_back({.op = store::Change::Op::kRemove, .record = std::move(r)});
        const bool last = changes.size() < query.limit;
        if (last) {
            changes.push_back({.op = store::Change::Op::kRemove,
                               .record = {.key = response_key(x, kConversationKind, id)}});
        }
        auto removed = co_await records.write(x.loop(), std::move(changes));
        if (!removed.ok()) co_return co_await x.fail(std::move(removed.error()));
        if (last) break;
    }
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("id", id).member("object", "conversation.deleted");
    w.member("deleted", true).end_object();
    co_await x.send_json(200, std::move(out));
}

}  // namespace

io::Task<void> serve_conversations(Exchange& x, ShardTools tools) {
    auto made = create(x, hex_id(tools.prng));
    if (!made.ok()) co_return co_await refuse(x, std::move(made.error()));
    auto kept = co_await x.core().records->write(x.loop(), std::move(made->changes));
    if (!kept.ok()) co_return co_await x.fail(std::move(kept.error()));
    co_await x.send_json(200, std::move(made->body));
}

io::Task<void> serve_conversation(Exchange& x, std::string id) {
    auto record = co_await load(x, id);
    if (!record.ok()) co_return co_await x.fail(std::move(record.error()));
    if (x.http().method == "DELETE") co_return co_await remove(x, std::move(id));
    if (x.http().method == "POST") co_return co_await update(x, *std::move(record));
    co_await x.send_json(200, std::move(record->body));
}

io::Task<void> serve_conversation_items(Exchange& x, ShardTools tools, std::string id) {
    auto record = co_await load(x, id);
    if (!record.ok()) co_return co_await x.fail(std::move(record.error()));
    store::Records& records = *x.core().records;
    if (x.http().method == "POST") {
        auto body = parse_body(x);
        auto items = body.ok() ? items_of(x, *body, hex_id(tools.prng), true)
                               : Result<Json::Array>(std::move(body.error()));
        if (!items.ok()) co_return co_await refuse(x, std::move(items.error()));
        std::vector<store::Change> changes;
        add_items(x, id, *items, changes);
        auto kept = co_await records.write(x.loop(), std::move(changes));
        if (!kept.ok() && kept.code() == Code::kConflict)
            kept.error() = {Code::kConflict, "An item has the id of one that is there.", "items"};
        if (!kept.ok()) co_return co_await x.fail(std::move(kept.error()));
        co_return co_await x.send_json(200, list_object(*items, false));
    }
    auto page = read_page(x.http().query, true);
    if (!page.ok()) co_return co_await x.fail(std::move(page.error()));
    store::ListQuery query{.kind = kItemKind,
                           .tenant = x.record.key,
                           .parent = id,
                           .after = page->after.empty() ? "" : id + "/" + page->after};
    query.limit = page->limit + 1;
    query.newest_first = page->newest_first;
    auto found = co_await records.list(x.loop(), query);
    if (!found.ok()) co_return co_await x.fail(std::move(found.error()));
    Json::Array data;
    for (const store::Record& r : *found) {
        if (auto item = parse_stored(r.body); item.ok() && data.size() < page->limit)
            data.push_back(*std::move(item));
    }
    co_await x.send_json(200, list_object(data, found->size() > page->limit));
}

io::Task<void> serve_conversation_item(Exchange& x, std::string id, std::string item) {
    auto conversation = co_await load(x, id);
    if (!conversation.ok()) co_return co_await x.fail(std::move(conversation.error()));
    store::Records& records = *x.core().records;
    const store::Key key = response_key(x, kItemKind, id + "/" + item);
    auto record = co_await records.get(x.loop(), key);
    if (!record.ok()) {
        if (record.code() == Code::kNotFound)
            record.error().message = fmt::format("Item with id '{}' not found.", item);
        co_return co_await x.fail(std::move(record.error()));
    }
    if (x.http().method != "DELETE") co_return co_await x.send_json(200, std::move(record->body));
    auto removed = co_await records.remove(x.loop(), key);
    if (!removed.ok()) co_return co_await x.fail(std::move(removed.error()));
    co_await x.send_json(200, std::move(conversation->body));
}

}  // namespace nereid::gateway
