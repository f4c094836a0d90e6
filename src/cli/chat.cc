#include "cli/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "cli/answer.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "dialect/chat/mirror.h"
#include "engine/openai/base_url.h"
#include "io/http.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "io/root_task.h"

namespace nereid::cli {

namespace {

const std::vector<std::pair<std::string, std::string>> kAliases = {
    {"url", "chat.url"},
    {"model", "chat.model"},
    {"system", "chat.system"},
    {"max-tokens", "chat.max_tokens"},
    {"temperature", "chat.temperature"}};

constexpr std::string_view kUsage =
    "nereid chat: talk to a running service\n\n"
    "usage: nereid chat [OPTIONS]\n\n"
    "Type /help inside. The API key, if the server wants one, is read from the environment: "
    "NEREID_API_KEY.\n\n";

void no_op(int) {}

// SIGINT interrupts a read() while this lives.
class InterruptibleRead {
  public:
    InterruptibleRead() {
        struct sigaction action{};
        action.sa_handler = no_op;  // without SA_RESTART: read() returns EINTR
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, &former_);
    }
    ~InterruptibleRead() { sigaction(SIGINT, &former_, nullptr); }
    InterruptibleRead(const InterruptibleRead&) = delete;
    InterruptibleRead& operator=(const InterruptibleRead&) = delete;

  private:
    struct sigaction former_{};
};

class Input {
  public:
    enum class Got { kLine, kEnd, kInterrupt };
    Got line(std::string& out) {
        const InterruptibleRead guard;
        for (;;) {
            if (const auto end = buffer_.find('\n'); end != std::string::npos) {
                out = buffer_.substr(0, end);
                buffer_.erase(0, end + 1);
                return Got::kLine;
            }
            char piece[4096];
            const auto n = read(STDIN_FILENO, piece, sizeof piece);
            if (n < 0 && errno == EINTR) {
                buffer_.clear();
                return Got::kInterrupt;
            }
            if (n <= 0) {
                if (buffer_.empty()) return Got::kEnd;
                out = std::exchange(buffer_, {});
                return Got::kLine;
            }
            buffer_.append(piece, static_cast<std::size_t>(n));
        }
    }

  private:
    std::string buffer_;
};

// One question and its streamed answer.
struct Exchange {
    std::string text;  // what has been printed
    std::optional<Error> error;
    bool done = false;
    bool stopped = false;
};

void print(Exchange& x, std::string_view piece, bool& held) {
    const std::string shown = printable(piece, held);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
    x.text += piece;
}

io::Task<void> run(io::Loop& loop, io::HttpClient& client, io::HttpClientRequest request,
                   Duration timeout, Exchange& x) {
    bool held = false;
    auto result = co_await stream_answer(loop, client, std::move(request), timeout,
                                         [&](std::string_view piece) { print(x, piece, held); });
    if (!result.ok()) x.error = result.error();
    x.done = true;
}

class Chat {
  public:
    Chat(ChatOptions options, engine::openai::BaseUrl url, std::string api_key)
        : options_(std::move(options)),
          url_(std::move(url)),
          api_key_(std::move(api_key)),
          conversation_({.model = options_.model,
                         .system = options_.system,
                         .max_tokens = options_.max_tokens,
                         .temperature = options_.temperature}) {}

    int loop() {
        const bool terminal = isatty(STDIN_FILENO) != 0;
        if (terminal)
            fmt::print(stderr, "{} at {}; /help lists commands, Ctrl-D leaves\n", options_.model,
                       options_.url);
        int interrupts = 0;
        std::string line;
        for (;;) {
            if (terminal) fmt::print(stderr, "> ");
            switch (input_.line(line)) {
                case Input::Got::kEnd:
                    if (terminal) fmt::print(stderr, "\n");
                    return kOk;
                case Input::Got::kInterrupt:
                    if (++interrupts >= 2) {
                        fmt::print(stderr, "\n");
                        return kOk;
                    }
                    fmt::print(stderr, "\n(Ctrl-C once more leaves)\n");
                    continue;
                case Input::Got::kLine:
                    break;
            }
            interrupts = 0;
            const auto step = conversation_.line(line);
            if (step.kind == Conversation::Step::Kind::kQuit) return kOk;
            if (step.kind == Conversation::Step::Kind::kSay) fmt::print(stderr, "{}\n", step.text);
            if (step.kind != Conversation::Step::Kind::kAsk) continue;
            Exchange x = ask();
            if (x.stopped) interrupts = 1;
            if (x.error) {
                report(*x.error, !x.text.empty());
                if (!terminal) return kFailed;
            }
        }
    }

  private:
    Exchange ask() {
        Exchange x;
        auto outgoing = dialect::chat::write_request(conversation_.request(), options_.model);
        if (!outgoing.ok()) {
            x.error = outgoing.error();
        } else {
            exchange(*outgoing, x);
        }
        if (!x.text.empty() || x.stopped) std::fputs(x.stopped ? " [stopped]\n" : "\n", stdout);
        std::fflush(stdout);
        if (x.text.empty() && (x.error || x.stopped)) {
            conversation_.withdrawn();
        } else {
            conversation_.answered(x.text);
        }
        return x;
    }

    // Leaving it, at the end or by Ctrl-C, closes the connection, which stops the engine.
    void exchange(const dialect::chat::Outgoing& outgoing, Exchange& x) {
        io::HttpClientRequest request;
        request.path = url_.prefix + outgoing.path;
        request.body = outgoing.body;
        request.headers.add("content-type", "application/json");
        request.headers.add("accept", "text/event-stream");
        if (!api_key_.empty()) request.headers.add("authorization", "Bearer " + api_key_);

        io::RealLoop loop;
        io::RealNetwork network(loop);
        const io::SignalWatch watch(loop, {SIGINT}, [&x](int) { x.stopped = true; });
        io::HttpClientOptions client_options;
        client_options.endpoint = url_.endpoint;
        client_options.tls = url_.tls;
        client_options.host_header = url_.host_header;
        auto client = io::make_http_client(loop, network, client_options);
        io::RootTask task;  // ends before the client that it uses
        task.start(run(loop, *client, std::move(request), options_.timeout, x));
        while (!loop.run_until([&x] { return x.done || x.stopped; }, 3600s)) {
        }
    }

    void report(const Error& error, bool midway) const {
        std::string message = error.message;
        if (!midway && error.code == Code::kUnavailable) {
            message = fmt::format(
                "no service answers at {} ({}); `./dev up` starts one, --url names another",
                options_.url, error.message);
        }
        fmt::print(stderr, "nereid chat: {}\n", message);
    }

    ChatOptions options_;
    engine::openai::BaseUrl url_;
    std::string api_key_;
    Conversation conversation_;
    Input input_;
};

}  // namespace

void ChatOptions::bind(io::ConfigBinder& b) {
    b.knob("chat.url", url, {.doc = "Base URL of the service."});
    b.knob("chat.model", model, {.doc = "Model name; `nereid serve` answers to \"default\"."});
    b.knob("chat.system", system, {.doc = "System message."});
    b.knob("chat.max_tokens", max_tokens,
           {.unit = "tokens",
            .min = 0,
            .max = 1e7,
            .doc = "Longest answer; 0 leaves it to the server."});
    b.knob("chat.temperature", temperature,
           {.min = -1, .max = 2, .doc = "Sampling temperature; -1 leaves it to the server."});
    b.knob("chat.timeout", timeout, {.min = 1, .doc = "Longest silence within an answer."});
}

int chat(std::span<const std::string> args, const std::string& api_key) {
    ChatOptions options;
    const auto bind = [&options](io::ConfigBinder& b) { options.bind(b); };
    auto invocation = parse_invocation(args);
    if (!invocation.ok()) return report(invocation.error());
    if (invocation->help) {
        const std::string help = std::string(kUsage) + io::config_help(bind, kAliases);
        std::fputs(help.c_str(), stdout);
        return kOk;
    }
    const auto loaded =
        io::load_config(bind, {invocation->config_path, invocation->knobs, kAliases});
    if (!loaded.ok()) return report(loaded.error());
    auto url = engine::openai::parse_base_url(options.url);
    if (!url.ok()) return report(url.error());
    return Chat(std::move(options), std::move(*url), api_key).loop();
}

}  // namespace nereid::cli
