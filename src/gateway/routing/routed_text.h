// RoutedText: one model served by several OpenAI-compatible servers. A pools::TextBackend per shard
// over one TextBackend per server, chosen by the router; a request that fails before its first
// event is tried once on another server, within the retry budget.
//
// The tokens of a text engine are not known here: a prompt counts as a quarter of its bytes, and
// its prefix is named in pieces of 512 bytes (router::TextChain), assumed to be in the cache of the
// server it went to for `router.affinity`. Unless servers publish KV events (KvSources): then
// prompts are rendered and tokenised here as the servers do, and events say who holds what.
//
// Servers may be added, drained and removed at run time: set_urls. A removed server finishes what
// it has.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gateway/gateway.h"
#include "gateway/routing/fleet.h"
#include "gateway/routing/kv_feed.h"
#include "text/tokenizer.h"

namespace nereid::gateway {

// Servers that tell what they hold, and the text side of their model (events name token ids).
struct KvSources {
    struct One {
        std::string server;  // its url
        io::Endpoint events;
        std::optional<io::Endpoint> replay;
    };
    std::vector<One> all;
    text::TextModel text;
    TokenCount block_tokens = 16;
};

class RoutedText {
  public:
    // Makes the client of one server on a shard's loop.
    using MakeServer = std::function<std::unique_ptr<pools::TextBackend>(const ShardContext&,
                                                                         const std::string& url)>;
    RoutedText(RoutingOptions options, std::string model, std::vector<std::string> urls,
               MakeServer make, RoutingProbe& probe, KvSources sources = {},
               KvFeedProbe* feed_probe = nullptr);
    ~RoutedText();

    // A shard's backend. Before the gateway starts, on the thread that makes it.
    std::unique_ptr<pools::TextBackend> backend_for(const ShardContext& shard);
    // From now on these servers, in no order: missing ones drain and go. Any time after the shards
    // are made; on the thread that made them.
    void set_urls(const std::vector<std::string>& urls);

  private:
    class Shard;
    struct Peers;
    RoutingOptions options_;
    std::string model_;
    std::vector<std::string> urls_;
    MakeServer make_;
    RoutingProbe& probe_;
    KvSources sources_;
    KvFeedProbe* feed_probe_;
    std::shared_ptr<Peers> peers_;
};

// What a text request comes to for the router.
struct TextShape {
    TokenCount prompt_tokens = 0;
    std::vector<router::BlockHash> blocks;
    TokenCount expected_output = 0;
};
TextShape text_shape(const model::Request& request);
// The same in the tokens and blocks of the servers' own engine. What cannot be rendered here (the
// server will refuse it, or knows better) is text.
TextShape token_shape(const model::Request& request, const KvSources& sources);

}  // namespace nereid::gateway
