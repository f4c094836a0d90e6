#include "kv/server/server.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/descriptors.h"
#include "io/memory_region.h"
#include "io/waiter.h"

namespace nereid::kv {

using io::Task;

wire::Capability capability_of(std::string_view secret, const model::Namespace& ns) {
    std::string text("nereid-kv-cap\x01", 14);
    text.append(reinterpret_cast<const char*>(ns.digest.data()), ns.digest.size());
    return hmac_sha256(as_bytes(secret), as_bytes(text));
}

namespace {

constexpr Duration kGreeting = 5s;  // a connection says hello within

struct Client {
    Client(ClientId i, std::unique_ptr<io::Stream> s) : id(i), stream(std::move(s)) {}
    ClientId id;
    std::unique_ptr<io::Stream> stream;
    std::string name;
    pid_t pid = 0;
    bool greeted = false;
    std::map<std::uint32_t, io::MemoryRegion> regions;
    std::string unsent;
    bool writing = false;
    bool dropped = false;  // it did not read: nothing more is answered
};
using ClientPtr = std::shared_ptr<Client>;

}  // namespace

struct CacheServer::Impl : std::enable_shared_from_this<CacheServer::Impl> {
    Impl(io::RealLoop& l, CacheServerOptions o) : loop(l), options(std::move(o)) {}

    Task<Result<void>> start(io::Network& network, io::Disk& disk, NodeProbe* probe);
    static Task<void> accept(std::shared_ptr<Impl> self);
    static Task<void> serve(std::shared_ptr<Impl> self, ClientPtr c);
    Task<Result<void>> greet(ClientPtr c, const wire::Hello& hello);
    Task<bool> handle(ClientPtr c, wire::Message message);
    bool take_region(Client& c, const wire::Region& region);
    void call(const ClientPtr& c, wire::Call call);
    void send(const ClientPtr& c, const wire::Message& message);
    static Task<void> flush(std::shared_ptr<Impl> self, ClientPtr c);
    void reply(Reply r);
    Result<std::span<const std::uint8_t>> staging(ClientId client, std::uint32_t region,
                                                  std::uint64_t offset, std::uint64_t length) const;
    void gone(ClientPtr c);
    std::string stats_json() const;
    std::string list_json() const;
    static Task<void> scrub(std::shared_ptr<Impl> self, ClientPtr c, std::uint64_t tag);

    io::RealLoop& loop;
    CacheServerOptions options;
    io::MemoryRegion memory;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<Index> index;
    std::unique_ptr<Node> node;
    std::unique_ptr<ssd::SegmentStore> store;
    std::unique_ptr<NodeRunner> runner;
    std::unique_ptr<io::Listener> listener;
    std::map<ClientId, ClientPtr> clients;
    std::uint64_t next_client = 1;
    std::uint32_t serving = 0;
    bool stopping = false;
    std::uint64_t epoch = 0;
    CacheServerCounters counters;
    ClientCounts reported{};
    NodeProbe* probe = nullptr;
};

Task<Result<void>> CacheServer::Impl::start(io::Network& network, io::Disk& disk, NodeProbe* p) {
    probe = p;
    CO_TRY(auto region,
           io::MemoryRegion::shared("nereid-kv-arena", options.arena_bytes, options.huge_pages));
    memory = std::move(region);
    CO_TRY(auto made, Arena::create(memory.bytes(), {}));
    arena = std::move(made);
    CO_TRY_VOID(memory.seal_writes());
    epoch = static_cast<std::uint64_t>(loop.wall_now().since_epoch.count());
    CO_TRY(auto table, Index::create({.entries = options.index_entries,
                                      .seed = epoch,
                                      .huge_pages = options.huge_pages}));
    index = std::move(table);
    if (!options.ssd.folder.empty()) {
        CO_TRY(auto opened, co_await ssd::SegmentStore::open(loop, disk, options.ssd));
        store = std::move(opened);
    }
    options.node.ssd = store != nullptr;
    if (store) options.node.clears = store->clears();
    options.node.epoch = epoch;
    node = std::make_unique<Node>(options.node, *arena, *index);
    runner = std::make_unique<NodeRunner>(
        loop, *node, store.get(),
        NodeRunner::Hooks{.reply = [this](Reply r) { reply(std::move(r)); },
                          .staging = [this](ClientId c, std::uint32_t r, std::uint64_t o,
                                            std::uint64_t n) { return staging(c, r, o, n); }},
        probe);
    CO_TRY(auto listening,
           network.listen({.host = {}, .port = 0, .unix_path = options.socket_path}));
    listener = std::move(listening);
    runner->start();
    loop.spawn(accept(shared_from_this()));
    co_return Result<void>{};
}

Task<void> CacheServer::Impl::accept(std::shared_ptr<Impl> self) {
    for (;;) {
        auto stream = co_await self->listener->accept();
        if (!stream.ok()) co_return;
        ++self->counters.accepted;
        const auto who = io::peer_credentials(**stream);
        const bool known = who.ok() && (who->uid == geteuid() ||
                                        std::ranges::count(self->options.users, who->uid) > 0);
        const bool room = self->clients.size() < self->options.max_clients;
        if (!known || !room || !io::accept_descriptors(**stream).ok()) {
            ++(known ? self->counters.refused_full : self->counters.refused_users);
            const auto c = std::make_shared<Client>(ClientId{0}, std::move(*stream));
            self->send(c,
                       wire::Refuse{
                           .code = std::string(
                               code_info(known ? Code::kOverloaded : Code::kPermissionDenied).name),
                           .message = known ? "too many clients" : "not for this user"});
            continue;
        }
        const auto c = std::make_shared<Client>(ClientId{self->next_client++}, std::move(*stream));
        c->pid = who->pid;
        self->clients.emplace(c->id, c);
        ++self->serving;
        self->loop.spawn(serve(self, c));
    }
}

Task<void> CacheServer::Impl::serve(std::shared_ptr<Impl> self, ClientPtr c) {
    wire::Decoder decoder;
    std::vector<char> into(64 << 10);
    const TimePoint greeting = self->loop.now() + kGreeting;
    for (bool open = true; open;) {
        const auto n = co_await c->stream->read(into, c->greeted ? TimePoint::never() : greeting);
        if (!n.ok() || *n == 0) break;
        decoder.feed({into.data(), *n});
        for (;;) {
            auto message = decoder.next();
            if (!message.ok()) {
                ++self->counters.dropped_corrupt;
                open = false;
                break;
            }
            if (!message->has_value()) break;
            open = co_await self->handle(c, std::move(**message));
            if (!open) break;
        }
    }
    // A refusal is worth hearing; who does not read does not hold us up.
    for (int turns = 0; c->writing && turns < 100; ++turns) co_await self->loop.yield();
    self->gone(c);
    --self->serving;
}

void CacheServer::Impl::gone(ClientPtr c) {  // by value: it goes out of the map
    if (clients.erase(c->id) == 0) return;
    c->stream->close();
    runner->client_gone(c->id);
}

// False: the connection is to be closed.
Task<bool> CacheServer::Impl::handle(ClientPtr c, wire::Message message) {
    if (!c->greeted) {
        const auto* hello = std::get_if<wire::Hello>(&message);
        if (hello == nullptr) {
            ++counters.dropped_corrupt;
            co_return false;
        }
        co_return (co_await greet(c, *hello)).ok();
    }
    if (auto* asked = std::get_if<wire::Call>(&message)) {
        call(c, std::move(*asked));
    } else if (const auto* region = std::get_if<wire::Region>(&message)) {
        if (!take_region(*c, *region)) {
            ++counters.bad_regions;
            send(c, wire::Refuse{.code = std::string(code_info(Code::kInvalidArgument).name),
                                 .message = "not a staging region: a memfd sealed against "
                                            "shrinking, within the bounds"});
            co_return false;
        }
    } else if (const auto* report = std::get_if<wire::Report>(&message)) {
        ClientCounts counts{};
        for (std::size_t i = 0; i < std::min(report->counts.size(), kClientCounts); ++i)
            counts[i] = report->counts[i];
        for (std::size_t i = 0; i < kClientCounts; ++i) reported[i] += counts[i];
        if (probe != nullptr) probe->add(counts);
    } else if (const auto* stats = std::get_if<wire::StatsCall>(&message)) {
        if (stats->what == 2 && store)
            loop.spawn(scrub(shared_from_this(), c, stats->tag));
        else
            send(c, wire::Stats{.tag = stats->tag,
                                .json = stats->what == 1 ? list_json() : stats_json()});
    } else {
        ++counters.dropped_corrupt;  // a message that only a node sends
        co_return false;
    }
    co_return !c->dropped && clients.contains(c->id);
}

Task<Result<void>> CacheServer::Impl::greet(ClientPtr c, const wire::Hello& hello) {
    if (hello.version != wire::kVersion) {
        send(c, wire::Refuse{.code = std::string(code_info(Code::kUnsupported).name),
                             .message = fmt::format("this node speaks kv-wire {}, not {}",
                                                    wire::kVersion, hello.version)});
        co_return err(Code::kUnsupported, "version");
    }
    c->name = hello.client.substr(0, 128);
    c->greeted = true;
    std::string bytes;
    CHECK(wire::encode(wire::Welcome{.version = wire::kVersion,
                                     .epoch = epoch,
                                     .arena_bytes = memory.size(),
                                     .max_objects = options.node.max_objects},
                       bytes));
    co_return co_await io::write_with_descriptor(*c->stream, bytes, memory.fd(),
                                                 loop.now() + kGreeting);
}

bool CacheServer::Impl::take_region(Client& c, const wire::Region& region) {
    auto fds = io::take_descriptors(*c.stream);
    if (fds.size() != 1 || region.bytes == 0 || region.bytes > options.max_region_bytes ||
        c.regions.size() >= options.max_regions || c.regions.contains(region.region))
        return false;
    auto mapped = io::MemoryRegion::map(fds[0].release(), region.bytes, false);
    if (!mapped.ok()) return false;
    c.regions.emplace(region.region, std::move(*mapped));
    return true;
}

void CacheServer::Impl::call(const ClientPtr& c, wire::Call call) {
    if (const auto* open = std::get_if<OpenNamespace>(&call.command);
        open != nullptr && !options.secret.empty() &&
        !equal_constant_time(capability_of(options.secret, open->ns), call.capability)) {
        ++counters.refused_capabilities;
        send(c, wire::Answered{.tag = call.tag,
                               .answer = Error{Code::kPermissionDenied,
                                               "not the capability of this namespace"}});
        return;
    }
    runner->submit({.client = c->id, .tag = call.tag, .command = std::move(call.command)});
}

void CacheServer::Impl::reply(Reply r) {
    const auto it = clients.find(r.client);
    if (it == clients.end()) return;
    send(it->second, wire::Answered{.tag = r.tag, .answer = std::move(r.answer)});
}

void CacheServer::Impl::send(const ClientPtr& c, const wire::Message& message) {
    if (c->dropped) return;
    if (!wire::encode(message, c->unsent)) {
        const auto* answer = std::get_if<wire::Answered>(&message);
        CHECK(answer != nullptr);
        CHECK(wire::encode(wire::Answered{.tag = answer->tag,
                                          .answer = Error{Code::kTooLarge,
                                                          "the answer is too large: ask for less"}},
                           c->unsent));
    }
    if (c->unsent.size() > options.max_unsent_bytes) {
        ++counters.dropped_slow;
        c->dropped = true;
        c->unsent.clear();
        c->stream->close();  // its reading ends, and with it everything
        return;
    }
    if (!std::exchange(c->writing, true)) loop.spawn(flush(shared_from_this(), c));
}

// Everything that was answered in this turn leaves in one write.
Task<void> CacheServer::Impl::flush(std::shared_ptr<Impl> self, ClientPtr c) {
    co_await self->loop.yield();
    while (!c->unsent.empty()) {
        const std::string bytes = std::exchange(c->unsent, {});
        const std::array pieces{std::string_view(bytes)};
        if (!(co_await c->stream->write(pieces)).ok()) break;
    }
    c->writing = false;
}

Result<std::span<const std::uint8_t>> CacheServer::Impl::staging(ClientId client,
                                                                 std::uint32_t region,
                                                                 std::uint64_t offset,
                                                                 std::uint64_t length) const {
    const auto c = clients.find(client);
    if (c == clients.end()) return err(Code::kInvalidArgument, "the client has gone");
    const auto r = c->second->regions.find(region);
    if (r == c->second->regions.end()) return err(Code::kInvalidArgument, "no such region");
    const auto bytes = r->second.bytes();
    if (offset > bytes.size() || length > bytes.size() - offset)
        return err(Code::kInvalidArgument, "outside the region");
    return std::span<const std::uint8_t>(bytes.subspan(offset, length));
}

namespace {

template <class S>
struct Named {
    std::string_view name;
    std::uint64_t S::* field;
};
template <class S, std::size_t N>
void members(JsonWriter& w, const S& s, const std::array<Named<S>, N>& names) {
    for (const auto& n : names) w.member(n.name, static_cast<std::int64_t>(s.*n.field));
}
template <std::size_t N>
void members(JsonWriter& w, const std::array<std::uint64_t, N>& counts,
             const std::array<std::string_view, N>& names) {
    for (std::size_t i = 0; i < N; ++i) w.member(names[i], static_cast<std::int64_t>(counts[i]));
}

using N = NodeCounters;
constexpr auto kLookups = std::to_array<Named<N>>({
    {"count", &N::lookups},
    {"contiguous_hit_tokens", &N::contiguous_hit_tokens},
    {"sampled_contiguous_tokens", &N::sampled_contiguous_tokens},
    {"sampled_raw_tokens", &N::sampled_raw_tokens},
    {"usable_hit_tokens", &N::usable_hit_tokens},
    {"requested_tokens", &N::requested_tokens},
    {"overpromised_tokens", &N::overpromised_tokens},
});
constexpr auto kObjects = std::to_array<Named<N>>({
    {"gets", &N::gets},
    {"dram_hits", &N::dram_hits},
    {"ssd_hits", &N::ssd_hits},
    {"misses", &N::misses},
    {"joined_reads", &N::joined_reads},
    {"reserved", &N::reserved},
    {"committed", &N::committed},
    {"exists", &N::exists},
    {"attached", &N::attached},
    {"no_space", &N::no_space},
    {"held_back", &N::held_back},
    {"append_lost", &N::append_lost},
    {"crc_failures", &N::crc_failures},
    {"put_crc_failures", &N::put_crc_failures},
    {"refused", &N::refused},
});
constexpr std::array<std::string_view, kEvictCauses> kCauses{"capacity", "quota",   "expired",
                                                             "cleared",  "corrupt", "steal"};
using H = NodeHeld;
constexpr auto kHeld = std::to_array<Named<H>>({
    {"blocks", &H::blocks},
    {"leases", &H::leases},
    {"pinned_slots", &H::pinned_slots},
    {"reservations", &H::reservations},
    {"writing_slots", &H::writing_slots},
    {"reads", &H::reads},
    {"appends", &H::appends},
    {"append_queue", &H::append_queue},
    {"waiting_gets", &H::waiting_gets},
    {"followers", &H::followers},
    {"pollers", &H::pollers},
});
constexpr auto kDram = std::to_array<Named<H>>({
    {"used_bytes", &H::dram_used_bytes},
    {"capacity_bytes", &H::dram_capacity_bytes},
});
using D = SsdStats;
constexpr auto kSsd = std::to_array<Named<D>>({
    {"capacity_bytes", &D::capacity_bytes},
    {"used_bytes", &D::used_bytes},
    {"records", &D::records},
    {"payload_bytes", &D::payload_bytes},
    {"written_bytes", &D::written_bytes},
    {"forwarded_bytes", &D::forwarded_bytes},
    {"read_bytes", &D::read_bytes},
    {"corrupt", &D::corrupt},
    {"io_errors", &D::io_errors},
    {"torn", &D::torn},
    {"budget_overruns", &D::budget_overruns},
});
using T = Index::Stats;
constexpr auto kTable = std::to_array<Named<T>>({
    {"entries", &T::entries},
    {"capacity", &T::capacity},
    {"bytes", &T::bytes},
});
constexpr std::array<std::string_view, kClientCounts> kReported{
    "saved",          "save_dropped", "save_failed",   "fetched",
    "fetch_timeouts", "fetch_failed", "fetch_skipped", "node_given_up"};

double write_amplification(const SsdStats& s) {
    return s.payload_bytes == 0
               ? 0.0
               : static_cast<double>(s.written_bytes) / static_cast<double>(s.payload_bytes);
}

}  // namespace

std::string CacheServer::Impl::stats_json() const {
    std::string out;
    JsonWriter w(out);
    const auto object = [&w](std::string_view name, const auto& of, const auto& names) {
        w.key(name).begin_object();
        members(w, of, names);
        w.end_object();
    };
    const NodeCounters& n = node->counters();
    const NodeHeld held = node->held();
    w.begin_object().member("epoch", static_cast<std::int64_t>(epoch));
    w.member("loaded", runner->loaded());
    w.member("scanned", static_cast<std::int64_t>(runner->scanned()));
    object("lookups", n, kLookups);
    object("objects", n, kObjects);
    object("evictions", n.evictions, kCauses);
    object("held", held, kHeld);
    object("dram", held, kDram);
    if (store) {
        const SsdStats s = store->stats();
        w.key("ssd").begin_object();
        members(w, s, kSsd);
        w.member("write_amplification", write_amplification(s)).end_object();
    }
    object("index", index->stats(), kTable);
    w.key("hit_curve").begin_array();
    for (const auto& point : node->hit_curve()) {
        w.begin_object().member("blocks", static_cast<std::int64_t>(point.blocks));
        w.member("hit_ratio", point.hit_ratio).end_object();
    }
    w.end_array();
    object("reported_by_clients", reported, kReported);
    w.key("clients").begin_array();
    for (const auto& [id, c] : clients) {
        w.begin_object().member("name", c->name);
        w.member("pid", static_cast<std::int64_t>(c->pid)).end_object();
    }
    w.end_array().end_object();
    return out;
}

std::string CacheServer::Impl::list_json() const {
    constexpr std::size_t kMost = 10'000;  // 250 bytes each: below the bound of a message
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("objects").begin_array();
    std::size_t n = 0;
    node->list([&](const Node::Listed& o) {
        if (++n > kMost) return;
        w.begin_object().member("ns", static_cast<std::int64_t>(o.ns));
        w.member("key", to_hex(o.key.bytes));
        w.member("kind", o.kind == ObjectKind::kHistory ? "history" : "state");
        w.member("block", static_cast<std::int64_t>(o.block));
        w.member("bytes", static_cast<std::int64_t>(o.place.length));
        w.member("pins", static_cast<std::int64_t>(o.pins));
        w.member("on_ssd", o.ssd.tier == Tier::kSsd);
        w.end_object();
    });
    w.end_array().member("total", static_cast<std::int64_t>(n)).end_object();
    return out;
}

Task<void> CacheServer::Impl::scrub(std::shared_ptr<Impl> self, ClientPtr c, std::uint64_t tag) {
    const ssd::ScrubReport r = co_await self->store->scrub_next();
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("records", static_cast<std::int64_t>(r.records));
    w.member("corrupt", static_cast<std::int64_t>(r.corrupt)).member("wrapped", r.wrapped);
    w.end_object();
    self->send(c, wire::Stats{.tag = tag, .json = std::move(out)});
}

CacheServer::CacheServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
CacheServer::~CacheServer() {
    impl_->stopping = true;
    if (impl_->listener) impl_->listener->close();
    for (const auto& [id, c] : impl_->clients) c->stream->close();
}

Task<Result<std::unique_ptr<CacheServer>>> CacheServer::start(io::RealLoop& loop,
                                                              io::Network& network, io::Disk& disk,
                                                              CacheServerOptions options,
                                                              NodeProbe* probe) {
    const auto impl = std::make_shared<Impl>(loop, std::move(options));
    CO_TRY_VOID(co_await impl->start(network, disk, probe));
    co_return std::unique_ptr<CacheServer>(new CacheServer(impl));
}

Task<void> CacheServer::stop() {
    const auto impl = impl_;
    impl->stopping = true;
    impl->listener->close();
    while (!impl->clients.empty()) impl->gone(impl->clients.begin()->second);
    while (impl->serving > 0) co_await impl->loop.yield();
    co_await impl->runner->stop();
    if (impl->store) co_await impl->store->close();
}

std::string CacheServer::stats_json() const { return impl_->stats_json(); }
const CacheServerCounters& CacheServer::counters() const { return impl_->counters; }
const NodeRunner& CacheServer::runner() const { return *impl_->runner; }
std::size_t CacheServer::clients() const { return impl_->clients.size(); }
ssd::SegmentStore* CacheServer::store() { return impl_->store.get(); }

}  // namespace nereid::kv
