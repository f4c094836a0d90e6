#include "engine/openai/text_backend.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "dialect/chat/mirror.h"
#include "engine/openai/base_url.h"

namespace nereid::engine::openai {
namespace {

using dialect::chat::StreamReader;
using Events = std::vector<model::Event>;

constexpr std::size_t kMaxErrorBytes = 1 << 20;
constexpr std::size_t kMaxAnswerBytes = 256u << 20;  // not streamed: embeddings of a large batch
constexpr Duration kAvoid = 1s;  // a server that refused a connection is not asked for so long
constexpr Duration kFirstPiece = 50ms;  // Start waits so long for company: one write instead of two
constexpr Duration kTail =
    1s;  // for the end of the body after [DONE], so that the connection lives on

struct Server {
    std::string url;
    std::string prefix;
    std::unique_ptr<io::HttpClient> client;
    std::uint32_t outstanding = 0;
    TimePoint avoid_until{};
};

class Outstanding {
  public:
    explicit Outstanding(Server& s) : server_(s) { ++server_.outstanding; }
    ~Outstanding() { --server_.outstanding; }
    Outstanding(const Outstanding&) = delete;
    Outstanding& operator=(const Outstanding&) = delete;

  private:
    Server& server_;
};

// What our caller hears of a failure between us and the server; addresses stay inside.
Error for_caller(const Error& e) {
    if (e.code == Code::kDeadlineExceeded)
        return {Code::kDeadlineExceeded, "The model's server did not answer in time."};
    if (e.code == Code::kTooLarge)
        return {Code::kUnavailable, "The model's server gave an answer that is too large."};
    return {Code::kUnavailable, "The model's server cannot be reached. Please retry."};
}

// Nothing was sent: no connection came about.
bool not_connected(const Error& e) { return e.code == Code::kUnavailable; }

bool is_sse(const io::HttpClientResponse& r) {
    return r.headers().get("content-type").starts_with("text/event-stream");
}

class Backend final : public TextBackend {
  public:
    Backend(io::Loop& loop, io::Network& network, TextBackendOptions options,
            std::vector<BaseUrl> urls)
        : loop_(loop), options_(std::move(options)) {
        for (std::size_t i = 0; i < urls.size(); ++i) {
            Server s;
            s.url = options_.base_urls[i];
            s.prefix = urls[i].prefix;
            s.client = io::make_http_client(loop, network,
                                            {.endpoint = urls[i].endpoint,
                                             .tls = urls[i].tls,
                                             .host_header = urls[i].host_header,
                                             .connect_timeout = options_.connect_timeout});
            servers_.push_back(std::move(s));
        }
    }

    io::Task<void> run(const model::Request& request, OnEvents on_events,
                       std::string* served_by) override {
        auto outgoing = dialect::chat::write_request(
            request, options_.model.empty() ? request.model : options_.model);
        if (!outgoing.ok()) {
            co_await fail(on_events, outgoing.error());
            co_return;
        }
        io::HttpClientRequest http;
        http.headers.add("content-type", "application/json");
        if (!options_.api_key.empty())
            http.headers.add("authorization", "Bearer " + options_.api_key);
        http.body = std::move(outgoing->body);

        Server* tried = nullptr;
        for (;;) {
            Server& server = pick(tried);
            if (served_by != nullptr) *served_by = server.url;
            http.path = server.prefix + outgoing->path;
            const Outstanding hold(server);
            auto response = co_await server.client->request(http, deadline());
            if (response.ok()) {
                co_await read_answer(**response, request.stream, on_events);
                co_return;
            }
            if (not_connected(response.error())) server.avoid_until = loop_.now() + kAvoid;
            if (tried != nullptr || servers_.size() == 1 || !not_connected(response.error())) {
                co_await fail(on_events, for_caller(response.error()));
                co_return;
            }
            tried = &server;
        }
    }

    io::Task<Result<TokenCount>> count(const model::Request& request) override {
        auto outgoing = dialect::chat::write_request(
            request, options_.model.empty() ? request.model : options_.model);
        if (!outgoing.ok()) co_return outgoing.error();
        CO_TRY(Json body, Json::parse(outgoing->body));
        body.set("stream", false).set("add_generation_prompt", true);
        Server& server = pick(nullptr);
        const Outstanding hold(server);
        CO_TRY(const Json counted, co_await ask(server, "/tokenize", body));
        const Json* count = counted.find("count");
        if (count != nullptr && count->as_int())
            co_return static_cast<TokenCount>(*count->as_int());
        // llama-server's /tokenize knows text only, and says nothing of what it did not understand.
        CO_TRY(const Json rendered, co_await ask(server, "/apply-template", body));
        const Json* prompt = rendered.find("prompt");
        if (prompt == nullptr || !prompt->is_string()) co_return no_count("says no prompt");
        const Json text(
            Json::Object{{"content", *prompt}, {"add_special", true}, {"parse_special", true}});
        CO_TRY(const Json tokens, co_await ask(server, "/tokenize", text));
        const Json* list = tokens.find("tokens");
        if (list == nullptr || !list->is_array()) co_return no_count("gives no tokens");
        co_return static_cast<TokenCount>(list->size());
    }

  private:
    static Error no_count(std::string_view why) {
        return {Code::kUnsupported,
                fmt::format("Tokens cannot be counted for this model: its server {}.", why),
                "model"};
    }

    // One small JSON question beside the generating paths.
    io::Task<Result<Json>> ask(Server& server, std::string path, Json body) {
        io::HttpClientRequest http;
        http.path = server.prefix + path;
        http.headers.add("content-type", "application/json");
        if (!options_.api_key.empty())
            http.headers.add("authorization", "Bearer " + options_.api_key);
        http.body = body.dump();
        auto response = co_await server.client->request(http, deadline());
        if (!response.ok()) co_return for_caller(response.error());
        const int status = (*response)->status();
        auto answer = co_await (*response)->read_all(kMaxAnswerBytes, deadline());
        if (status >= 500) co_return for_caller({Code::kUnavailable, {}});
        if (status != 200) {
            co_return no_count(fmt::format("answers {} to {} for a chat", status, path));
        }
        if (!answer.ok()) co_return for_caller(answer.error());
        auto json = Json::parse(*answer);
        if (!json.ok() || !json->is_object()) co_return no_count("does not answer in JSON");
        co_return *std::move(json);
    }

    TimePoint deadline() const { return loop_.now() + options_.event_timeout; }

    // Least outstanding, ties in turn; servers to avoid only when there is no other.
    Server& pick(const Server* not_this) {
        const TimePoint now = loop_.now();
        Server* best = nullptr;
        bool best_avoided = false;
        for (std::size_t i = 0; i < servers_.size(); ++i) {
            Server& s = servers_[(next_ + i) % servers_.size()];
            if (&s == not_this) continue;
            const bool avoided = s.avoid_until > now;
            const bool better = best == nullptr || (best_avoided && !avoided) ||
                                (best_avoided == avoided && s.outstanding < best->outstanding);
            if (!better) continue;
            best = &s;
            best_avoided = avoided;
        }
        next_ = (next_ + 1) % servers_.size();
        CHECK(best != nullptr);
        return *best;
    }

    static io::Task<void> fail(OnEvents& on_events, Error error) {
        Events events;
        events.emplace_back(model::Failed{std::move(error)});
        co_await on_events(events);
    }

    io::Task<void> read_answer(io::HttpClientResponse& response, bool stream, OnEvents& on_events) {
        if (response.status() != 200) return refused(response, on_events);
        if (stream && is_sse(response)) return read_stream(response, on_events);
        return read_whole(response, on_events);
    }

    io::Task<void> refused(io::HttpClientResponse& response, OnEvents& on_events) {
        const auto body = co_await response.read_all(kMaxErrorBytes, deadline());
        co_await fail(on_events, dialect::chat::read_error(
                                     response.status(),
                                     body.ok() ? std::string_view(*body) : std::string_view{}));
    }

    io::Task<void> read_whole(io::HttpClientResponse& response, OnEvents& on_events) {
        std::string body;
        for (;;) {
            auto piece = co_await response.read_some(deadline());
            if (!piece.ok()) {
                co_await fail(on_events, for_caller(piece.error()));
                co_return;
            }
            if (piece->empty()) break;
            if (body.size() + piece->size() > kMaxAnswerBytes) {
                co_await fail(on_events, for_caller({Code::kTooLarge, {}}));
                co_return;
            }
            if (body.empty())
                body = std::move(*piece);
            else
                body += *piece;
        }
        Events events = dialect::chat::read_response(body);
        co_await on_events(events);
    }

    io::Task<void> read_stream(io::HttpClientResponse& response, OnEvents& on_events) {
        StreamReader reader;
        Events events;
        events.emplace_back(model::Start{});
        bool first = true;
        while (!reader.ended()) {
            auto piece =
                co_await response.read_some(first ? loop_.now() + kFirstPiece : deadline());
            if (std::exchange(first, false) && !piece.ok() &&
                piece.error().code == Code::kDeadlineExceeded) {
                if (!co_await on_events(events)) co_return;
                events.clear();
                continue;
            }
            if (piece.ok() && !piece->empty()) {
                reader.feed(*piece, events);
            } else if (!piece.ok() && piece.error().code == Code::kDeadlineExceeded) {
                events.emplace_back(model::Failed{for_caller(piece.error())});
                co_await on_events(events);
                co_return;
            } else {
                reader.finish(events);
            }
            if (events.empty()) continue;
            if (!co_await on_events(events)) co_return;
            events.clear();
        }
        // The end of the body is usually in the buffer already; without it the connection could not
        // be used again.
        const TimePoint until = loop_.now() + kTail;
        for (;;) {
            const auto rest = co_await response.read_some(until);
            if (!rest.ok() || rest->empty()) co_return;
        }
    }

    io::Loop& loop_;
    TextBackendOptions options_;
    std::vector<Server> servers_;
    std::size_t next_ = 0;
};

}  // namespace

io::Task<Result<TokenCount>> TextBackend::count(const model::Request&) {
    co_return err(Code::kUnsupported, "This model's tokenizer is at its own server, not here.",
                  "model");
}

Result<std::unique_ptr<TextBackend>> make_text_backend(io::Loop& loop, io::Network& network,
                                                       TextBackendOptions options) {
    if (options.base_urls.empty())
        return err(Code::kConfig,
                   "a text backend needs a base url. Mend: name one, like http://127.0.0.1:8000.");
    std::vector<BaseUrl> urls;
    for (const std::string& text : options.base_urls) {
        TRY(BaseUrl url, parse_base_url(text));
        urls.push_back(std::move(url));
    }
    return std::unique_ptr<TextBackend>(
        std::make_unique<Backend>(loop, network, std::move(options), std::move(urls)));
}

}  // namespace nereid::engine::openai
