// For the gateway's tests: engines under the test's control, clients on an in-memory network,
// virtual time.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/json.h"
#include "gateway/auth.h"
#include "gateway/gateway.h"
#include "io/http_testing.h"
#include "io/root_task.h"

namespace nereid::gateway {

// One token per byte; 256 = BOS, 257 = end, 258 = "<|im_end|>".
class ByteTokenizer final : public text::Tokenizer {
  public:
    static constexpr TokenId kBos = 256, kEnd = 257, kImEnd = 258;
    ByteTokenizer() {
        for (int i = 0; i < 256; ++i) bytes_.push_back(static_cast<char>(i));
    }
    void encode(std::string_view text, text::Special special,
                std::vector<TokenId>& out) const override {
        constexpr std::string_view kMark = "<|im_end|>";
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (special == text::Special::kParse && text.substr(i).starts_with(kMark)) {
                out.push_back(kImEnd);
                i += kMark.size() - 1;
            } else {
                out.push_back(static_cast<unsigned char>(text[i]));
            }
        }
    }
    std::string_view piece(TokenId id, text::Special special) const override {
        if (id >= 0 && id < 256)
            return std::string_view(bytes_).substr(static_cast<std::size_t>(id), 1);
        if (special == text::Special::kPlain) return {};
        return id == kImEnd ? "<|im_end|>" : id == kEnd ? "<end>" : id == kBos ? "<bos>" : "";
    }
    std::uint32_t vocab_size() const override { return 259; }
    bool is_end(TokenId id) const override { return id == kEnd; }
    TokenId bos() const override { return kBos; }
    bool adds_bos() const override { return true; }
    std::string_view name() const override { return "bytes"; }

  private:
    std::string bytes_;
};

// Joins the text of the messages; a token for the end of each.
class PlainTemplate final : public text::ChatTemplate {
  public:
    PlainTemplate(std::shared_ptr<const text::Tokenizer> t, bool tools)
        : tokenizer_(std::move(t)), tools_(tools) {}
    Result<text::RenderedPrompt> render(const model::Request& r) const override {
        text::RenderedPrompt out;
        for (const model::Message& m : r.messages) {
            for (const model::Part& p : m.parts) {
                if (const auto* t = std::get_if<model::TextPart>(&p))
                    tokenizer_->encode(t->text, text::Special::kPlain, out.tokens);
            }
            out.tokens.push_back(ByteTokenizer::kImEnd);
        }
        for (const model::Tool& tool : r.tools)
            tokenizer_->encode(tool.name, text::Special::kPlain, out.tokens);
        return out;
    }
    const std::string& source() const override { return source_; }
    bool supports_tools() const override { return tools_; }

  private:
    std::shared_ptr<const text::Tokenizer> tokenizer_;
    std::string source_;
    bool tools_;
};

inline model::EngineInfo able_engine() {
    model::EngineInfo i;
    i.engine = "fake";
    i.model_id = "m";
    i.vocab_size = 259;
    i.context_tokens = 100;
    i.layout.block_tokens = 64;
    i.logprobs = i.penalties = i.logit_bias = i.seeds = i.embeddings = true;
    i.max_top_logprobs = 5;
    i.embedding_width = 2;
    return i;
}

// A worker whose every update the test sends.
class FakeWorker {
  public:
    struct Job {
        model::AddRequest request;
        pools::UpdateFn on_update;
        bool open = true;    // the gateway holds its Session
        bool ended = false;  // finished or failed
    };
    pools::WorkerStatus status;
    std::deque<Job> jobs;
    int aborts = 0;
    std::optional<Error> refuse;  // every submit at once

    FakeWorker() {
        status.state = pools::WorkerState::kReady;
        status.info = able_engine();
    }
    std::unique_ptr<pools::WorkerHandle> handle() { return std::make_unique<Handle>(*this); }

    void update(std::size_t job, pools::Update u) {
        Job& j = jobs.at(job);
        ASSERT_FALSE(j.ended);
        if (u.finished || u.error) j.ended = true;
        if (j.open) j.on_update(std::move(u));
    }
    void start(std::size_t job, TokenCount cached = 0) {
        pools::Update u;
        u.started = model::Started{{}, cached};
        update(job, std::move(u));
    }
    void say(std::size_t job, std::string_view text) {
        pools::Update u;
        for (const char c : text)
            u.tokens.push_back(
                {.id = {}, .token = static_cast<unsigned char>(c), .logprob = -0.5f, .top = {}});
        update(job, std::move(u));
    }
    void finish(std::size_t job, model::EndReason reason = model::EndReason::kStop,
                std::optional<Error> error = {}) {
        pools::Update u;
        model::Finished f;
        f.reason = reason;
        f.queue_time = 2ms;
        f.prefill_time = 30ms;
        f.decode_time = 40ms;
        f.error = std::move(error);
        if (reason == model::EndReason::kStop)
            u.tokens.push_back({.id = {}, .token = ByteTokenizer::kEnd, .logprob = 0, .top = {}});
        u.finished = f;
        update(job, std::move(u));
    }
    void lose(std::size_t job, Error error) {
        pools::Update u;
        u.error = std::move(error);
        update(job, std::move(u));
    }
    int open_sessions() const {
        int n = 0;
        for (const Job& j : jobs) n += j.open ? 1 : 0;
        return n;
    }

  private:
    class OpenSession final : public pools::Session {
      public:
        OpenSession(FakeWorker& w, std::size_t i) : worker_(w), i_(i) {}
        ~OpenSession() override {
            Job& j = worker_.jobs[i_];
            EXPECT_TRUE(j.open);
            j.open = false;
            if (!j.ended) ++worker_.aborts;
            j.ended = true;
        }

      private:
        FakeWorker& worker_;
        std::size_t i_;
    };
    class Handle final : public pools::WorkerHandle {
      public:
        explicit Handle(FakeWorker& w) : worker_(w) {}
        std::string_view name() const override { return "fake-0"; }
        const pools::WorkerStatus& status() const override { return worker_.status; }
        std::unique_ptr<pools::Session> submit(model::AddRequest request,
                                               pools::UpdateFn fn) override {
            worker_.jobs.push_back({std::move(request), std::move(fn)});
            auto session = std::make_unique<OpenSession>(worker_, worker_.jobs.size() - 1);
            if (worker_.refuse) worker_.lose(worker_.jobs.size() - 1, *worker_.refuse);
            return session;
        }

      private:
        FakeWorker& worker_;
    };
};

// A client connection. Everything that arrives is in `raw`.
class Client {
  public:
    Client(io::TestNetwork& net) : stream_(net.dial()) { reading_.start(read()); }
    void send(std::string bytes) { sending_.start(write(std::move(bytes))); }
    void post(std::string_view path, std::string_view body, std::string_view headers = {}) {
        request("POST", path, body, headers);
    }
    void get(std::string_view path, std::string_view headers = {}) {
        request("GET", path, {}, headers);
    }
    void request(std::string_view method, std::string_view path, std::string_view body,
                 std::string_view headers) {
        raw.clear();
        std::string text = fmt::format("{} {} HTTP/1.1\r\nhost: test\r\n{}", method, path, headers);
        if (method == "POST")
            text += fmt::format("content-type: application/json\r\ncontent-length: {}\r\n",
                                body.size());
        send(text + "\r\n" + std::string(body));
    }
    void hang_up() {
        reading_.reset();
        sending_.reset();
        stream_.reset();
    }

    std::string raw;
    bool closed = false;

    int status() const { return raw.size() > 12 ? std::stoi(raw.substr(9, 3)) : 0; }
    std::string header(std::string_view name) const {
        const auto end = raw.find("\r\n\r\n");
        const std::string key = "\r\n" + std::string(name) + ": ";
        const auto at = raw.find(key);
        if (at == std::string::npos || at > end) return {};
        return raw.substr(at + key.size(), raw.find("\r\n", at + 2) - at - key.size());
    }
    // Of the response, chunked framing removed.
    std::string body() const {
        const auto end = raw.find("\r\n\r\n");
        if (end == std::string::npos) return {};
        std::string_view rest = std::string_view(raw).substr(end + 4);
        if (header("transfer-encoding") != "chunked") return std::string(rest);
        std::string out;
        for (;;) {
            const auto line = rest.find("\r\n");
            if (line == std::string_view::npos) return out;
            const auto size = std::stoul(std::string(rest.substr(0, line)), nullptr, 16);
            if (size == 0) return out;
            out += rest.substr(line + 2, size);
            rest.remove_prefix(line + 2 + size + 2);
        }
    }
    bool last_chunk_seen() const { return raw.ends_with("0\r\n\r\n"); }
    Json json() const {
        auto parsed = Json::parse(body());
        EXPECT_TRUE(parsed.ok()) << raw;
        return parsed.ok() ? *parsed : Json();
    }

  private:
    io::Task<void> read() {
        char buffer[4096];
        for (;;) {
            const auto n = co_await stream_->read(buffer);
            if (!n.ok() || *n == 0) break;
            raw.append(buffer, *n);
        }
        closed = true;
    }
    io::Task<void> write(std::string bytes) {
        const std::string_view pieces[] = {bytes};
        (void)co_await stream_->write(pieces);
    }
    std::unique_ptr<io::Stream> stream_;
    io::RootTask reading_, sending_;
};

// At `path`, the value; "a.b.0" walks into objects and arrays. Null when absent.
inline Json at(const Json& root, std::string_view path) {
    const Json* j = &root;
    while (!path.empty()) {
        const auto dot = path.find('.');
        const auto step = path.substr(0, dot);
        path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
        if (j->is_array()) {
            const auto i = static_cast<std::size_t>(std::stoul(std::string(step)));
            j = i < j->size() ? &j->as_array()[i] : nullptr;
        } else {
            j = j->find(step);
        }
        if (j == nullptr) return {};
    }
    return *j;
}

}  // namespace nereid::gateway
