#include "gateway/pending.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "gateway/stored_response.h"
#include "gateway/stored_stream.h"

namespace nereid::gateway {
namespace {

constexpr char kPendingKind[] = "pending";
constexpr char kRequestKind[] = "pending_request";
constexpr std::int64_t kMostTries = 3;
constexpr std::uint32_t kPage = 100;
constexpr Duration kEndOfJob = 1s;
constexpr std::array<std::string_view, 3> kKinds = {"response", "batch", "message_batch"};

std::int64_t alive_until(const io::Clock& clock, Duration lease) {
    return clock.wall_now().seconds() + std::chrono::ceil<std::chrono::seconds>(lease).count();
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
    core.jobs.add(name, job, true);
}

// What this process runs. `lost` = ended or taken over by another.
io::Task<void> renew_ours(Core& core, io::Loop& loop, Duration lease) {
    std::vector<std::pair<std::string, std::shared_ptr<Job>>> lost;
    for (auto& [name, job] : core.jobs.noted()) {
        auto record =
            co_await core.records->get(loop, {.kind = kPendingKind, .tenant = {}, .id = name});
        auto note = record.ok() ? read_note(*record) : std::nullopt;
        if (note && note->owner == core.process_id) {
            note->alive_until = alive_until(loop, lease);
            std::vector<store::Change> renewal;
            renewal.push_back(replacing(*std::move(record), *note));
            (void)co_await core.records->write(loop, std::move(renewal));  // a conflict: it ended
        } else if (note || record.code() == Code::kNotFound) {
            lost.emplace_back(name, job);
        }
    }
    if (lost.empty()) co_return;
    // One that has just come to its own end leaves the table after its note.
    co_await loop.sleep_for(kEndOfJob);
    for (const auto& [name, job] : lost) {
        if (core.jobs.find(name) == job) job->cancel();
    }
}

io::Task<void> take_up(Core& core, io::Loop& loop, std::shared_ptr<const Settings> settings,
                       ShardTools tools, store::Record record) {
    auto note = read_note(record);
    if (!note || note->owner == core.process_id) co_return;
    const std::int64_t now = loop.wall_now().seconds();
    if (core.records_shared && note->alive_until > now) co_return;
    const std::string former = std::exchange(note->owner, core.process_id);
    ++note->tries;
    note->alive_until = alive_until(loop, settings->options.job_lease);
    std::vector<store::Change> claim;
    claim.push_back(replacing(std::move(record), *note));
    // Lost to another process, or ended meanwhile.
    if (!(co_await core.records->write(loop, std::move(claim))).ok()) co_return;
    co_await forget_parts(core, loop, note->pending.tenant, note->pending.id, former);
    auto body = co_await core.records->get(
        loop, key_of(kRequestKind, note->pending.tenant, note->pending.id));
    note->pending.request = body.ok() ? std::move(body->body) : std::string();
    note->pending.give_up =
        !body.ok() || note->tries > kMostTries ||
        (settings->keys && key_named(*settings, note->pending.tenant) == nullptr);
    core.log.info("unfinished work of another process is taken up",
                  {{"id", note->pending.id}, {"given_up", note->pending.give_up}});
    start(core, settings, tools, note->pending);
}

}  // namespace

void note_pending(const Exchange& x, const Pending& pending, std::vector<store::Change>& changes) {
    Note note{.pending = pending,
              .owner = x.core().process_id,
              .alive_until = alive_until(x.clock(), x.options().job_lease)};
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

io::Task<std::optional<std::string>> pending_owner(Exchange& x, std::string id) {
    const auto there =
        co_await x.core().records->get(x.loop(), key_of(kPendingKind, x.record.key, id));
    auto note = there.ok() ? read_note(*there) : std::nullopt;
    if (!note) co_return std::nullopt;
    co_return std::move(note->owner);
}

io::Task<bool> is_pending(Exchange& x, std::string id) {
    co_return (co_await pending_owner(x, std::move(id))).has_value();
}

io::Task<bool> owns_pending(Exchange& x, std::string id) {
    co_return co_await pending_owner(x, std::move(id)) == x.core().process_id;
}

io::Task<void> resume_pending(Core& core, io::Loop& loop, std::shared_ptr<const Settings> settings,
                              ShardTools tools) {
    if (core.records_shared) co_await renew_ours(core, loop, settings->options.job_lease);
    store::ListQuery query{.kind = kPendingKind, .tenant = {}, .parent = {}, .after = {}};
    query.limit = kPage;
    for (;;) {
        auto page = co_await core.records->list(loop, query);
        if (!page.ok()) {
            core.log.warn("unfinished work could not be read", {{"error", page.error().message}});
            co_return;
        }
        if (page->size() == kPage) query.after_order = page->back().order;
        const bool last = page->size() < kPage;
        for (store::Record& record : *page)
            co_await take_up(core, loop, settings, tools, std::move(record));
        if (last) co_return;
    }
}

}  // namespace nereid::gateway
