// The life of a request on a token engine: streams, whole answers, ends of every kind.
#include <gmock/gmock.h>

#include "base/prng.h"
#include "gateway/gateway_fixture.h"

namespace nereid::gateway {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

using Lifecycle = GatewayTest;

TEST_F(Lifecycle, WholeAnswer) {
    start();
    auto c = chat();
    ASSERT_EQ(worker.jobs.size(), 1u);
    EXPECT_EQ(c->raw, "");
    worker.start(0, 1);
    worker.say(0, "Hello");
    worker.finish(0);
    loop.settle();
    ASSERT_EQ(c->status(), 200) << c->raw;
    const Json j = c->json();
    EXPECT_EQ(at(j, "object").as_string(), "chat.completion");
    EXPECT_EQ(at(j, "choices.0.message.content").as_string(), "Hello");
    EXPECT_EQ(at(j, "choices.0.finish_reason").as_string(), "stop");
    EXPECT_EQ(at(j, "usage.prompt_tokens"), Json(3));
    EXPECT_EQ(at(j, "usage.completion_tokens"), Json(6));
    EXPECT_THAT(c->header("server-timing"), HasSubstr("prefill;dur=30.000"));
    EXPECT_EQ(worker.aborts, 0);
    EXPECT_EQ(worker.open_sessions(), 0);
}

TEST_F(Lifecycle, StreamSendsHeadersAtOnceAndOneChunkPerStep_A58) {
    start();
    auto c = chat(R"(,"stream":true,"stream_options":{"include_usage":true})");
    EXPECT_EQ(c->status(), 200);
    EXPECT_THAT(c->header("content-type"), HasSubstr("text/event-stream"));
    EXPECT_EQ(c->body(), "");
    worker.start(0);
    worker.say(0, "Hel");
    loop.settle();
    EXPECT_THAT(c->body(), HasSubstr(R"("content":"Hel")"));
    worker.say(0, "lo");
    worker.finish(0);
    loop.settle();
    EXPECT_THAT(c->body(), HasSubstr(R"("content":"lo")"));
    EXPECT_THAT(c->body(), HasSubstr(R"("finish_reason":"stop")"));
    EXPECT_THAT(c->body(), HasSubstr(R"("total_tokens":9)"));
    EXPECT_THAT(c->body(), EndsWith("data: [DONE]\n\n"));
    EXPECT_TRUE(c->last_chunk_seen());
    EXPECT_FALSE(c->closed);
}

TEST_F(Lifecycle, KeepAliveCommentsWhileQueuedAndBetweenTokens_A57) {
    start();
    auto c = chat(R"(,"stream":true)");
    loop.advance(9s);
    EXPECT_EQ(c->body(), "");
    loop.advance(1s);
    EXPECT_EQ(c->body(), ": keep-alive\n\n");
    loop.advance(10s);
    EXPECT_EQ(c->body(), ": keep-alive\n\n: keep-alive\n\n");
    loop.advance(5s);
    worker.say(0, "x");
    loop.settle();
    const auto length = c->body().size();
    loop.advance(9900ms);
    EXPECT_EQ(c->body().size(), length);
    loop.advance(200ms);
    EXPECT_THAT(c->body(), EndsWith("\n\n: keep-alive\n\n"));
    worker.finish(0);
    loop.settle();
    EXPECT_TRUE(c->last_chunk_seen());
    EXPECT_EQ(at(access_lines().at(0), "keepalives"), Json(3));
}

TEST_F(Lifecycle, WholeAnswerSurvivesALongGeneration) {
    start();
    auto c = chat();
    loop.advance(1h);
    EXPECT_EQ(c->raw, "");
    worker.say(0, "late");
    worker.finish(0);
    loop.settle();
    EXPECT_EQ(c->status(), 200);
}

TEST_F(Lifecycle, DisconnectInEachPhaseIsExactlyOneAbort_A54_A55) {
    start();
    const auto phases = {0, 1, 2};  // queued, prefilling, decoding
    int expected = 0;
    for (const std::string_view extra : {R"(,"stream":true)", ""}) {
        for (const int phase : phases) {
            auto c = chat(extra);
            const std::size_t job = worker.jobs.size() - 1;
            if (phase > 0) worker.start(job);
            if (phase > 1) worker.say(job, "abc");
            loop.settle();
            c->hang_up();
            loop.settle();
            EXPECT_EQ(worker.aborts, ++expected) << extra << phase;
            EXPECT_FALSE(worker.jobs[job].open);
            EXPECT_EQ(access_lines().size(), static_cast<std::size_t>(expected));
            EXPECT_EQ(at(access_lines().back(), "end").as_string(), "client_gone");
        }
    }
    EXPECT_EQ(loop.live_tasks(), 0u);
}

TEST_F(Lifecycle, StopStringAbortsTheEnginesRequest_A37) {
    start();
    auto c = chat(R"(,"stop":["lo"])");
    worker.say(0, "Hel");
    worker.say(0, "lo, more");
    loop.settle();
    EXPECT_EQ(at(c->json(), "choices.0.message.content").as_string(), "Hel");
    EXPECT_EQ(at(c->json(), "choices.0.finish_reason").as_string(), "stop");
    EXPECT_EQ(worker.aborts, 1);
}

TEST_F(Lifecycle, StopStringEndsItsOwnChoiceAtOnce_A37) {
    start();
    auto c = chat(R"(,"stop":["lo"],"n":2)");
    worker.say(0, "Hello");
    worker.say(1, "wor");
    loop.settle();
    EXPECT_EQ(worker.aborts, 1);
    EXPECT_FALSE(worker.jobs[0].open);
    EXPECT_TRUE(worker.jobs[1].open);
    worker.say(1, "ld");
    worker.finish(1);
    loop.settle();
    EXPECT_EQ(at(c->json(), "choices.0.message.content").as_string(), "Hel");
    EXPECT_EQ(at(c->json(), "choices.1.message.content").as_string(), "world");
    EXPECT_EQ(worker.aborts, 1);
    EXPECT_EQ(metric("nereid_gateway_aborts_total"), 1);
}

TEST_F(Lifecycle, SeveralChoicesShareOneEndAndOnePromptCount) {
    start();
    auto c = chat(R"(,"n":3,"seed":10)");
    ASSERT_EQ(worker.jobs.size(), 3u);
    for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(worker.jobs[i].request.sampling.seed, 10 + i);
    worker.say(2, "c");
    worker.finish(2);
    worker.say(0, "a");
    worker.finish(0, model::EndReason::kLength);
    loop.settle();
    EXPECT_EQ(c->raw, "");
    worker.say(1, "b");
    worker.finish(1);
    loop.settle();
    const Json j = c->json();
    EXPECT_EQ(at(j, "choices.0.message.content").as_string(), "a");
    EXPECT_EQ(at(j, "choices.0.finish_reason").as_string(), "length");
    EXPECT_EQ(at(j, "choices.1.message.content").as_string(), "b");
    EXPECT_EQ(at(j, "choices.2.index"), Json(2));
    EXPECT_EQ(at(j, "usage.prompt_tokens"), Json(3));
    EXPECT_EQ(access_lines().size(), 1u);
}

TEST_F(Lifecycle, CompletionsTakeSeveralPrompts) {
    start();
    auto c = client();
    c->post("/v1/completions", R"({"model":"m","prompt":["ab","c<|im_end|>"],"max_tokens":5})");
    loop.settle();
    ASSERT_EQ(worker.jobs.size(), 2u);
    EXPECT_EQ(worker.jobs[0].request.prompt, (std::vector<TokenId>{ByteTokenizer::kBos, 'a', 'b'}));
    EXPECT_EQ(worker.jobs[1].request.prompt,
              (std::vector<TokenId>{ByteTokenizer::kBos, 'c', ByteTokenizer::kImEnd}));
    EXPECT_EQ(worker.jobs[0].request.max_tokens, 5u);
    for (std::size_t i : {1u, 0u}) {
        worker.say(i, i == 0 ? "X" : "Y");
        worker.finish(i);
    }
    loop.settle();
    EXPECT_EQ(at(c->json(), "choices.0.text").as_string(), "X") << c->raw;
    EXPECT_EQ(at(c->json(), "choices.1.text").as_string(), "Y");
    EXPECT_EQ(at(c->json(), "usage.prompt_tokens"), Json(6));
}

TEST_F(Lifecycle, EmbeddingsOfABatchAreBoundedInTheEngine) {
    start();
    std::string input;
    for (int i = 0; i < 50; ++i) input += fmt::format("{}\"x{}\"", i == 0 ? "" : ",", i);
    auto c = client();
    c->post("/v1/embeddings", fmt::format(R"({{"model":"m","input":[{}]}})", input));
    loop.settle();
    EXPECT_EQ(worker.jobs.size(), 32u);
    for (std::size_t i = 0; i < 50; ++i) {
        pools::Update u;
        u.embedding = model::Embedding{{}, {static_cast<float>(i), 1.0f}};
        u.finished = model::Finished{.id = {}, .reason = model::EndReason::kPrefilled};
        ASSERT_LT(i, worker.jobs.size());
        EXPECT_EQ(worker.jobs[i].request.mode, model::AddMode::kEmbed);
        worker.update(i, std::move(u));
        loop.settle();
    }
    ASSERT_EQ(c->status(), 200) << c->raw;
    EXPECT_EQ(at(c->json(), "data.49.embedding.0").as_double(), 49.0);
}

TEST_F(Lifecycle, EngineErrorBeforeAnythingIsAStatus_A31) {
    start();
    worker.refuse = Error{Code::kOverloaded, "the queue is full"};
    auto c = chat(R"(,"stream":true)");
    EXPECT_EQ(c->status(), 503);
    EXPECT_EQ(c->header("retry-after"), "1");
    EXPECT_EQ(c->header("x-should-retry"), "true");
    EXPECT_EQ(at(c->json(), "error.message").as_string(), "the queue is full");
}

TEST_F(Lifecycle, EngineErrorInAStreamIsAFrameWithoutDone_A26_A31) {
    start();
    auto c = chat(R"(,"stream":true)");
    worker.say(0, "Hel");
    loop.settle();
    worker.lose(0, {Code::kWorkerLost, "the engine died"});
    loop.settle();
    EXPECT_EQ(c->status(), 200);
    EXPECT_THAT(c->body(), HasSubstr(R"("content":"Hel")"));
    EXPECT_THAT(c->body(), HasSubstr(R"(data: {"error":{"message":"the engine died")"));
    EXPECT_THAT(c->body(), Not(HasSubstr("[DONE]")));
    EXPECT_EQ(at(access_lines().at(0), "end").as_string(), "worker_lost");
    EXPECT_EQ(worker.aborts, 0);
}

TEST_F(Lifecycle, EngineErrorInAWholeAnswerIsAStatus) {
    start();
    auto c = chat(R"(,"n":2)");
    worker.say(0, "Hel");
    worker.finish(0);
    worker.finish(1, model::EndReason::kFailed, Error{Code::kInternal, "kernel fault"});
    loop.settle();
    EXPECT_EQ(c->status(), 500);
    EXPECT_EQ(c->header("x-should-retry"), "false");
    EXPECT_EQ(at(c->json(), "error.type").as_string(), "server_error");
}

TEST_F(Lifecycle, AbortByTheEngineIsAnErrorNotAFinishReason_A26) {
    start();
    auto c = chat(R"(,"stream":true)");
    worker.say(0, "Hel");
    worker.finish(0, model::EndReason::kAborted);
    loop.settle();
    EXPECT_THAT(c->body(), HasSubstr(R"("error")"));
    EXPECT_THAT(c->body(), Not(HasSubstr("[DONE]")));
}

TEST_F(Lifecycle, KeepAliveConnectionServesManyRequests) {
    start();
    auto c = client();
    for (std::size_t i = 0; i < 5; ++i) {
        c->post("/v1/chat/completions", chat_body(i % 2 == 0 ? R"(,"stream":true)" : ""));
        loop.settle();
        worker.say(i, "x");
        worker.finish(i);
        loop.settle();
        EXPECT_EQ(c->status(), 200);
    }
    EXPECT_EQ(access_lines().size(), 5u);
}

TEST_F(Lifecycle, AccessLineTellsHowItWentAndNoText) {
    start();
    auto c = chat(R"(,"stream":true,"verbosity":"low")",
                  "x-request-id: abc-1\r\ntraceparent: "
                  "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n");
    worker.start(0, 2);
    loop.advance(20ms);
    worker.say(0, "secret words");
    loop.advance(20ms);
    worker.finish(0);
    loop.settle();
    const auto lines = access_lines();
    ASSERT_EQ(lines.size(), 1u);
    const Json& l = lines[0];
    EXPECT_EQ(at(l, "id").as_string(), "abc-1");
    EXPECT_EQ(at(l, "trace").as_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    EXPECT_EQ(at(l, "route").as_string(), "chat_completions");
    EXPECT_EQ(at(l, "model").as_string(), "m");
    EXPECT_EQ(at(l, "status"), Json(200));
    EXPECT_EQ(at(l, "stream"), Json(true));
    EXPECT_EQ(at(l, "end").as_string(), "stop");
    EXPECT_EQ(at(l, "worker").as_string(), "fake-0");
    EXPECT_EQ(at(l, "first_token_ms").as_double(), 20.0);
    EXPECT_EQ(at(l, "total_ms").as_double(), 40.0);
    EXPECT_EQ(at(l, "queue_ms").as_double(), 2.0);
    EXPECT_EQ(at(l, "prefill_ms").as_double(), 30.0);
    EXPECT_EQ(at(l, "in_tokens"), Json(3));
    EXPECT_EQ(at(l, "out_tokens"), Json(13));
    EXPECT_THAT(l.dump(), Not(HasSubstr("secret")));
    EXPECT_THAT(l.dump(), Not(HasSubstr("Hi")));
    EXPECT_EQ(c->header("x-request-id"), "abc-1");
}

TEST_F(Lifecycle, AClientThatDoesNotReadIsCutAndItsRequestAborted) {
    io::TestNetwork narrow(loop, 2048);  // less room than the answer
    start();
    auto c = chat(R"(,"stream":true)");
    // The client's own side is read by the fixture at once, so a raw peer that never reads stands
    // in for it.
    auto peer = net.dial();
    io::RootTask sending;
    const std::string body = chat_body(R"(,"stream":true)");
    const std::string text =
        fmt::format("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{}",
                    body.size(), body);
    sending.start([](io::Stream& s, const std::string& t) -> io::Task<void> {
        const std::string_view pieces[] = {t};
        (void)co_await s.write(pieces);
    }(*peer, text));
    loop.settle();
    ASSERT_EQ(worker.jobs.size(), 2u);
    for (int i = 0; i < 5000 && worker.jobs[1].open; ++i) {
        worker.say(1, "0123456789");
        loop.settle();
    }
    loop.advance(61s);
    EXPECT_FALSE(worker.jobs[1].open);
    EXPECT_EQ(worker.aborts, 1);
    EXPECT_EQ(at(access_lines().at(0), "end").as_string(), "slow_client");
    c->hang_up();
    loop.settle();
}

// Whatever happens in whatever order: one line, no session left, no slot left.
TEST_F(Lifecycle, ExactlyOneEndUnderRandomOrders) {
    options.queue_max = 1000;
    start();
    Prng prng(20251129);
    std::size_t requests = 0;
    for (int round = 0; round < 300; ++round) {
        std::vector<std::unique_ptr<Client>> clients;
        const std::size_t first_job = worker.jobs.size();
        const auto count = 1 + prng.below(3);
        for (std::uint64_t i = 0; i < count; ++i) {
            const std::string extra = fmt::format(R"(,"stream":{},"n":{},"stop":["qq"])",
                                                  prng.chance(0.5), 1 + prng.below(3));
            clients.push_back(client());
            clients.back()->post("/v1/chat/completions", chat_body(extra));
            if (prng.chance(0.9)) loop.settle();
            ++requests;
        }
        for (int step = 0; step < 30; ++step) {
            const auto jobs = worker.jobs.size() - first_job;
            const std::size_t job = first_job + (jobs == 0 ? 0 : prng.below(jobs));
            const bool live = jobs != 0 && !worker.jobs[job].ended;
            switch (prng.below(8)) {
                case 0:
                    clients[prng.below(count)]->hang_up();
                    break;
                case 1:
                    if (live) worker.start(job);
                    break;
                case 2:
                    if (live) worker.finish(job);
                    break;
                case 3:
                    if (live) worker.lose(job, {Code::kWorkerLost, "gone"});
                    break;
                case 4:
                    if (live) worker.say(job, "aqq");
                    break;
                case 5:
                    loop.advance(Duration(prng.below(12'000'000'000)));
                    break;
                default:
                    if (live) worker.say(job, "q");
                    break;
            }
            if (prng.chance(0.5)) loop.settle();
        }
        for (std::size_t j = first_job; j < worker.jobs.size(); ++j) {
            if (!worker.jobs[j].ended) worker.finish(j);
        }
        loop.settle();
        for (std::size_t j = first_job; j < worker.jobs.size(); ++j) {
            if (!worker.jobs[j].ended) worker.finish(j);  // submitted late
        }
        loop.settle();
        EXPECT_EQ(worker.open_sessions(), 0);
        clients.clear();
        loop.settle();
    }
    // A client that hung up before its request was read has no request.
    EXPECT_LE(access_lines().size(), requests);
    EXPECT_GT(access_lines().size(), requests * 3 / 4);
    EXPECT_EQ(metric("nereid_gateway_requests_in_flight"), 0);
}

}  // namespace
}  // namespace nereid::gateway
