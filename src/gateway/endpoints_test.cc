// Models, tokenizer, health, readiness, metrics; draining.
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>

#include "gateway/gateway_fixture.h"

namespace nereid::gateway {
namespace {

using testing::HasSubstr;

class Endpoints : public GatewayTest {
  protected:
    std::unique_ptr<Client> get(std::string_view path) {
        auto c = client();
        c->get(path);
        loop.settle();
        return c;
    }
    std::unique_ptr<Client> post(std::string_view path, std::string_view body) {
        auto c = client();
        c->post(path, body);
        loop.settle();
        return c;
    }
};

TEST_F(Endpoints, Models) {
    start();
    const Json list = get("/v1/models")->json();
    EXPECT_EQ(at(list, "object"), Json("list"));
    EXPECT_EQ(at(list, "data").size(), 3u);
    EXPECT_EQ(at(list, "data.0.id"), Json("m"));
    EXPECT_EQ(at(list, "data.1.id"), Json("default"));
    EXPECT_EQ(at(get("/v1/models/m")->json(), "id"), Json("m"));
    auto none = get("/v1/models/nope");
    EXPECT_EQ(none->status(), 404);
    EXPECT_EQ(at(none->json(), "error.code"), Json("model_not_found"));
    EXPECT_EQ(none->header("request-id"), "");
}

TEST_F(Endpoints, ModelsInPages) {
    start();
    const auto page = [&](std::string_view query) {
        const Json list = get(fmt::format("/v1/models?{}", query))->json();
        std::string out;
        for (std::size_t i = 0; i < at(list, "data").size(); ++i)
            out += at(list, fmt::format("data.{}.id", i)).as_string() + " ";
        return out + (at(list, "has_more") == Json(true) ? "+" : ".");
    };
    EXPECT_EQ(page(""), "m default t .");
    EXPECT_EQ(page("limit=1000"), "m default t .");
    EXPECT_EQ(page("limit=2"), "m default +");
    EXPECT_EQ(page("limit=1&after_id=m"), "default +");
    EXPECT_EQ(page("limit=1&after_id=default"), "t .");
    EXPECT_EQ(page("after_id=t"), ".");
    EXPECT_EQ(page("limit=1&before_id=t"), "default +");
    EXPECT_EQ(page("limit=2&before_id=t"), "m default .");
    EXPECT_EQ(get("/v1/models?after_id=nope")->status(), 404);
    EXPECT_EQ(get("/v1/models?limit=0")->status(), 400);
    EXPECT_EQ(get("/v1/models?after_id=m&before_id=t")->status(), 400);
}

TEST_F(Endpoints, SharedPathsAnswerAnthropicsClientsInTheirShape) {
    start();
    const auto ask = [&](std::string_view path, std::string_view headers) {
        auto c = client();
        c->get(path, headers);
        loop.settle();
        return c;
    };
    constexpr std::string_view kClaude = "anthropic-version: 2023-06-01\r\n";
    EXPECT_FALSE(ask("/v1/models", kClaude)->header("request-id").empty());
    for (const char* path : {"/v1/models/nope", "/v1/files/nope", "/v1/files/nope/content",
                             "/v1/models?limit=x", "/v1/nothing"}) {
        auto theirs = ask(path, kClaude);
        EXPECT_EQ(at(theirs->json(), "type"), Json("error")) << theirs->raw;
        EXPECT_EQ(at(theirs->json(), "request_id"), Json(theirs->header("request-id")));
        EXPECT_EQ(theirs->header("openai-version"), "");
        auto ours = ask(path, "");
        EXPECT_EQ(ours->status(), theirs->status());
        EXPECT_EQ(at(ours->json(), "type"), Json()) << ours->raw;
        EXPECT_EQ(ours->header("request-id"), "");
    }
    EXPECT_EQ(at(ask("/v1/responses/nope", kClaude)->json(), "type"), Json());
}

TEST_F(Endpoints, Tokenize) {
    start();
    const Json prompt =
        post("/tokenize", R"({"model":"m","prompt":"ab<|im_end|>","return_token_strs":true})")
            ->json();
    EXPECT_EQ(at(prompt, "count"), Json(4));
    EXPECT_EQ(at(prompt, "max_model_len"), Json(100));
    EXPECT_EQ(at(prompt, "tokens").dump(), "[256,97,98,258]");
    EXPECT_EQ(at(prompt, "token_strs.3"), Json("<|im_end|>"));
    EXPECT_EQ(
        at(post("/v1/tokenize", R"({"model":"m","prompt":"a","add_special_tokens":false})")->json(),
           "count"),
        Json(1));
    const Json chat =
        post("/tokenize", R"({"model":"m","messages":[{"role":"user","content":"Hi"}]})")->json();
    EXPECT_EQ(at(chat, "tokens").dump(), "[72,105,258]");
    EXPECT_TRUE(at(chat, "token_strs").is_null());
}

TEST_F(Endpoints, TokenizeCountsWhatChatCounts) {
    start();
    const std::string messages =
        R"("messages":[{"role":"system","content":"be brief"},{"role":"user","content":"Grüße"}])";
    const Json counted = post("/tokenize", R"({"model":"m",)" + messages + "}")->json();
    auto c = post("/v1/chat/completions", R"({"model":"m",)" + messages + "}");
    worker.finish(0);
    loop.settle();
    EXPECT_EQ(at(counted, "count"), at(c->json(), "usage.prompt_tokens"));
}

TEST_F(Endpoints, TokenizeRefusals) {
    start();
    const std::pair<const char*, const char*> cases[] = {
        {R"({"model":"m"})", "prompt"},
        {R"({"model":"m","prompt":5})", "prompt"},
        {R"({"prompt":"x"})", "model"},
        {R"({"model":"t","prompt":"x"})", "model"},
        {R"({"model":"m","prompt":"x","add_special_tokens":1})", "add_special_tokens"},
        {R"({"model":"m","prompt":"x","messages":[]})", "prompt"},
    };
    for (const auto& [body, param] : cases) {
        auto c = post("/tokenize", body);
        EXPECT_EQ(c->status(), 400) << body;
        EXPECT_EQ(at(c->json(), "error.param"), Json(param)) << body;
    }
    EXPECT_EQ(post("/tokenize", "nonsense")->status(), 400);
    EXPECT_EQ(post("/tokenize", R"({"model":"x","prompt":"x"})")->status(), 404);
}

TEST_F(Endpoints, Detokenize) {
    start();
    EXPECT_EQ(at(post("/detokenize", R"({"model":"m","tokens":[72,105,258]})")->json(), "prompt"),
              Json("Hi<|im_end|>"));
    EXPECT_EQ(at(post("/detokenize", R"({"model":"m","tokens":[195]})")->json(), "prompt"),
              Json("\xef\xbf\xbd"));
    for (const char* bad : {"[-1]", "[259]", "[1.5]", "[\"a\"]", "5"}) {
        auto c = post("/detokenize", fmt::format(R"({{"model":"m","tokens":{}}})", bad));
        EXPECT_EQ(c->status(), 400) << bad;
        EXPECT_EQ(at(c->json(), "error.param"), Json("tokens"));
    }
}

TEST_F(Endpoints, HealthAndReadiness) {
    start();
    EXPECT_EQ(get("/health")->status(), 200);
    EXPECT_EQ(get("/ready")->status(), 200);
    EXPECT_EQ(at(get("/ready")->json(), "status"), Json("ready"));
    EXPECT_EQ(get("/metrics")->status(), 200);
    EXPECT_TRUE(access_lines().empty());  // probes are counted, not logged
    auto head = client();
    head->request("HEAD", "/", {}, {});
    loop.settle();
    EXPECT_EQ(head->status(), 200);
    EXPECT_EQ(head->body(), "");
}

TEST_F(Endpoints, ReadinessFollowsTheWorker) {
    std::vector<ModelEntry> models(1);
    models[0].id = "m";
    models[0].text = text_;
    models[0].worker = [this](io::Loop&) { return worker.handle(); };
    worker.status.state = pools::WorkerState::kStarting;
    auto made = make_gateway({{&loop, &net}}, options, std::move(models), log, metrics);
    ASSERT_TRUE(made.ok());
    gateway = std::move(*made);
    ASSERT_TRUE(gateway->start().ok());
    auto c = get("/ready");
    EXPECT_EQ(c->status(), 503);
    EXPECT_EQ(at(c->json(), "models.m"), Json("the model is loading"));
    EXPECT_EQ(at(c->json(), "status"), Json("no model is ready"));
    EXPECT_EQ(get("/health")->status(), 200);
    worker.status.state = pools::WorkerState::kReady;
    EXPECT_EQ(get("/ready")->status(), 200);
}

TEST_F(Endpoints, DrainLetsStreamsFinishAndTurnsOthersAway) {
    start();
    auto stream = chat(R"(,"stream":true)");
    auto idle = get("/health");
    auto late = client();
    late->send("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: " +
               std::to_string(chat_body().size()) + "\r\n\r\n");
    loop.settle();
    bool drained = false;
    gateway->drain([&] { drained = true; });
    loop.settle();
    EXPECT_TRUE(idle->closed);
    EXPECT_FALSE(drained);
    late->send(chat_body());
    loop.settle();
    EXPECT_EQ(late->status(), 503) << late->raw;
    EXPECT_EQ(late->header("connection"), "close");
    worker.say(0, "all of it");
    worker.finish(0);
    loop.settle();
    EXPECT_THAT(stream->body(), HasSubstr("[DONE]"));
    loop.advance(3s);
    EXPECT_TRUE(drained);
    EXPECT_LT(loop.now().since_origin, 30s);
}

TEST_F(Endpoints, DrainEndsAtItsDeadline) {
    start();
    auto stream = chat(R"(,"stream":true)");
    bool drained = false;
    gateway->drain([&] { drained = true; });
    loop.advance(29s);
    EXPECT_FALSE(drained);
    loop.advance(2s);
    EXPECT_TRUE(drained);
    EXPECT_TRUE(stream->closed);
    EXPECT_EQ(worker.aborts, 1);
    EXPECT_EQ(access_lines().size(), 2u - 1u);
}

TEST_F(Endpoints, DestroyingTheGatewayAbortsWhatRuns) {
    start();
    auto stream = chat(R"(,"stream":true)");
    gateway.reset();
    loop.settle();
    EXPECT_EQ(worker.aborts, 1);
    EXPECT_EQ(worker.open_sessions(), 0);
    EXPECT_EQ(access_lines().size(), 1u);
}

// A reader for the text format, strict where Prometheus is: every sample has a type, names and
// labels are well formed, no sample comes twice, a family is in one piece.
void check_exposition(const std::string& text, std::set<std::string>& families) {
    const auto name_ok = [](std::string_view n) {
        return !n.empty() &&
               n.find_first_not_of(
                   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:") ==
                   std::string_view::npos &&
               !(n[0] >= '0' && n[0] <= '9');
    };
    std::map<std::string, std::string> types;
    std::set<std::string> samples, closed;
    std::string current;
    std::istringstream in(text);
    ASSERT_TRUE(text.ends_with('\n'));
    for (std::string line; std::getline(in, line);) {
        if (line.starts_with("# TYPE ")) {
            std::istringstream words(line.substr(7));
            std::string name, type;
            words >> name >> type;
            EXPECT_TRUE(name_ok(name)) << line;
            EXPECT_TRUE(types.emplace(name, type).second) << line;
            continue;
        }
        if (line.starts_with('#')) continue;
        const auto end = line.find_first_of("{ ");
        std::string name = line.substr(0, end);
        ASSERT_TRUE(name_ok(name)) << line;
        const auto space = line.rfind(' ');
        EXPECT_TRUE(samples.insert(line.substr(0, space)).second) << "twice: " << line;
        std::size_t used = 0;
        const std::string value = line.substr(space + 1);
        if (value != "+Inf" && value != "NaN") {
            (void)std::stod(value, &used);
            EXPECT_EQ(used, value.size()) << line;
        }
        std::string family = name;
        for (const char* suffix : {"_bucket", "_sum", "_count"}) {
            if (name.ends_with(suffix) &&
                types.contains(name.substr(0, name.size() - std::string_view(suffix).size()))) {
                family = name.substr(0, name.size() - std::string_view(suffix).size());
            }
        }
        ASSERT_TRUE(types.contains(family)) << line;
        if (family != current) {
            EXPECT_TRUE(closed.insert(family).second) << "in two pieces: " << family;
            current = family;
        }
        families.insert(family);
    }
}

TEST_F(Endpoints, MetricsParseAndCount) {
    start();
    auto a = chat(R"(,"stream":true)");
    worker.start(0, 1);
    loop.advance(100ms);
    worker.say(0, "a");
    loop.settle();
    loop.advance(50ms);
    worker.say(0, "b");
    worker.finish(0);
    loop.settle();
    auto b = chat(R"(,"temperature":-1)");
    auto gone = chat();
    gone->hang_up();
    loop.settle();
    worker.status.load.running = 3;
    worker.status.load.kv_total_tokens = 1000;
    auto c = get("/metrics");
    EXPECT_THAT(c->header("content-type"), HasSubstr("text/plain; version=0.0.4"));
    std::set<std::string> families;
    check_exposition(c->body(), families);
    for (const char* name :
         {"nereid_gateway_requests_total", "nereid_gateway_requests_in_flight",
          "nereid_gateway_tokens_total", "nereid_gateway_time_to_first_token_seconds",
          "nereid_gateway_inter_token_seconds", "nereid_gateway_request_seconds",
          "nereid_gateway_disconnects_total", "nereid_gateway_aborts_total",
          "nereid_gateway_keepalives_total", "nereid_gateway_rejected_total",
          "nereid_gateway_parse_errors_total", "nereid_engine_running", "nereid_engine_waiting",
          "nereid_engine_kv_used_tokens", "nereid_engine_kv_total_tokens"}) {
        EXPECT_TRUE(families.contains(name)) << name;
    }
    EXPECT_EQ(metric(R"(nereid_gateway_requests_total{route="chat_completions",status="2xx"})"), 1);
    EXPECT_EQ(metric(R"(nereid_gateway_requests_total{route="chat_completions",status="4xx"})"), 1);
    EXPECT_EQ(metric(R"(nereid_gateway_requests_total{route="chat_completions",status="none"})"),
              1);
    EXPECT_EQ(metric(R"(nereid_gateway_tokens_total{kind="out"})"), 3);
    EXPECT_EQ(metric("nereid_gateway_time_to_first_token_seconds_count"), 1);
    EXPECT_EQ(metric("nereid_gateway_inter_token_seconds_count"), 1);
    EXPECT_EQ(metric("nereid_gateway_disconnects_total"), 1);
    EXPECT_EQ(metric("nereid_gateway_aborts_total"), 1);
    EXPECT_EQ(metric("nereid_gateway_parse_errors_total"), 1);
    EXPECT_EQ(metric(R"(nereid_engine_running{model="m",worker="fake-0"})"), 3);
    auto failed = chat(R"(,"stream":true)");
    worker.say(2, "x");
    worker.finish(2, model::EndReason::kFailed, Error{Code::kInternal, "lost"});
    loop.settle();
    EXPECT_EQ(metric(R"(nereid_gateway_requests_total{route="chat_completions",status="failed"})"),
              1);  // A29
    EXPECT_EQ(metric(R"(nereid_gateway_requests_total{route="chat_completions",status="2xx"})"), 1);
}

}  // namespace
}  // namespace nereid::gateway
