#include "gateway/routing/routed_text.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "router/events/chain.h"

namespace nereid::gateway {
namespace {

using router::Outcome;
using Events = std::vector<model::Event>;

constexpr std::size_t kBytesPerToken = 4;
constexpr std::size_t kBlockBytes = 512;
constexpr TokenCount kBlockTokens = kBlockBytes / kBytesPerToken;
constexpr TokenCount kExpectedOutput = 256;

std::uint32_t tokens_in(const Events& events) {
    std::uint32_t tokens = 0;
    for (const model::Event& e : events) {
        if (const auto* text = std::get_if<model::TextDelta>(&e)) {
            tokens += std::max(1u, text->tokens);
        } else if (const auto* reasoning = std::get_if<model::ReasoningDelta>(&e)) {
            tokens += std::max(1u, reasoning->tokens);
        } else if (std::holds_alternative<model::ToolCallDelta>(e)) {
            ++tokens;
        }
    }
    return tokens;
}

// How the request went, by its last event; nullopt while it goes on.
std::optional<Outcome> outcome_of(const Events& events) {
    if (events.empty()) return std::nullopt;
    if (std::holds_alternative<model::Done>(events.back())) return Outcome::kSuccess;
    const auto* failed = std::get_if<model::Failed>(&events.back());
    if (failed == nullptr) return std::nullopt;
    return router::classify_error(failed->error.code);
}

}  // namespace

TextShape text_shape(const model::Request& request) {
    TextShape shape;
    router::TextChain chain(kBlockBytes);
    chain.add(request.cache_salt);
    for (const model::Tool& tool : request.tools) {
        chain.add(tool.name);
        chain.add(tool.description);
    }
    for (const model::Message& m : request.messages) {
        const char role = static_cast<char>('0' + static_cast<int>(m.role));
        chain.add({&role, 1});
        for (const model::Part& p : m.parts) {
            if (const auto* text = std::get_if<model::TextPart>(&p)) chain.add(text->text);
        }
        chain.add(m.reasoning);
        for (const model::ToolCall& call : m.tool_calls) chain.add(call.arguments);
    }
    std::size_t other = 0;
    for (const auto& prompt : request.prompts) {
        if (const auto* text = std::get_if<std::string>(&prompt)) {
            if (request.prompts.size() == 1)
                chain.add(*text);
            else
                other += text->size();
        } else {
            other += std::get<std::vector<TokenId>>(prompt).size() * kBytesPerToken;
        }
    }
    shape.prompt_tokens = static_cast<TokenCount>(
        (chain.bytes() - request.cache_salt.size() + other) / kBytesPerToken + 1);
    shape.blocks = chain.blocks();
    shape.expected_output =
        std::min(request.max_output_tokens.value_or(kExpectedOutput), kExpectedOutput);
    return shape;
}

TextShape token_shape(const model::Request& request, const KvSources& sources) {
    std::vector<TokenId> tokens;
    const text::Tokenizer& tokenizer = *sources.text.tokenizer;
    if (request.prompts.size() == 1) {
        if (const auto* ids = std::get_if<std::vector<TokenId>>(&request.prompts[0])) {
            tokens = *ids;
        } else {
            if (tokenizer.adds_bos()) tokens.push_back(tokenizer.bos());
            tokenizer.encode(std::get<std::string>(request.prompts[0]), text::Special::kPlain,
                             tokens);
        }
    } else if (request.prompts.empty() && sources.text.chat_template != nullptr) {
        auto rendered = sources.text.chat_template->render(request);
        if (rendered.ok()) tokens = std::move(rendered->tokens);
    }
    TextShape shape = text_shape(request);
    shape.blocks.clear();
    if (tokens.empty()) return shape;
    shape.prompt_tokens = static_cast<TokenCount>(tokens.size());
    shape.blocks = router::chain_of(tokens, sources.block_tokens, {}, request.cache_salt);
    return shape;
}

// The loops of all shards and what lives there; filled before the gateway starts, then only read.
struct RoutedText::Peers {
    struct Entry {
        io::Loop* loop = nullptr;
        std::weak_ptr<Shard*> shard;  // empty once its backend is gone; asked on its loop only
    };
    std::vector<Entry> all;
};

class RoutedText::Shard final : public pools::TextBackend {
  public:
    Shard(const RoutedText& owner, const ShardContext& context, std::size_t number)
        : context_(context),
          make_(owner.make_),
          sources_(owner.sources_),
          feed_probe_(owner.feed_probe_),
          peers_(owner.peers_),
          number_(number),
          self_(std::make_shared<Shard*>(this)),
          fleet_({.routing = owner.options_,
                  .model = owner.model_,
                  .shard = number,
                  .block_tokens =
                      owner.sources_.all.empty() ? kBlockTokens : owner.sources_.block_tokens,
                  .events = !owner.sources_.all.empty(),
                  .seed = number + 1,
                  .probe = &owner.probe_}) {
        set_urls(owner.urls_);
    }
    std::weak_ptr<Shard*> weak() const { return self_; }

    void set_urls(const std::vector<std::string>& urls) {
        const TimePoint now = context_.loop->now();
        for (std::size_t i = 0; i < servers_.size(); ++i) {
            const bool wanted = std::find(urls.begin(), urls.end(), servers_[i].url) != urls.end();
            if (wanted || !fleet_.live(i)) continue;
            fleet_.drain(i, now);
            close_if_done(i);
        }
        for (const std::string& url : urls) {
            bool known = false;
            for (std::size_t i = 0; i < servers_.size(); ++i) {
                known = known || (servers_[i].url == url && fleet_.live(i));
            }
            if (known) continue;
            servers_.push_back({url, make_(context_, url), {}});
            feed(fleet_.add(url, now), url);
        }
    }

    io::Task<void> run(const model::Request& request, OnEvents on_events,
                       std::string* served_by) override {
        const TextShape shape =
            sources_.all.empty() ? text_shape(request) : token_shape(request, sources_);
        std::vector<router::WorkerId> excluded;
        std::optional<Error> failure;
        fleet_.request();
        for (;;) {
            auto chosen = fleet_.choose({.prompt_tokens = shape.prompt_tokens,
                                         .blocks = shape.blocks,
                                         .expected_output = shape.expected_output,
                                         .excluded = excluded},
                                        now());
            broadcast();
            if (!chosen.ok()) {
                co_await fail(on_events, failure ? std::move(*failure) : std::move(chosen.error()));
                co_return;
            }
            Attempt attempt(*this, *std::move(chosen), excluded.empty());
            co_await servers_[attempt.backend()].client->run(
                request,
                [&attempt, &on_events](Events& events) {
                    return attempt.on_events(events, on_events);
                },
                served_by);
            if (!attempt.retry) co_return;
            failure = std::move(attempt.retry);
            excluded.push_back({attempt.backend()});
        }
    }

    io::Task<Result<TokenCount>> count(const model::Request& request) override {
        router::RouteRequest small;
        small.prompt_tokens = 1;
        auto chosen = fleet_.choose(small, now());
        if (!chosen.ok()) co_return std::move(chosen.error());
        const Attempt attempt(*this, *std::move(chosen), false);
        co_return co_await servers_[attempt.backend()].client->count(request);
    }

  private:
    struct Server {
        std::string url;
        std::unique_ptr<pools::TextBackend> client;  // null once removed
        std::vector<std::unique_ptr<KvFeed>> feeds;
    };

    // Hears the server's KV events, where it publishes some. Shards are made on another thread.
    void feed(std::size_t index, const std::string& url) {
        if (sources_.all.empty()) return;
        context_.loop->post([weak = weak(), index, url] {
            const auto self = weak.lock();
            if (self && (*self)->servers_[index].client != nullptr) (*self)->listen(index, url);
        });
    }
    void listen(std::size_t index, const std::string& url) {
        for (const KvSources::One& one : sources_.all) {
            if (one.server != url) continue;
            KvFeed::Sink sink{.stored =
                                  [this, index](router::BlockHash parent,
                                                std::span<const router::BlockHash> blocks) {
                                      fleet_.stored(index, parent, blocks, now());
                                  },
                              .removed =
                                  [this, index](std::span<const router::BlockHash> blocks) {
                                      fleet_.evicted(index, blocks, now());
                                  },
                              .cleared = [this, index] { fleet_.cleared(index, now()); }};
            servers_[index].feeds.push_back(
                std::make_unique<KvFeed>(*context_.loop, *context_.network,
                                         KvFeed::Options{.events = one.events,
                                                         .replay = one.replay,
                                                         .block_tokens = sources_.block_tokens},
                                         std::move(sink), feed_probe_->server(url)));
        }
    }

    // One try at one server: its booking, and whether it failed so that another may be asked.
    class Attempt {
      public:
        Attempt(Shard& shard, Fleet::Try t, bool first)
            : shard_(shard), try_(std::move(t)), first_(first) {}
        Attempt(const Attempt&) = delete;
        Attempt& operator=(const Attempt&) = delete;
        ~Attempt() {
            const std::size_t index = try_.backend();
            try_.end(Outcome::kClient, shard_.now());
            shard_.close_if_done(index);
        }
        std::size_t backend() const { return try_.backend(); }

        io::Task<bool> on_events(Events& events, OnEvents& to) {
            const auto outcome = outcome_of(events);
            try_.output(tokens_in(events), shard_.now());
            if (outcome) try_.end(*outcome, shard_.now());
            if (sent_) return to(events);
            // An answer's head alone is not yet an answer: whoever dies after it is replaced too.
            const auto rest = std::find_if(events.begin(), events.end(), [](const model::Event& e) {
                return !std::holds_alternative<model::Start>(e);
            });
            if (rest == events.end()) {
                if (head_.empty()) head_ = std::move(events);
                return answer(true);
            }
            sent_ = true;
            auto* failed = std::get_if<model::Failed>(&*rest);
            if (failed != nullptr && first_ && shard_.fleet_.may_retry(failed->error)) {
                retry = std::move(failed->error);
                return answer(false);
            }
            events.insert(events.begin(), std::make_move_iterator(head_.begin()),
                          std::make_move_iterator(head_.end()));
            return to(events);
        }
        std::optional<Error> retry;

      private:
        static io::Task<bool> answer(bool go_on) { co_return go_on; }
        Shard& shard_;
        Fleet::Try try_;
        bool first_;
        bool sent_ = false;
        Events head_;  // held back until something follows
    };

    TimePoint now() const { return context_.loop->now(); }

    static io::Task<void> fail(OnEvents& on_events, Error error) {
        Events events;
        events.emplace_back(model::Failed{std::move(error)});
        co_await on_events(events);
    }

    // A drained server goes with its last request.
    void close_if_done(std::size_t index) {
        if (fleet_.live(index) || fleet_.in_flight(index) != 0 || closing_) return;
        // Not from inside its own run().
        closing_ = true;
        context_.loop->post([weak = weak()] {
            if (const auto self = weak.lock()) (*self)->close_drained();
        });
    }
    void close_drained() {
        closing_ = false;
        for (std::size_t i = 0; i < servers_.size(); ++i) {
            if (fleet_.live(i) || fleet_.in_flight(i) != 0 || servers_[i].client == nullptr)
                continue;
            servers_[i].client.reset();
            servers_[i].feeds.clear();
            fleet_.remove(i, now());
        }
    }

    void broadcast() {
        if (peers_->all.size() < 2) return;
        const auto digest = fleet_.digest(now());
        if (!digest) return;
        for (std::size_t i = 0; i < peers_->all.size(); ++i) {
            if (i == number_) continue;
            peers_->all[i].loop->post([weak = peers_->all[i].shard, digest = *digest] {
                if (const auto other = weak.lock()) {
                    (*other)->fleet_.fold(digest, (*other)->now());
                }
            });
        }
    }

    ShardContext context_;
    MakeServer make_;
    const KvSources& sources_;  // the owner outlives its shards
    KvFeedProbe* feed_probe_;
    std::shared_ptr<Peers> peers_;
    std::size_t number_;
    std::shared_ptr<Shard*> self_;
    Fleet fleet_;
    std::deque<Server> servers_;  // by the fleet's index
    bool closing_ = false;
};

RoutedText::RoutedText(RoutingOptions options, std::string model, std::vector<std::string> urls,
                       MakeServer make, RoutingProbe& probe, KvSources sources,
                       KvFeedProbe* feed_probe)
    : options_(std::move(options)),
      model_(std::move(model)),
      urls_(std::move(urls)),
      make_(std::move(make)),
      probe_(probe),
      sources_(std::move(sources)),
      feed_probe_(feed_probe),
      peers_(std::make_shared<Peers>()) {
    CHECK(sources_.all.empty() || (feed_probe_ != nullptr && sources_.text.tokenizer != nullptr));
}

RoutedText::~RoutedText() = default;

std::unique_ptr<pools::TextBackend> RoutedText::backend_for(const ShardContext& context) {
    auto shard = std::make_unique<Shard>(*this, context, peers_->all.size());
    peers_->all.push_back({context.loop, shard->weak()});
    return shard;
}

void RoutedText::set_urls(const std::vector<std::string>& urls) {
    urls_ = urls;
    for (const Peers::Entry& entry : peers_->all) {
        entry.loop->post([weak = entry.shard, urls] {
            if (const auto shard = weak.lock()) (*shard)->set_urls(urls);
        });
    }
}

}  // namespace nereid::gateway
