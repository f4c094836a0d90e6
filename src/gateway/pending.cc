#include "gateway/pending.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "gateway/stored_response.h"

namespace nereid::gateway {
namespace {

constexpr char kPendingKind[] = "pending";
constexpr char kRequestKind[] = "pending_request";
constexpr std::int64_t kMostTries = 3;
constexpr std::array<std::string_view, 3> kKinds = {"response", "batch", "message_batch"};

std::int64_t lease_seconds(const GatewayOptions& options) {
    return std::chrono::ceil<std::chrono::seconds>(options.job_lease).count();
}

store::Key key_of(std::string_view kind, std::string_view tenant, std::string_view id) {
    return {
        .kind = std::string(kind), .tenant = {}, .id = std::string(tenant) + "/" + std::string(id)};
}

// A note as it is stored.
struct Note {
    Pending pending;
    std::string owner;
    std::int64_t alive_until = 0;
    std::int64_t tries = 1;

    std::string body() const {
        Json out;
        out.set("kind", kKinds[static_cast<std::size_t>(pending.kind)]).set("id", pending.id);
        out.set("tenant", pending.tenant).set("owner", owner);
        out.set("alive_until", alive_until).set("tries", tries);
        return out.dump();
    }
};

std::optional<Note> read_note(const store::Record& record) {
    const auto body = Json::parse(record.body);
    if (!body.ok()) return std::nullopt;
    Note note;
    const auto text = [&](const char* name) {
        const Json* v = body->find(name);
        return v != nullptr && v->is_string() ? v->as_string() : std::string();
    };
    const auto number = [&](const char* name) {
        const Json* v = body->find(name);
        return v == nullptr ? 0 : v->as_int().value_or(0);
    };
    const auto kind = std::ranges::find(kKinds, text("kind"));
    if (kind == kKinds.end()) return std::nullopt;
    note.pending.kind = static_cast<PendingKind>(kind - kKinds.begin());
    note.pending.id = text("id");
    note.pending.tenant = text("tenant");
    note.owner = text("owner");
    note.alive_until = number("alive_until");
    note.tries = number("tries");
    return note;
}

store::Change replacing(store::Record record, const Note& note) {
    record.body = note.body();
    return {.op = store::Change::Op::kReplace, .record = std::move(record)};
}

const ApiKey* key_named(const Settings& settings, std::string_view name) {
    if (!settings.keys) return nullptr;
    for (const ApiKey& key : settings.keys->keys()) {
        if (key.name == name) return &key;
    }
    return nullptr;
}

void start(Core& core, std::shared_ptr<const Settings> settings, ShardTools tools,
           const Pending& pending) {
    const std::string name = pending.tenant + "/" + pending.id;
    const auto recording = std::make_shared<std::shared_ptr<Recording>>();
    const ApiKey* key = key_named(*settings, pending.tenant);
    Route route = Route::kResponses;
    if (pending.kind == PendingKind::kBatch) route = Route::kBatch;
    if (pending.kind == PendingKind::kMessageBatch) route = Route::kMessageBatch;
    auto job = tools.jobs.start(
        std::move(settings), key, route, {}, make_id("req", tools.prng),
        [tools, pending, recording](Exchange& x) {
            x.record.key = pending.tenant;
            switch (pending.kind) {
                case PendingKind::kBatch:
                    return resume_batch(x, tools, pending);
                case PendingKind::kMessageBatch:
                    return resume_message_batch(x, tools, pending);
                case PendingKind::kResponse:
                    break;
            }
            return resume_response(x, tools, pending, recording);
        },
        [&core, name] { core.jobs.remove(name); });
    *recording = job->recording();
    core.jobs.add(name, job);
}

}  // namespace

void note_pending(const Exchange& x, const Pending& pending, std::vector<store::Change>& changes) {
    Note note{.pending = pending,
              .owner = x.core().process_id,
              .alive_until = x.clock().wall_now().seconds() + lease_seconds(x.options())};
    note.pending.tenant = x.record.key;
    store::Record said{.key = key_of(kPendingKind, x.record.key, pending.id), .body = note.body()};
    store::Record request{.key = key_of(kRequestKind, x.record.key, pending.id),
                          .body = pending.request};
    said.expires = request.expires = expiry(x);
    changes.push_back({.op = store::Change::Op::kPut, .record = std::move(said)});
    changes.push_back({.op = store::Change::Op::kPut, .record = std::move(request)});
}

void forget_pending(const Exchange& x, std::string_view id, std::vector<store::Change>& changes) {
    for (const char* kind : {kPendingKind, kRequestKind}) {
        changes.push_back(
            {.op = store::Change::Op::kRemove, .record = {.key = key_of(kind, x.record.key, id)}});
    }
}

io::Task<bool> is_pending(Exchange& x, std::string id) {
    const auto there =
        co_await x.core().records->get(x.loop(), key_of(kPendingKind, x.record.key, id));
    co_return there.ok();
}

io::Task<bool> owns_pending(Exchange& x, std::string id) {
    const auto there =
        co_await x.core().records->get(x.loop(), key_of(kPendingKind, x.record.key, id));
    const auto note = there.ok() ? read_note(*there) : std::nullopt;
    co_return note && note->owner == x.core().process_id;
}

io::Task<void> resume_pending(Core& core, io::Loop& loop, std::shared_ptr<const Settings> settings,
                              ShardTools tools, std::vector<std::string>& ours) {
    store::ListQuery query{.kind = kPendingKind, .tenant = {}, .parent = {}, .after = {}};
    auto found = co_await core.records->list(loop, query);
    if (!found.ok()) {
        core.log.warn("unfinished work could not be read", {{"error", found.error().message}});
        co_return;
    }
    const std::vector<std::string> before = std::exchange(ours, {});
    // A page a look: what is taken up leaves the front of the list when it ends.
    for (store::Record& record : *found) {
        auto note = read_note(record);
        if (!note) continue;
        const std::int64_t now = loop.wall_now().seconds();
        const bool mine = note->owner == core.process_id;
        if (!mine && core.records_shared && note->alive_until > now) continue;
        if (mine && !core.records_shared) continue;
        if (!mine) ++note->tries;
        ours.push_back(note->pending.tenant + "/" + note->pending.id);
        note->owner = core.process_id;
        note->alive_until = now + lease_seconds(settings->options);
        const store::Key request = key_of(kRequestKind, note->pending.tenant, note->pending.id);
        std::vector<store::Change> claim;
        claim.push_back(replacing(std::move(record), *note));
        // Lost to another process, or ended meanwhile.
        if (!(co_await core.records->write(loop, std::move(claim))).ok() || mine) continue;
        auto body = co_await core.records->get(loop, request);
        note->pending.request = body.ok() ? std::move(body->body) : std::string();
        note->pending.give_up =
            !body.ok() || note->tries > kMostTries ||
            (settings->keys && key_named(*settings, note->pending.tenant) == nullptr);
        core.log.info("unfinished work of another process is taken up",
                      {{"id", note->pending.id}, {"given_up", note->pending.give_up}});
        start(core, settings, tools, note->pending);
    }
    for (const std::string& name : before) {
        const auto job =
            std::ranges::find(ours, name) == ours.end() ? core.jobs.find(name) : nullptr;
        if (job == nullptr) continue;
        const store::Key key{.kind = kPendingKind, .tenant = {}, .id = name};
        // Still there: on another page, or another's now, and then the end is not ours to write.
        const auto there = co_await core.records->get(loop, key);
        if (!there.ok() && there.code() == Code::kNotFound) job->cancel();
    }
}

}  // namespace nereid::gateway
