// The errors that users will make, each in OpenAI's shape; what the engine lacks; who may come in.
#include <gmock/gmock.h>

#include "gateway/gateway_fixture.h"

namespace nereid::gateway {
namespace {

using testing::HasSubstr;

class Errors : public GatewayTest {
  protected:
    struct Shape {
        int status;
        std::string type, code, param;
    };
    void expect_error(const Client& c, const Shape& shape, std::string_view message) {
        ASSERT_EQ(c.status(), shape.status) << c.raw;
        EXPECT_THAT(c.header("content-type"), HasSubstr("application/json"));
        const Json j = c.json();
        EXPECT_EQ(j.size(), 1u);
        EXPECT_EQ(at(j, "error").size(), 4u) << c.raw;
        EXPECT_EQ(at(j, "error.type"), Json(shape.type));
        EXPECT_EQ(at(j, "error.code"), shape.code.empty() ? Json() : Json(shape.code));
        EXPECT_EQ(at(j, "error.param"), shape.param.empty() ? Json() : Json(shape.param));
        EXPECT_THAT(at(j, "error.message").as_string(), HasSubstr(std::string(message)));
    }
    std::unique_ptr<Client> post(std::string_view path, std::string_view body,
                                 std::string_view headers = {}) {
        auto c = client();
        c->post(path, body, headers);
        loop.settle();
        return c;
    }
};
const std::string kInvalid = "invalid_request_error";

TEST_F(Errors, WrongModelName) {
    start();
    auto c = post("/v1/chat/completions",
                  R"({"model":"gpt-9","messages":[{"role":"user","content":"x"}]})");
    expect_error(*c, {404, kInvalid, "model_not_found", "model"},
                 "The model `gpt-9` does not exist");
}

TEST_F(Errors, BodyIsNotJson) {
    start();
    expect_error(*post("/v1/chat/completions", "{\"model\":"), {400, kInvalid, "invalid_value", ""},
                 "could not parse the JSON body");
    expect_error(*post("/v1/chat/completions", ""), {400, kInvalid, "invalid_value", ""},
                 "could not parse the JSON body");
    EXPECT_EQ(post("/v1/chat/completions", "[]")->status(), 400);
    // The process lives.
    auto ok = chat();
    worker.finish(0);
    loop.settle();
    EXPECT_EQ(ok->status(), 200);
}

TEST_F(Errors, InvalidUtf8AndLoneSurrogates) {
    start();
    expect_error(*post("/v1/chat/completions",
                       "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"),
                 {400, kInvalid, "invalid_value", ""}, "UTF-8");
    expect_error(*post("/v1/chat/completions",
                       R"({"model":"m","messages":[{"role":"user","content":"\ud800"}]})"),
                 {400, kInvalid, "invalid_value", ""}, "surrogate");
}

TEST_F(Errors, BodyTooLarge_A93) {
    options.max_body = io::SizeBytes{1000};
    start();
    auto c = post("/v1/chat/completions", std::string(1001, ' '));
    expect_error(*c, {413, kInvalid, "request_too_large", ""}, "");
    EXPECT_EQ(c->header("connection"), "close");
}

TEST_F(Errors, BodyOf64MiBIsRead_A93) {
    GatewayOptions defaults;
    EXPECT_GE(defaults.max_body.value, 64u << 20);
}

TEST_F(Errors, MessagesEmpty) {
    start();
    auto c = post("/v1/chat/completions", R"({"model":"m","messages":[]})");
    EXPECT_EQ(c->status(), 400);
    EXPECT_EQ(at(c->json(), "error.param"), Json("messages"));
}

TEST_F(Errors, AbsurdParameters) {
    start();
    const std::pair<const char*, const char*> cases[] = {
        {R"("temperature":-1)", "temperature"},
        {R"("temperature":1e9)", "temperature"},
        {R"("top_p":2)", "top_p"},
        {R"("n":0)", "n"},
        {R"("n":17)", "n"},
        {R"("max_tokens":-5)", "max_tokens"},
        {R"("top_logprobs":99,"logprobs":true)", "top_logprobs"},
    };
    for (const auto& [field, param] : cases) {
        auto c = chat(std::string(",") + field);
        EXPECT_EQ(c->status(), 400) << field;
        EXPECT_EQ(at(c->json(), "error.type"), Json(kInvalid)) << field;
        EXPECT_EQ(at(c->json(), "error.param"), Json(param)) << field;
    }
    EXPECT_EQ(worker.jobs.size(), 0u);
}

TEST_F(Errors, ContextLength_A61) {
    start();
    const std::string body = fmt::format(
        R"({{"model":"m","messages":[{{"role":"user","content":"{}"}}]}})", std::string(99, 'x'));
    expect_error(*post("/v1/chat/completions", body),
                 {400, kInvalid, "context_length_exceeded", "messages"},
                 "This model's maximum context length is 100 tokens. However, your messages "
                 "resulted in 100 tokens.");
    expect_error(*chat(R"(,"max_tokens":98)"),
                 {400, kInvalid, "context_length_exceeded", "messages"},
                 "However, you requested 101 tokens (3 in the messages, 98 in the completion)");
    auto fits = chat(R"(,"max_tokens":97)");
    ASSERT_EQ(worker.jobs.size(), 1u);
    EXPECT_EQ(worker.jobs[0].request.max_tokens, 97u);
    auto all_of_it = chat();
    ASSERT_EQ(worker.jobs.size(), 2u);
    EXPECT_EQ(worker.jobs[1].request.max_tokens, 97u);
}

TEST_F(Errors, WhatTheEngineLacksIsNamed) {
    model::EngineInfo& info = *worker.status.info;
    info.logprobs = info.penalties = info.logit_bias = info.seeds = info.embeddings = false;
    start();
    const std::pair<const char*, const char*> cases[] = {
        {R"("logprobs":true)", "logprobs"},
        {R"("frequency_penalty":0.5)", "frequency_penalty"},
        {R"("presence_penalty":0.5)", "presence_penalty"},
        {R"("logit_bias":{"5":1})", "logit_bias"},
        {R"("seed":1)", "seed"},
        {R"("response_format":{"type":"json_object"})", "response_format"},
        {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}})",
         "response_format"},
    };
    for (const auto& [field, param] : cases) {
        auto c = chat(std::string(",") + field);
        EXPECT_EQ(c->status(), 400) << field;
        EXPECT_EQ(at(c->json(), "error.param"), Json(param)) << field;
    }
    // Asking for nothing is not asking.
    auto c = chat(R"(,"frequency_penalty":0,"logprobs":false,"response_format":{"type":"text"})");
    EXPECT_EQ(worker.jobs.size(), 1u) << c->raw;
    EXPECT_EQ(post("/v1/embeddings", R"({"model":"m","input":"x"})")->status(), 400);
}

TEST_F(Errors, ImagesAreRefusedByMessage) {
    start();
    auto c = post(
        "/v1/chat/completions",
        R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]})");
    EXPECT_EQ(c->status(), 400) << c->raw;
    EXPECT_EQ(at(c->json(), "error.param"), Json("messages[0].content[0].image_url.url"));
}

// The official SDKs would do it all again.
TEST_F(Errors, WhatHasCostOutputIsNotToBeRetried) {
    start();
    for (const bool spent : {false, true}) {
        const std::size_t job = worker.jobs.size();
        auto c = chat();
        loop.advance(1ms);
        if (spent) worker.say(job, "half an answer");
        loop.settle();
        worker.finish(job, model::EndReason::kFailed, Error{Code::kWorkerLost, "lost"});
        loop.settle();
        EXPECT_GE(c->status(), 500);
        EXPECT_EQ(c->header("x-should-retry"), spent ? "false" : "true") << c->raw;
    }
}

TEST_F(Errors, ToolsNeedATemplateForThem) {
    constexpr std::string_view kTools =
        R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
    text_.chat_template = std::make_shared<PlainTemplate>(text_.tokenizer, false);
    start();
    expect_error(*chat(kTools), {400, kInvalid, "unsupported_parameter", "tools"},
                 "no place for tools");
    auto none = chat(std::string(kTools) + R"(,"tool_choice":"none")");
    EXPECT_EQ(worker.jobs.size(), 1u) << none->raw;
}

TEST_F(Errors, ToolsAreRenderedWhereTheTemplateTakesThem) {
    start();
    auto c = chat(R"(,"tools":[{"type":"function","function":{"name":"f"}}])");
    ASSERT_EQ(worker.jobs.size(), 1u) << c->raw;
    EXPECT_EQ(worker.jobs[0].request.prompt.back(), 'f');
    auto forced =
        chat(R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")");
    EXPECT_EQ(at(forced->json(), "error.param"), Json("tool_choice"));
}

TEST_F(Errors, UnknownRouteAndWrongMethod) {
    start();
    expect_error(*post("/v1/nothing", "{}"), {404, kInvalid, "unknown_url", ""},
                 "Unknown request URL: POST /v1/nothing.");
    auto c = client();
    c->get("/v1/chat/completions");
    loop.settle();
    expect_error(*c, {405, kInvalid, "method_not_allowed", ""},
                 "Not allowed to GET on /v1/chat/completions");
    EXPECT_EQ(c->header("allow"), "POST");
}

TEST_F(Errors, CompressedBodyIsRefused) {
    start();
    expect_error(*post("/v1/chat/completions", "xx", "content-encoding: zstd\r\n"),
                 {415, kInvalid, "unsupported_content_encoding", ""}, "");
}

TEST_F(Errors, MalformedHttpIsAnsweredInTheSameShape) {
    start();
    auto c = client();
    c->send("GARBAGE\r\n\r\n");
    loop.settle();
    EXPECT_EQ(c->status(), 400) << c->raw;
    EXPECT_EQ(at(c->json(), "error.type"), Json(kInvalid));
    // The scrape's own connection is the one that is open; the first was closed after the answer.
    c.reset();
    loop.settle();
    EXPECT_EQ(metric("nereid_http_bad_requests_total"), 1);
    EXPECT_EQ(metric("nereid_http_connections_total"), 3);
    loop.settle();  // the scrapes before are closed now
    EXPECT_EQ(metric("nereid_http_connections_open"), 1);
    EXPECT_EQ(metric("nereid_http_timeouts_total"), 0);
    EXPECT_EQ(metric("nereid_log_lines_dropped_total"), 0);
}

TEST_F(Errors, ModelThatIsNotThere) {
    worker.status.info.reset();
    worker.status.state = pools::WorkerState::kStarting;
    start();
    auto c = chat();
    EXPECT_EQ(c->status(), 503);
    EXPECT_EQ(c->header("x-should-retry"), "true");
    EXPECT_THAT(at(c->json(), "error.message").as_string(), HasSubstr("the model is loading"));
    worker.status.info = able_engine();
    worker.status.state = pools::WorkerState::kFailed;
    worker.status.last_error = "/secret/path is not a model";
    auto failed = chat();
    EXPECT_EQ(failed->status(), 503);
    EXPECT_THAT(failed->raw, testing::Not(HasSubstr("secret")));
    // While it starts again, requests wait in the pool.
    worker.status.state = pools::WorkerState::kBackoff;
    auto waiting = chat();
    EXPECT_EQ(worker.jobs.size(), 1u);
}

TEST_F(Errors, QueueBound) {
    options.queue_max = 2;
    options.retry_after = 2500ms;
    start();
    auto a = chat(), b = chat(R"(,"stream":true)"), c = chat();
    expect_error(*c, {503, "server_error", "overloaded", ""}, "overloaded");
    EXPECT_EQ(c->header("retry-after"), "3");
    EXPECT_EQ(c->header("retry-after-ms"), "2500");
    EXPECT_EQ(c->header("x-should-retry"), "true");
    b->hang_up();
    loop.settle();
    auto d = chat();
    EXPECT_EQ(worker.jobs.size(), 3u);
    EXPECT_EQ(metric(R"(nereid_gateway_rejected_total{cause="queue"})"), 1);
}

TEST_F(Errors, RefusedRequestsHoldNoSlot) {
    options.queue_max = 1;
    start();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(chat(R"(,"max_tokens":98)")->status(), 400);
    auto c = chat();
    EXPECT_EQ(worker.jobs.size(), 1u);
}

class Keys : public Errors {
  protected:
    Keys() {
        path_ = log_path() + ".keys";
        const std::vector<std::uint8_t> entropy_a(32, 1), entropy_b(32, 2);
        a_ = *make_key_line("alice", 1, std::span<const std::uint8_t, 32>(entropy_a.data(), 32));
        b_ = *make_key_line("bob", 0, std::span<const std::uint8_t, 32>(entropy_b.data(), 32));
        write(a_.line + "\n");
        options.api_keys = path_;
    }
    ~Keys() override { std::filesystem::remove(path_); }
    void write(std::string_view text) { std::ofstream(path_) << text; }
    std::string bearer(const NewKey& key) const {
        return "authorization: Bearer " + key.key + "\r\n";
    }
    std::string path_;
    NewKey a_, b_;
};

TEST_F(Keys, NeededAndTaken) {
    start();
    expect_error(*chat(), {401, kInvalid, "invalid_api_key", ""}, "You didn't provide an API key");
    expect_error(*chat("", "authorization: Bearer sk-wrong\r\n"),
                 {401, kInvalid, "invalid_api_key", ""}, "Incorrect API key");
    auto c = chat("", bearer(a_));
    ASSERT_EQ(worker.jobs.size(), 1u);
    worker.finish(0);
    loop.settle();
    EXPECT_EQ(c->status(), 200);
    auto x = chat("", "x-api-key: " + a_.key + "\r\n");
    EXPECT_EQ(worker.jobs.size(), 2u);
    EXPECT_EQ(at(access_lines().back(), "key"), Json("alice"));
    for (const char* open : {"/health", "/ready", "/metrics", "/"}) {
        auto probe = client();
        probe->get(open);
        loop.settle();
        EXPECT_EQ(probe->status(), 200) << open;
    }
    auto models = client();
    models->get("/v1/models");
    loop.settle();
    EXPECT_EQ(models->status(), 401);
}

TEST_F(Keys, ConcurrencyPerKey) {
    write(a_.line + "\n" + b_.line + "\n");
    start();
    auto first = chat("", bearer(a_));
    auto second = chat("", bearer(a_));
    EXPECT_EQ(second->status(), 429);
    EXPECT_EQ(at(second->json(), "error.code"), Json("rate_limit_exceeded"));
    EXPECT_EQ(second->header("retry-after"), "1");
    EXPECT_EQ(second->header("x-ratelimit-limit-requests"), "1");
    EXPECT_EQ(second->header("x-ratelimit-remaining-requests"), "0");
    EXPECT_EQ(second->header("x-ratelimit-reset-requests"), "1s");
    auto other = chat("", bearer(b_));
    ASSERT_EQ(worker.jobs.size(), 2u);
    first->hang_up();
    loop.settle();
    auto third = chat("", bearer(a_));
    ASSERT_EQ(worker.jobs.size(), 3u);
    // Tenants do not see each other's blocks.
    EXPECT_FALSE(worker.jobs[0].request.kv_namespace == worker.jobs[1].request.kv_namespace);
    EXPECT_TRUE(worker.jobs[0].request.kv_namespace == worker.jobs[2].request.kv_namespace);
}

TEST_F(Errors, CacheSaltDividesTheCache) {
    start();
    std::vector<std::unique_ptr<Client>> asked;
    for (const char* extra : {"", R"(,"cache_salt":"s")", R"(,"cache_salt":"s","priority":3)",
                              R"(,"cache_salt":"t")"}) {
        asked.push_back(chat(extra));
    }
    ASSERT_EQ(worker.jobs.size(), 4u);
    const auto ns = [&](std::size_t i) { return worker.jobs[i].request.kv_namespace; };
    EXPECT_FALSE(ns(0) == ns(1));
    EXPECT_TRUE(ns(1) == ns(2));
    EXPECT_FALSE(ns(1) == ns(3));
    expect_error(*chat(R"(,"cache_salt":")" + std::string(257, 'x') + "\""),
                 {400, kInvalid, "invalid_value", "cache_salt"}, "256");
}

// Of an upstream server: the same name of two tenants is not the same.
TEST_F(Keys, SaltsOfTenantsDiffer) {
    backend.script = {
        {model::Start{}, model::TextDelta{.text = "x"}, model::ChoiceEnd{}, model::Done{}}};
    write(a_.line + "\n" + b_.line + "\n");
    start();
    std::vector<std::string> salts;
    for (const NewKey& key : {a_, b_, a_}) {
        auto c = client();
        c->post("/v1/chat/completions",
                R"({"model":"t","cache_salt":"s","messages":[{"role":"user","content":"Hi"}]})",
                bearer(key));
        loop.settle();
        EXPECT_EQ(c->status(), 200) << c->raw;
        salts.push_back(backend.last.cache_salt);
    }
    EXPECT_NE(salts[0], salts[1]);
    EXPECT_EQ(salts[0], salts[2]);
    EXPECT_EQ(salts[0].size(), 64u);
}

TEST_F(Keys, ReloadKeepsStreamsAndCounters) {
    start();
    auto stream = chat(R"(,"stream":true)", bearer(a_));
    worker.say(0, "one");
    loop.settle();
    write("nonsense\n");
    const auto bad = gateway->reload(options);
    ASSERT_FALSE(bad.ok());
    EXPECT_THAT(bad.error().message, HasSubstr(path_ + ":1: there is no ':'"));
    EXPECT_EQ(chat("", bearer(a_))->status(), 429);  // the old table still holds
    write(a_.line + "\n" + b_.line + "\n");
    options.retry_after = 7s;
    ASSERT_TRUE(gateway->reload(options).ok());
    EXPECT_EQ(chat("", bearer(a_))->header("retry-after"), "7");
    auto bob = chat("", bearer(b_));
    EXPECT_EQ(worker.jobs.size(), 2u);
    worker.say(0, "two");
    worker.finish(0);
    loop.settle();
    EXPECT_THAT(stream->body(), HasSubstr("[DONE]"));
    auto again = chat("", bearer(a_));
    EXPECT_EQ(worker.jobs.size(), 3u);
}

TEST(Options, BeyondLoopbackNeedsKeysOrALoudFlag) {
    GatewayOptions o;
    EXPECT_TRUE(o.validate().ok());
    for (const char* open : {"0.0.0.0", "::", "10.0.0.1", "example.org"}) {
        o.host = open;
        o.allow_open_network = false;
        o.api_keys.clear();
        ASSERT_FALSE(o.validate().ok()) << open;
        EXPECT_EQ(o.validate().error().code, Code::kConfig);
        EXPECT_THAT(o.validate().error().message, HasSubstr("--api-keys FILE"));
        o.allow_open_network = true;
        EXPECT_TRUE(o.validate().ok());
        o.allow_open_network = false;
        o.api_keys = "f";
        EXPECT_TRUE(o.validate().ok());
    }
    for (const char* mine : {"127.0.0.1", "localhost", "::1", "127.8.8.8"}) {
        o = {};
        o.host = mine;
        EXPECT_TRUE(o.validate().ok()) << mine;
    }
    o = {};
    o.tls_cert = "x";
    EXPECT_THAT(o.validate().error().message, HasSubstr("set both or none"));
}

TEST_F(Errors, StartUpFaultsNameTheMend) {
    options.api_keys = "/no/such/file";
    auto made = make_gateway({{&loop, &net}}, options, {}, log, metrics);
    EXPECT_EQ(made.error().code, Code::kConfig);
    ModelEntry m;
    m.id = "a";
    m.worker = [this](io::Loop&) { return worker.handle(); };
    std::vector<ModelEntry> one{m};
    made = make_gateway({{&loop, &net}}, options, one, log, metrics);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().message, HasSubstr("/no/such/file"));
    options.api_keys.clear();
    std::vector<ModelEntry> twice{m, m};
    made = make_gateway({{&loop, &net}}, options, twice, log, metrics);
    EXPECT_THAT(made.error().message, HasSubstr("taken by another model"));
}

}  // namespace
}  // namespace nereid::gateway
