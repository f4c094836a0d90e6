#include "gateway/routing/kv_feed.h"

#include <algorithm>
#include <utility>

namespace nereid::gateway {
namespace {

constexpr Duration kFirstPause = 100ms;
constexpr Duration kLongestPause = 5s;
constexpr Duration kConnect = 5s;
constexpr Duration kReplayStep = 5s;  // between two messages of a replay

using io::zmtp::Connection;
using io::zmtp::Message;
using io::zmtp::SocketType;

}  // namespace

KvFeedProbe::KvFeedProbe(ops::Registry& r)
    : connected_(r.gauge("nereid_router_kv_events_connected",
                         "Connections to a server's KV events that stand, of all shards.",
                         {"backend"})),
      blocks_(r.counter("nereid_router_kv_event_blocks_total",
                        "Blocks that KV events named, of all shards.", {"backend", "kind"})),
      events_(r.counter("nereid_router_kv_events_total",
                        "What happened to KV events, of all shards.", {"backend", "kind"})) {}

KvFeedProbe::Server KvFeedProbe::server(std::string_view name) {
    return {.connected = &connected_.with({name}),
            .stored = &blocks_.with({name, "stored"}),
            .removed = &blocks_.with({name, "removed"}),
            .skipped = &events_.with({name, "skipped"}),
            .gaps = &events_.with({name, "gap"}),
            .replayed = &events_.with({name, "replayed"}),
            .resets = &events_.with({name, "reset"}),
            .corrupt = &events_.with({name, "corrupt"})};
}

KvFeed::KvFeed(io::Loop& loop, io::Network& network, Options options, Sink sink,
               KvFeedProbe::Server probe)
    : loop_(loop),
      network_(network),
      options_(std::move(options)),
      sink_(std::move(sink)),
      probe_(probe),
      chain_(options_.block_tokens) {
    task_.start(run());
}

KvFeed::~KvFeed() = default;

io::Task<void> KvFeed::run() {
    for (;;) {
        (void)co_await listen();  // whatever the end: again
        pause_ = pause_ == Duration(0) ? kFirstPause : std::min(pause_ * 2, kLongestPause);
        co_await loop_.sleep_for(pause_);
    }
}

io::Task<Result<void>> KvFeed::listen() {
    auto connected = co_await Connection::connect(network_, options_.events, SocketType::kSub,
                                                  loop_.now() + kConnect);
    if (!connected.ok()) co_return connected.error();
    Connection& events = **connected;
    const auto subscribed = co_await events.subscribe({});
    if (!subscribed.ok()) co_return subscribed.error();
    struct Standing {
        ops::Gauge& gauge;
        explicit Standing(ops::Gauge& g) : gauge(g) { gauge.add(1); }
        Standing(const Standing&) = delete;
        Standing& operator=(const Standing&) = delete;
        ~Standing() { gauge.add(-1); }
    } standing(*probe_.connected);
    for (;;) {
        const auto message = co_await events.receive();
        if (!message.ok()) co_return message.error();
        pause_ = Duration(0);
        auto taken = take(*message, Source::kLive);
        if (taken.ok() && !*taken) {
            probe_.gaps->add();
            co_await replay();
            taken = take(*message, Source::kLive);
        }
        // One bad message says nothing of the next one.
        if (!taken.ok()) probe_.corrupt->add();
    }
}

// Until nothing is missing, or what is missing is not to be had.
io::Task<void> KvFeed::replay() {
    do {
        if (options_.replay) (void)co_await ask_replay();
    } while (sequence_.replay_ended());
}

io::Task<Result<void>> KvFeed::ask_replay() {
    auto connected = co_await Connection::connect(network_, *options_.replay, SocketType::kDealer,
                                                  loop_.now() + kConnect);
    if (!connected.ok()) co_return connected.error();
    Message request;
    request.emplace_back();
    request.push_back(router::encode_replay_request(sequence_.missing_from()));
    const auto sent = co_await (*connected)->send(std::move(request));
    if (!sent.ok()) co_return sent.error();
    for (;;) {
        auto message = co_await (*connected)->receive(loop_.now() + kReplayStep);
        if (!message.ok()) co_return message.error();
        // ["", number, payload]; the end has number ff·8.
        if (message->size() < 3) continue;
        const auto number = router::decode_sequence((*message)[message->size() - 2]);
        if (number.ok() && *number == router::kReplayEnd) co_return Result<void>{};
        probe_.replayed->add();
        if (!take(*message, Source::kReplay).ok()) probe_.corrupt->add();
    }
}

Result<bool> KvFeed::take(const Message& message, Source source) {
    if (message.size() < 3) return err(Code::kCorrupt, "an event has three frames");
    TRY(const std::uint64_t number, router::decode_sequence(message[message.size() - 2]));
    const auto decision = sequence_.observe(number, source);
    if (decision.clear_first) clear();
    if (decision.verdict == router::EventSequence::Verdict::kGap) return false;
    if (decision.verdict == router::EventSequence::Verdict::kRepeat) return true;
    TRY(const auto batch, router::decode_kv_events(message.back()));
    apply(batch);
    return true;
}

void KvFeed::apply(const router::KvEventBatch& batch) {
    probe_.skipped->add(batch.skipped);
    for (const router::KvEvent& event : batch.events) {
        if (const auto* stored = std::get_if<router::BlockStored>(&event)) {
            const auto ours = chain_.stored(*stored);
            if (ours.blocks.empty()) probe_.skipped->add();
            probe_.stored->add(ours.blocks.size());
            if (!ours.blocks.empty()) sink_.stored(ours.parent, ours.blocks);
        } else if (const auto* removed = std::get_if<router::BlockRemoved>(&event)) {
            const auto ours = chain_.removed(*removed);
            probe_.removed->add(ours.size());
            if (!ours.empty()) sink_.removed(ours);
        } else {
            chain_.clear();
            sink_.cleared();
        }
    }
}

void KvFeed::clear() {
    probe_.resets->add();
    chain_.clear();
    sink_.cleared();
}

}  // namespace nereid::gateway
