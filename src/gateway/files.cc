#include "gateway/files.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "dialect/rfc3339.h"
#include "gateway/json_list.h"
#include "gateway/multipart.h"
#include "gateway/stored_response.h"

namespace nereid::gateway {
namespace {

constexpr char kFileKind[] = "file";
constexpr char kBytesKind[] = "file_bytes";
constexpr std::size_t kMaxMediaType = 128;
constexpr std::size_t kMostNamed = 100;

Error no_such_file(const std::string& id) {
    return {Code::kNotFound, fmt::format("No such File object: {}", id.substr(0, 128)), "id"};
}

Result<std::int64_t> lifetime(const FormPart& part) {
    std::int64_t seconds = 0;
    const char* end = part.body.data() + part.body.size();
    const auto [at, error] = std::from_chars(part.body.data(), end, seconds);
    if (error != std::errc{} || at != end || seconds < 3600 || seconds > 7776000) {
        return err(Code::kInvalidArgument,
                   fmt::format("'{}' must be a number from 3600 to 7776000.", part.name),
                   part.name);
    }
    return seconds;
}

Result<NewFile> upload(Exchange& x, std::string id) {
    TRY(const auto parts, parse_multipart(x.http().headers.get("content-type"), x.http().body));
    const FormPart* file = nullptr;
    FileHead head;
    for (const FormPart& part : parts) {
        if (part.name == "file") file = &part;
        if (part.name == "purpose") head.purpose = std::string(part.body);
        if (part.name == "expires_in_seconds" || part.name == "expires_after[seconds]") {
            TRY(head.expires_in, lifetime(part));
        }
    }
    if (file == nullptr) return err(Code::kInvalidArgument, "'file' is missing.", "file");
    if (head.purpose.empty() && x.speaks_messages()) head.purpose = "user_data";
    if (head.purpose.empty())
        return err(Code::kInvalidArgument, "'purpose' is missing.", "purpose");
    if (head.purpose.size() > 64)
        return err(Code::kInvalidArgument, "'purpose' is too long.", "purpose");
    head.filename = file->filename.empty() ? "file" : file->filename;
    if (file->media_type.size() <= kMaxMediaType) head.media_type = file->media_type;
    return make_file(x, std::move(id), head, std::string(file->body));
}

// As callers see it. Anthropic's times are written out, where OpenAI's are seconds.
Json shown(const Exchange& x, Json file) {
    file.set("type", "file").set("downloadable", true);
    if (const Json* bytes = file.find("bytes")) file.set("size_bytes", Json(*bytes));
    if (file.find("mime_type") == nullptr) file.set("mime_type", "application/octet-stream");
    if (!x.speaks_messages()) return file;
    for (const char* name : {"created_at", "expires_at"}) {
        const Json* at = file.find(name);
        const auto seconds = at != nullptr && at->is_number() ? at->as_int() : std::nullopt;
        if (seconds) file.set(name, dialect::rfc3339(*seconds));
    }
    return file;
}

io::Task<void> send_shown(Exchange& x, std::string_view kept) {
    auto file = Json::parse(kept);
    if (!file.ok()) return x.fail({Code::kCorrupt, "The kept file cannot be read."});
    return x.send_json(200, shown(x, *std::move(file)).dump());
}

// Those of `ids` that are there, in their order (Anthropic's `ids`).
io::Task<void> serve_named(Exchange& x, std::vector<std::string> ids) {
    Json::Array data;
    for (const std::string& id : ids) {
        auto record = co_await x.core().records->get(x.loop(), response_key(x, kFileKind, id));
        if (!record.ok() && record.code() != Code::kNotFound)
            co_return co_await x.fail(std::move(record.error()));
        auto object = record.ok() ? Json::parse(record->body) : Result<Json>(Json());
        if (object.ok() && object->is_object()) data.push_back(shown(x, *std::move(object)));
    }
    co_await x.send_json(200, list_object(data, false, true));
}

io::Task<void> serve_list(Exchange& x) {
    if (auto ids = query_values(x.http().query, "ids[]"); !ids.empty()) {
        if (ids.size() > kMostNamed) {
            co_return co_await x.fail(
                {Code::kInvalidArgument, fmt::format("`ids` may hold {} ids.", kMostNamed), "ids"});
        }
        co_return co_await serve_named(x, std::move(ids));
    }
    auto page = read_page(x.http().query, true);
    if (!page.ok()) co_return co_await x.fail(std::move(page.error()));
    const auto purpose = query_value(x.http().query, "purpose");
    const bool back = !page->before.empty();
    store::ListQuery query{.kind = kFileKind,
                           .tenant = x.record.key,
                           .parent = {},
                           .after = back ? page->before : page->after};
    query.newest_first = page->newest_first != back;
    Json::Array data;
    for (bool last = false; !last && data.size() <= page->limit;) {
        auto found = co_await x.core().records->list(x.loop(), query);
        if (!found.ok()) co_return co_await x.fail(std::move(found.error()));
        last = found->size() < query.limit;
        query.after.clear();
        if (!last) query.after_order = found->back().order;
        for (const store::Record& r : *found) {
            auto object = Json::parse(r.body);
            if (object.ok() && (!purpose || *object->find("purpose") == Json(*purpose)))
                data.push_back(shown(x, *std::move(object)));
        }
    }
    const bool more = data.size() > page->limit;
    if (more) data.resize(page->limit);
    if (back) std::ranges::reverse(data);
    co_await x.send_json(200, list_object(data, more, true));
}

}  // namespace

NewFile make_file(const Exchange& x, std::string id, const FileHead& head, std::string bytes) {
    NewFile out;
    out.id = std::move(id);
    const std::int64_t now = x.clock().wall_now().seconds();
    std::int64_t until = expiry(x);
    if (head.expires_in != 0)
        until = until == 0 ? now + head.expires_in : std::min(until, now + head.expires_in);
    JsonWriter w(out.object);
    w.begin_object().member("id", out.id).member("object", "file");
    w.member("bytes", static_cast<std::uint64_t>(bytes.size()));
    w.member("created_at", now).key("expires_at");
    if (until == 0)
        w.null();
    else
        w.value(until);
    w.member("filename", head.filename).member("purpose", head.purpose);
    if (!head.media_type.empty()) w.member("mime_type", head.media_type);
    w.member("status", "processed").end_object();
    out.changes.resize(2);
    out.changes[0].record = {
        .key = response_key(x, kFileKind, out.id), .body = out.object, .expires = until};
    out.changes[1].record = {
        .key = response_key(x, kBytesKind, out.id), .body = std::move(bytes), .expires = until};
    return out;
}

io::Task<Result<StoredFile>> load_file(Exchange& x, std::string id) {
    auto& records = *x.core().records;
    auto bytes = co_await records.get(x.loop(), response_key(x, kBytesKind, id));
    auto object = bytes.ok() ? co_await records.get(x.loop(), response_key(x, kFileKind, id))
                             : Result<store::Record>(std::move(bytes.error()));
    if (!object.ok())
        co_return object.code() == Code::kNotFound ? no_such_file(id) : std::move(object.error());
    StoredFile out{.name = {}, .bytes = std::move(bytes->body)};
    const auto json = Json::parse(object->body);
    const Json* name = json.ok() ? json->find("filename") : nullptr;
    if (name != nullptr && name->is_string()) out.name = name->as_string();
    co_return out;
}

io::Task<void> serve_files(Exchange& x, ShardTools tools) {
    if (x.http().method != "POST") co_return co_await serve_list(x);
    auto file = upload(x, make_id("file", tools.prng));
    if (!file.ok()) co_return co_await refuse(x, std::move(file.error()));
    auto kept = co_await x.core().records->write(x.loop(), std::move(file->changes));
    if (!kept.ok()) co_return co_await x.fail(std::move(kept.error()));
    co_await send_shown(x, file->object);
}

io::Task<void> serve_file(Exchange& x, std::string id) {
    auto record = co_await x.core().records->get(x.loop(), response_key(x, kFileKind, id));
    if (!record.ok()) {
        co_return co_await x.fail(record.code() == Code::kNotFound ? no_such_file(id)
                                                                   : record.error());
    }
    if (x.http().method != "DELETE") co_return co_await send_shown(x, record->body);
    std::vector<store::Change> changes(2);
    changes[0] = {.op = store::Change::Op::kRemove,
                  .record = {.key = response_key(x, kFileKind, id)}};
    changes[1] = {.op = store::Change::Op::kRemove,
                  .record = {.key = response_key(x, kBytesKind, id)}};
    auto removed = co_await x.core().records->write(x.loop(), std::move(changes));
    if (!removed.ok()) co_return co_await x.fail(std::move(removed.error()));
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("id", id).member("object", "file").member("deleted", true);
    w.member("type", "file_deleted").end_object();
    co_await x.send_json(200, std::move(out));
}

io::Task<void> serve_file_content(Exchange& x, std::string id) {
    auto bytes = co_await load_file(x, id);
    if (!bytes.ok()) co_return co_await x.fail(std::move(bytes.error()));
    co_await x.send(200, x.headers("application/octet-stream"), std::move(bytes->bytes));
}

}  // namespace nereid::gateway
