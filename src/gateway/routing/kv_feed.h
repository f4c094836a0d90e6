// KvFeed: what one engine publishes of its KV cache (vLLM, SGLang: a ZeroMQ PUB socket, a ROUTER
// for replays), turned into our own chain and given to a sink.
//
// Connects, subscribes, and connects again for as long as it lives (100 ms doubling to 5 s). A gap
// in the numbers is filled by a replay, during which live messages wait in the socket; what replay
// cannot fill, and an engine that began again, clears what was known (router::EventSequence, R20).
//
// One per endpoint and shard: each shard's view is its own, so each hears the events itself. An
// engine with several data-parallel ranks has an endpoint per rank; all of them are one server
// here, because an OpenAI-compatible server chooses the rank itself.
//
// Events are confidential (they carry token ids): use a private network; ZeroMQ's NULL mechanism
// neither encrypts nor authenticates.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "io/loop.h"
#include "io/root_task.h"
#include "io/stream.h"
#include "io/zmtp.h"
#include "ops/metrics.h"
#include "router/events/chain.h"
#include "router/events/kv_events.h"

namespace nereid::gateway {

// The metrics of all feeds of one process.
class KvFeedProbe {
  public:
    explicit KvFeedProbe(ops::Registry& registry);
    struct Server {
        ops::Gauge* connected = nullptr;
        ops::Counter* stored = nullptr;   // blocks
        ops::Counter* removed = nullptr;  // blocks
        ops::Counter* skipped =
            nullptr;  // events of other groups, unknown parents, other block sizes
        ops::Counter* gaps = nullptr;
        ops::Counter* replayed = nullptr;  // messages
        ops::Counter* resets = nullptr;
        ops::Counter* corrupt = nullptr;
    };
    Server server(std::string_view name);

  private:
    ops::Family<ops::Gauge>& connected_;
    ops::Family<ops::Counter>& blocks_;
    ops::Family<ops::Counter>& events_;
};

class KvFeed {
  public:
    struct Sink {
        std::function<void(router::BlockHash parent, std::span<const router::BlockHash> blocks)>
            stored;
        std::function<void(std::span<const router::BlockHash> blocks)> removed;
        std::function<void()> cleared;
    };
    struct Options {
        io::Endpoint events;
        std::optional<io::Endpoint> replay;
        TokenCount block_tokens = 16;
    };
    // Runs until it is destroyed, on `loop`.
    KvFeed(io::Loop& loop, io::Network& network, Options options, Sink sink,
           KvFeedProbe::Server probe);
    ~KvFeed();
    KvFeed(const KvFeed&) = delete;
    KvFeed& operator=(const KvFeed&) = delete;

  private:
    using Source = router::EventSequence::Source;
    io::Task<void> run();
    io::Task<Result<void>> listen();
    io::Task<void> replay();
    io::Task<Result<void>> ask_replay();
    // False: kGap, the message is to be seen again after a replay. kCorrupt.
    Result<bool> take(const io::zmtp::Message& message, Source source);
    void apply(const router::KvEventBatch& batch);
    void clear();

    io::Loop& loop_;
    io::Network& network_;
    Options options_;
    Sink sink_;
    KvFeedProbe::Server probe_;
    router::EventSequence sequence_;
    router::ChainTranslator chain_;
    Duration pause_{0};
    io::RootTask task_;
};

}  // namespace nereid::gateway
