#include "gateway/files.h"

#include <utility>

#include <fmt/format.h>

#include "gateway/json_list.h"
#include "gateway/multipart.h"
#include "gateway/stored_response.h"

namespace nereid::gateway {
namespace {

constexpr char kFileKind[] = "file";
constexpr char kBytesKind[] = "file_bytes";

Error no_such_file(const std::string& id) {
    return {Code::kNotFound, fmt::format("No such File object: {}", id.substr(0, 128)), "id"};
}

Result<NewFile> upload(Exchange& x, std::string id) {
    TRY(const auto parts, parse_multipart(x.http().headers.get("content-type"), x.http().body));
    const FormPart* file = nullptr;
    std::string purpose;
    for (const FormPart& part : parts) {
        if (part.name == "file") file = &part;
        if (part.name == "purpose") purpose = std::string(part.body);
    }
    if (file == nullptr) return err(Code::kInvalidArgument, "'file' is missing.", "file");
    if (purpose.empty()) return err(Code::kInvalidArgument, "'purpose' is missing.", "purpose");
    if (purpose.size() > 64)
        return err(Code::kInvalidArgument, "'purpose' is too long.", "purpose");
    return make_file(x, std::move(id), file->filename.empty() ? "file" : file->filename, purpose,
                     std::string(file->body));
}

io::Task<void> serve_list(Exchange& x) {
    auto page = read_page(x.http().query, true);
    if (!page.ok()) co_return co_await x.fail(std::move(page.error()));
    const auto purpose = query_value(x.http().query, "purpose");
    store::ListQuery query{
        .kind = kFileKind, .tenant = x.record.key, .parent = {}, .after = page->after};
    query.newest_first = page->newest_first;
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
                data.push_back(*std::move(object));
        }
    }
    const bool more = data.size() > page->limit;
    if (more) data.resize(page->limit);
    co_await x.send_json(200, list_object(data, more));
}

}  // namespace

NewFile make_file(const Exchange& x, std::string id, std::string filename, std::string purpose,
                  std::string bytes) {
    NewFile out;
    out.id = std::move(id);
    const std::int64_t until = expiry(x);
    JsonWriter w(out.object);
    w.begin_object().member("id", out.id).member("object", "file");
    w.member("bytes", static_cast<std::uint64_t>(bytes.size()));
    w.member("created_at", x.clock().wall_now().seconds()).key("expires_at");
    if (until == 0)
        w.null();
    else
        w.value(until);
    w.member("filename", filename).member("purpose", purpose);
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
    co_await x.send_json(200, std::move(file->object));
}

io::Task<void> serve_file(Exchange& x, std::string id) {
    auto record = co_await x.core().records->get(x.loop(), response_key(x, kFileKind, id));
    if (!record.ok()) {
        co_return co_await x.fail(record.code() == Code::kNotFound ? no_such_file(id)
                                                                   : record.error());
    }
    if (x.http().method != "DELETE") co_return co_await x.send_json(200, std::move(record->body));
    std::vector<store::Change> changes(2);
    changes[0] = {.op = store::Change::Op::kRemove,
                  .record = {.key = response_key(x, kFileKind, id)}};
    changes[1] = {.op = store::Change::Op::kRemove,
                  .record = {.key = response_key(x, kBytesKind, id)}};
    auto removed = co_await x.core().records->write(x.loop(), std::move(changes));
    if (!removed.ok()) co_return co_await x.fail(std::move(removed.error()));
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("id", id).member("object", "file").member("deleted", true).end_object();
    co_await x.send_json(200, std::move(out));
}

io::Task<void> serve_file_content(Exchange& x, std::string id) {
    auto bytes = co_await load_file(x, id);
    if (!bytes.ok()) co_return co_await x.fail(std::move(bytes.error()));
    co_await x.send(200, x.headers("application/octet-stream"), std::move(bytes->bytes));
}

}  // namespace nereid::gateway
