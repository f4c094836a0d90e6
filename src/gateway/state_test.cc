// Responses with state, jobs, repeated requests: with an engine that the test controls, in virtual
// time. What clients see of it is in tests/e2e.
#include <gmock/gmock.h>

#include "base/hash.h"
#include "gateway/gateway_fixture.h"
#include "gateway/json_list.h"
#include "gateway/multipart.h"
#include "gateway/recording.h"
#include "store/records.h"

namespace nereid::gateway {
namespace {

using testing::HasSubstr;

class StateTest : public GatewayTest {
  protected:
    std::unique_ptr<Client> post(std::string_view path, std::string_view body,
                                 std::string_view headers = {}) {
        auto c = client();
        c->post(path, body, headers);
        loop.settle();
        return c;
    }
    std::unique_ptr<Client> get(std::string_view path) {
        auto c = client();
        c->get(path);
        loop.settle();
        return c;
    }
    std::string id_of(const Client& c) { return at(c.json(), "id").as_string(); }
    void answer(std::size_t job, std::string_view text) {
        worker.say(job, text);
        worker.finish(job);
        loop.settle();
    }
};

TEST_F(StateTest, AResponseIsStoredBeforeItsEndLeaves) {
    start();
    auto c = post("/v1/responses", R"({"model":"m","input":"hi"})");
    ASSERT_EQ(worker.jobs.size(), 1u);
    answer(0, "ok");
    ASSERT_EQ(c->status(), 200) << c->raw;
    auto again = get("/v1/responses/" + id_of(*c));
    EXPECT_EQ(again->body(), c->body());
    auto next =
        post("/v1/responses",
             fmt::format(R"({{"model":"m","input":"yo","previous_response_id":"{}"}})", id_of(*c)));
    ASSERT_EQ(worker.jobs.size(), 2u);
    // "hi" + end, "ok" + end, "yo" + end
    EXPECT_EQ(worker.jobs[1].request.prompt.size(), 9u);
    answer(1, "x");
    EXPECT_EQ(at(next->json(), "previous_response_id"), Json(id_of(*c)));
}

// The context is 100 tokens; a message costs its bytes and one more.
TEST_F(StateTest, TruncationDropsTheFewestOldestTurns) {
    start();
    const auto ask = [&](std::string_view last, std::string_view more) {
        const auto message = [](std::string_view role, std::size_t length) {
            return fmt::format(R"({{"role":"{}","content":"{}"}})", role, std::string(length, 'x'));
        };
        return post("/v1/responses",
                    fmt::format(R"({{"model":"m","instructions":"be","input":[{},{},{},{},{}]{}}})",
                                message("user", 30), message("assistant", 20), message("user", 25),
                                message("assistant", 15), last, more));
    };
    constexpr std::string_view kLast = R"({"role":"user","content":"0123456789"})";
    auto refused = ask(kLast, "");
    EXPECT_EQ(refused->status(), 400);
    EXPECT_EQ(at(refused->json(), "error.code"), Json("context_length_exceeded"));
    EXPECT_EQ(ask(kLast, R"(,"truncation":"disabled")")->status(), 400);

    auto one = ask(kLast, R"(,"truncation":"auto")");
    ASSERT_EQ(worker.jobs.size(), 1u) << one->raw;
    EXPECT_EQ(worker.jobs[0].request.prompt.size(), 3u + 26 + 16 + 11);
    EXPECT_EQ(worker.jobs[0].request.max_tokens, 44u);
    answer(0, "ok");
    EXPECT_EQ(at(one->json(), "truncation"), Json("auto"));
    EXPECT_EQ(at(one->json(), "usage.input_tokens"), Json(56));
    EXPECT_EQ(at(access_lines().back(), "dropped_messages"), Json(2));

    auto two = ask(kLast, R"(,"truncation":"auto","max_output_tokens":60)");
    ASSERT_EQ(worker.jobs.size(), 2u) << two->raw;
    EXPECT_EQ(worker.jobs[1].request.prompt.size(), 3u + 11);

    auto fits =
        ask(R"({"role":"user","content":""})", R"(,"truncation":"auto","max_output_tokens":2)");
    ASSERT_EQ(worker.jobs.size(), 3u) << fits->raw;
    EXPECT_EQ(worker.jobs[2].request.prompt.size(), 3u + 31 + 21 + 26 + 16 + 1);

    const std::string long_last = R"({"role":"user","content":")" + std::string(98, 'y') + "\"}";
    auto hopeless = ask(long_last, R"(,"truncation":"auto")");
    EXPECT_EQ(at(hopeless->json(), "error.code"), Json("context_length_exceeded"));
    EXPECT_THAT(hopeless->body(), HasSubstr("resulted in 196 tokens"));
}

TEST_F(StateTest, ABackgroundResponseOutlivesItsConnection) {
    start();
    auto c = post("/v1/responses", R"({"model":"m","input":"hi","background":true,"stream":true})");
    ASSERT_EQ(worker.jobs.size(), 1u);
    worker.say(0, "a");
    loop.settle();
    const auto created = c->body().find("\"id\":\"resp_");
    ASSERT_NE(created, std::string::npos) << c->raw;
    const std::string id = c->body().substr(created + 6, 29);
    c->hang_up();
    loop.settle();
    EXPECT_EQ(worker.aborts, 0);
    EXPECT_EQ(at(get("/v1/responses/" + id)->json(), "status"), Json("in_progress"));
    auto follower = get("/v1/responses/" + id + "?stream=true&starting_after=1");
    EXPECT_THAT(follower->body(), HasSubstr("\"sequence_number\":2"));
    EXPECT_THAT(follower->body(), Not(HasSubstr("\"sequence_number\":1,")));
    answer(0, "b");
    EXPECT_TRUE(follower->last_chunk_seen());
    EXPECT_THAT(follower->body(), HasSubstr("response.completed"));
    EXPECT_EQ(at(get("/v1/responses/" + id)->json(), "status"), Json("completed"));
    auto late = get("/v1/responses/" + id + "?stream=true&starting_after=1");
    EXPECT_EQ(late->body(), follower->body());
}

TEST_F(StateTest, CancellingABackgroundResponseAbortsItOnce) {
    start();
    auto c = post("/v1/responses", R"({"model":"m","input":"hi","background":true})");
    EXPECT_EQ(at(c->json(), "status"), Json("queued"));
    worker.say(0, "a");
    loop.settle();
    auto cancel = client();
    cancel->post("/v1/responses/" + id_of(*c) + "/cancel", "{}");
    loop.advance(100ms);
    EXPECT_EQ(at(cancel->json(), "status"), Json("cancelled")) << cancel->raw;
    EXPECT_EQ(worker.aborts, 1);
    EXPECT_EQ(worker.open_sessions(), 0);
    EXPECT_EQ(at(get("/v1/responses/" + id_of(*c))->json(), "status"), Json("cancelled"));
    // What had come of its stream is there, and ends as it did.
    auto replay = get("/v1/responses/" + id_of(*c) + "?stream=true");
    EXPECT_THAT(replay->body(), HasSubstr("\"delta\":\"a\""));
    EXPECT_THAT(replay->raw, Not(HasSubstr(": cut")));
    EXPECT_TRUE(replay->closed);
    EXPECT_FALSE(replay->last_chunk_seen());
}

TEST_F(StateTest, DestroyingTheGatewayEndsJobs) {
    start();
    auto c = post("/v1/responses", R"({"model":"m","input":"hi","background":true})");
    ASSERT_EQ(worker.open_sessions(), 1);
    gateway.reset();
    loop.settle();
    EXPECT_EQ(worker.open_sessions(), 0);
}

// A database in memory whose writes of running streams can be made to fail.
class FailingDatabase final : public store::Database {
  public:
    explicit FailingDatabase(std::unique_ptr<store::Database> inner) : inner_(std::move(inner)) {}
    Result<void> write(const std::vector<store::Change>& changes) override {
        const bool part = std::ranges::any_of(changes, [](const store::Change& c) {
            return c.op == store::Change::Op::kPut && c.record.key.kind == "response_part";
        });
        if (!part || failures == 0) return inner_->write(changes);
        --failures;
        if (fails_after_writing) TRY_VOID(inner_->write(changes));
        return err(Code::kUnavailable, "the connection broke");
    }
    Result<store::Record> get(const store::Key& key, std::int64_t now) override {
        return inner_->get(key, now);
    }
    Result<std::vector<store::Record>> list(const store::ListQuery& q, std::int64_t now) override {
        return inner_->list(q, now);
    }
    Result<std::uint64_t> expire(std::int64_t now, std::uint32_t limit) override {
        return inner_->expire(now, limit);
    }
    std::size_t parts() {
        const store::ListQuery all{
            .kind = "response_part", .tenant = {}, .parent = {}, .after = {}};
        return inner_->list(all, 0)->size();
    }
    int failures = 0;
    bool fails_after_writing = false;

  private:
    std::unique_ptr<store::Database> inner_;
};

// Two gateways on one database. The first runs what is asked of it; the second has its own engine.
class TwoGateways : public StateTest {
  protected:
    TwoGateways() {
        auto made = std::make_unique<FailingDatabase>(*store::open_sqlite(":memory:"));
        database = made.get();
        records_ = std::make_shared<store::Records>(std::move(made), loop);
        state_ = {.records = records_, .shared = true, .process_id = "one"};
        start();
        state_.process_id = "two";
        second = make(net2_, worker2);
        loop.settle();
    }
    ~TwoGateways() override { second.reset(); }

    std::unique_ptr<Client> there(std::string_view method, std::string_view path) {
        auto c = std::make_unique<Client>(net2_);
        c->request(method, path, {}, {});
        loop.settle();
        return c;
    }
    std::string background() {
        return id_of(*post("/v1/responses", R"({"model":"m","input":"hi","background":true})"));
    }
    std::string status_there(const std::string& id) {
        return at(there("GET", "/v1/responses/" + id)->json(), "status").as_string();
    }

    FailingDatabase* database = nullptr;
    FakeWorker worker2;
    std::unique_ptr<Gateway> second;

  private:
    std::shared_ptr<store::Records> records_;
    io::TestNetwork net2_{loop};
};

TEST_F(TwoGateways, ARunningStreamIsFollowedAtTheOther) {
    const std::string id = background();
    EXPECT_EQ(status_there(id), "queued");
    auto early = there("GET", "/v1/responses/" + id + "?stream=true");
    loop.advance(1s);
    EXPECT_EQ(early->raw, "");
    worker.say(0, "a");
    loop.advance(1s);
    EXPECT_THAT(early->body(), HasSubstr("\"delta\":\"a\""));
    EXPECT_EQ(status_there(id), "in_progress");
    auto late = there("GET", "/v1/responses/" + id + "?stream=true&starting_after=1");
    EXPECT_THAT(late->body(), HasSubstr("\"sequence_number\":2,"));
    EXPECT_THAT(late->body(), Not(HasSubstr("\"sequence_number\":1,")));
    auto here = get("/v1/responses/" + id + "?stream=true");
    auto left = there("GET", "/v1/responses/" + id + "?stream=true");
    left->hang_up();
    for (const char* text : {"b", "c", "d"}) {
        worker.say(0, text);
        loop.advance(1s);
        EXPECT_THAT(early->body(), HasSubstr(fmt::format("\"delta\":\"{}\"", text)));
    }
    EXPECT_EQ(database->parts(), 4u);
    answer(0, "e");
    loop.advance(1s);
    EXPECT_TRUE(early->last_chunk_seen());
    EXPECT_TRUE(late->last_chunk_seen());
    EXPECT_EQ(early->body(), here->body());
    EXPECT_TRUE(here->body().ends_with(late->body()));
    EXPECT_EQ(database->parts(), 0u);
    EXPECT_EQ(there("GET", "/v1/responses/" + id + "?stream=true")->body(), here->body());
    EXPECT_TRUE(worker2.jobs.empty());
}

TEST_F(TwoGateways, APartThatCannotBeWrittenIsTriedAgainAsItIs) {
    for (const bool after : {false, true}) {
        const std::size_t job = worker.jobs.size();
        database->fails_after_writing = after;
        database->failures = 3;
        const std::string id = background();
        auto follower = there("GET", "/v1/responses/" + id + "?stream=true");
        for (const char* text : {"a", "b", "c", "d", "e"}) {
            worker.say(job, text);
            loop.advance(400ms);
        }
        answer(job, "f");
        loop.advance(1s);
        EXPECT_EQ(follower->body(), get("/v1/responses/" + id + "?stream=true")->body());
        EXPECT_EQ(database->parts(), 0u);
    }
    EXPECT_EQ(metric("nereid_gateway_stream_parts_failed_total"), 6);
}

TEST_F(TwoGateways, FollowersOfWhatEndsWithoutAStreamAreTold) {
    // Cancelled at the other gateway: there is no whole stream to come.
    const std::string id = background();
    worker.say(0, "a");
    loop.advance(1s);
    auto follower = there("GET", "/v1/responses/" + id + "?stream=true");
    EXPECT_FALSE(follower->body().empty());
    there("POST", "/v1/responses/" + id + "/cancel");
    loop.advance(5s);
    EXPECT_TRUE(follower->closed);
    EXPECT_FALSE(follower->last_chunk_seen());
    EXPECT_EQ(status_there(id), "cancelled");
    auto none = there("GET", "/v1/responses/" + id + "?stream=true");
    loop.advance(5s);
    EXPECT_EQ(none->status(), 400);
    EXPECT_THAT(none->body(), HasSubstr("no stream"));
    // The one that ran it hears of it when it renews its lease, and takes its parts away.
    loop.advance(60s);
    EXPECT_EQ(worker.aborts, 1);
    EXPECT_EQ(database->parts(), 0u);
    // A response that was not in the background.
    auto plain = post("/v1/responses", R"({"model":"m","input":"hi"})");
    answer(1, "ok");
    EXPECT_EQ(there("GET", "/v1/responses/" + id_of(*plain) + "?stream=true")->status(), 400);
}

TEST_F(TwoGateways, ATakeOverCutsFollowersAndIsANewStream) {
    const std::string id = background();
    worker.say(0, "old");
    loop.advance(1s);
    auto follower = there("GET", "/v1/responses/" + id + "?stream=true");
    EXPECT_THAT(follower->body(), HasSubstr("old"));
    EXPECT_EQ(database->parts(), 1u);
    gateway.reset();
    loop.advance(90s);
    ASSERT_EQ(worker2.jobs.size(), 1u);
    EXPECT_TRUE(follower->closed);
    EXPECT_FALSE(follower->last_chunk_seen());
    auto again = there("GET", "/v1/responses/" + id + "?stream=true");
    worker2.say(0, "new");
    worker2.finish(0);
    loop.advance(1s);
    EXPECT_TRUE(again->last_chunk_seen());
    EXPECT_THAT(again->body(), HasSubstr("new"));
    EXPECT_THAT(again->body(), Not(HasSubstr("old")));
    EXPECT_EQ(database->parts(), 0u);
}

// More than a page of the list.
TEST_F(TwoGateways, AllThatADeadProcessHasLeftIsTakenUp) {
    constexpr int kNotes = 250;
    std::vector<store::Change> changes(kNotes);
    for (int i = 0; i < kNotes; ++i) {
        changes[static_cast<std::size_t>(i)].record = {
            .key = {.kind = "pending", .tenant = {}, .id = fmt::format("/resp_{}", i)},
            .body = fmt::format(
                R"({{"kind":"response","id":"resp_{}","tenant":"","owner":"dead","alive_until":0,"tries":1}})",
                i)};
    }
    ASSERT_TRUE(database->write(changes).ok());
    loop.advance(60s);
    store::ListQuery all{.kind = "pending", .tenant = {}, .parent = {}, .after = {}};
    all.limit = kNotes;
    const auto notes = database->list(all, 0);
    ASSERT_EQ(notes->size(), static_cast<std::size_t>(kNotes));
    for (const store::Record& note : *notes) EXPECT_THAT(note.body, Not(HasSubstr("dead")));
}

TEST_F(StateTest, OneTenantSeesNothingOfAnother) {
    std::ofstream(log_path() + ".keys")
        << "a:" << to_hex(sha256(as_bytes(std::string_view("ka"))))
        << "\nb:" << to_hex(sha256(as_bytes(std::string_view("kb")))) << "\n";
    options.api_keys = log_path() + ".keys";
    start();
    auto c = post("/v1/responses", R"({"model":"m","input":"hi"})", "x-api-key: ka\r\n");
    answer(0, "ok");
    ASSERT_EQ(c->status(), 200);
    const auto read = [&](std::string_view key) {
        auto r = client();
        r->get("/v1/responses/" + id_of(*c), fmt::format("x-api-key: {}\r\n", key));
        loop.settle();
        return r->status();
    };
    EXPECT_EQ(read("ka"), 200);
    EXPECT_EQ(read("kb"), 404);
    EXPECT_EQ(read("kc"), 401);
    std::filesystem::remove(log_path() + ".keys");
}

TEST_F(StateTest, ARepeatedRequestRunsOnceAndOutlivesItsClients) {
    start();
    const auto ask = [&] {
        return post("/v1/chat/completions", chat_body(), "idempotency-key: k1\r\n");
    };
    auto first = ask();
    auto second = ask();
    EXPECT_EQ(worker.jobs.size(), 1u);
    first->hang_up();
    second->hang_up();
    loop.advance(5s);
    EXPECT_EQ(worker.aborts, 0);
    auto third = ask();
    answer(0, "ok");
    EXPECT_EQ(at(third->json(), "choices.0.message.content"), Json("ok"));
    EXPECT_EQ(ask()->body(), third->body());
    EXPECT_EQ(worker.jobs.size(), 1u);
    auto other = post("/v1/chat/completions", chat_body(",\"seed\":1"), "idempotency-key: k1\r\n");
    EXPECT_EQ(other->status(), 409);
    EXPECT_EQ(other->header("x-should-retry"), "false");  // SDKs repeat a 409 otherwise
}

TEST_F(StateTest, ARepeatedRequestThatNobodyWantsIsAborted) {
    start();
    auto c = post("/v1/chat/completions", chat_body(), "idempotency-key: k1\r\n");
    c->hang_up();
    loop.advance(29s);
    EXPECT_EQ(worker.aborts, 0);
    loop.advance(2s);
    EXPECT_EQ(worker.aborts, 1);
    EXPECT_EQ(worker.open_sessions(), 0);
}

TEST_F(StateTest, MessagesSayWhetherTheBudgetOrTheContextEnded) {
    start();
    for (const auto& [budget, reason] : {std::pair{1000, "model_context_window_exceeded"},
                                         std::pair{97, "max_tokens"}, std::pair{5, "max_tokens"}}) {
        const std::size_t job = worker.jobs.size();
        auto c = post(
            "/v1/messages",
            fmt::format(
                R"({{"model":"m","max_tokens":{},"messages":[{{"role":"user","content":"hi"}}]}})",
                budget));
        worker.finish(job, model::EndReason::kLength);
        loop.settle();
        EXPECT_EQ(at(c->json(), "stop_reason"), Json(reason)) << budget;
    }
}

TEST_F(StateTest, MessagesErrorsAndHeaders) {
    options.queue_max = 1;
    start();
    auto ok =
        post("/v1/messages",
             R"({"model":"m","max_tokens":1000,"messages":[{"role":"user","content":"hi"}]})");
    ASSERT_EQ(worker.jobs.size(), 1u);
    EXPECT_EQ(worker.jobs[0].request.max_tokens, 97u);  // A61: what is left of the context
    auto full = post("/v1/messages",
                     R"({"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]})");
    EXPECT_EQ(full->status(), 529);
    EXPECT_EQ(at(full->json(), "error.type"), Json("overloaded_error"));
    EXPECT_EQ(full->header("request-id"), at(full->json(), "request_id").as_string());
    EXPECT_EQ(full->header("x-should-retry"), "true");
    EXPECT_FALSE(full->header("retry-after").empty());
    answer(0, "ok");
    EXPECT_EQ(at(ok->json(), "content.0.text"), Json("ok"));
    EXPECT_FALSE(ok->header("request-id").empty());
    auto bad = post("/v1/messages", "{");
    EXPECT_EQ(bad->status(), 400);
    EXPECT_EQ(at(bad->json(), "type"), Json("error"));
}

// What an engine refuses of a grammar is a status, streamed or not; but nobody waits for it long.
TEST_F(StateTest, AGrammarIsRefusedWithAStatus) {
    worker.status.info->grammars = static_cast<std::uint8_t>(model::GrammarKind::kJsonSchema);
    start();
    const auto ask = [&](bool stream) {
        return chat(
            fmt::format(R"(,"response_format":{{"type":"json_object"}},"stream":{})", stream));
    };
    for (const bool stream : {false, true}) {
        const std::size_t job = worker.jobs.size();
        auto c = ask(stream);
        ASSERT_EQ(worker.jobs.size(), job + 1) << c->raw;
        EXPECT_EQ(c->raw, "");
        worker.finish(job, model::EndReason::kFailed,
                      Error{Code::kInvalidArgument, "no such keyword"});
        loop.settle();
        EXPECT_EQ(c->status(), 400) << c->raw;
        EXPECT_EQ(at(c->json(), "error.param"), Json("response_format"));
    }
    auto slow = ask(true);
    loop.advance(1s);
    EXPECT_EQ(slow->raw, "");
    loop.advance(2s);
    EXPECT_EQ(slow->status(), 200);
    answer(2, "{}");
    EXPECT_TRUE(slow->last_chunk_seen());
    auto quick = ask(true);
    worker.start(3);
    loop.settle();
    EXPECT_EQ(quick->status(), 200);
    answer(3, "{}");
}

// OpenAI's finish reasons of forced calls, streamed or not: A23; the grammar goes to the engine:
// A97.
TEST_F(StateTest, ForcedCallsEndAsOpenAiSays_A23_A97_A99) {
    worker.status.info->grammars = static_cast<std::uint8_t>(model::GrammarKind::kLark);
    start();
    constexpr std::string_view kTools =
        R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],)";
    const std::pair<const char*, const char*> cases[] = {
        {R"("tool_choice":"required")", "tool_calls"},
        {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "stop"},
    };
    for (const auto& [choice, reason] : cases) {
        for (const bool stream : {false, true}) {
            const std::size_t job = worker.jobs.size();
            auto c = chat(std::string(kTools) + choice + (stream ? R"(,"stream":true)" : ""));
            ASSERT_EQ(worker.jobs.size(), job + 1) << c->raw;
            EXPECT_EQ(worker.jobs[job].request.grammar_kind, model::GrammarKind::kLark);
            worker.say(job, R"(<tool_call>{"name":"f","arguments":{}}</tool_call>)");
            worker.finish(job);
            loop.settle();
            EXPECT_THAT(c->body(), HasSubstr(fmt::format("\"finish_reason\":\"{}\"", reason)));
            EXPECT_THAT(c->body(), HasSubstr("\"arguments\":\"{}\""));
            // Cut before it had a name: nothing of it is text.
            auto cut = chat(std::string(kTools) + choice + (stream ? R"(,"stream":true)" : ""));
            worker.say(job + 1, R"(<tool_call>{"na)");
            worker.finish(job + 1, model::EndReason::kLength);
            loop.settle();
            EXPECT_THAT(cut->body(), HasSubstr("\"finish_reason\":\"length\""));
            EXPECT_THAT(cut->body(), Not(HasSubstr("tool_call")));
        }
    }
}

TEST_F(StateTest, ModelsSayWhatTheyCan) {
    start();
    const Json m = get("/v1/models/m")->json();
    EXPECT_EQ(at(m, "capabilities.tools"), Json(true));
    EXPECT_EQ(at(m, "capabilities.images"), Json(false));
    EXPECT_EQ(at(m, "capabilities.structured_outputs").dump(), "[]");
    EXPECT_EQ(at(m, "capabilities.limits.context_tokens"), Json(100));
    EXPECT_EQ(at(get("/v1/models/t")->json(), "capabilities.engine"), Json("text"));
}

// ---------------------------------------------------------------- pieces

TEST(Recording, FollowersSeeTheSameWhenTheyComeEarlyOrLate) {
    io::TestLoop loop;
    const auto recording = std::make_shared<Recording>();
    const auto follow = [](std::shared_ptr<Recording> r, io::Loop& here,
                           std::string& out) -> io::Task<void> {
        for (std::size_t offset = 0;;) {
            const auto view = r->from(offset);
            out += view.bytes;
            offset += view.bytes.size();
            if (view.ended) co_return;
            co_await r->changed(here, view.version);
        }
    };
    std::string early, late, never;
    io::RootTask a, b, c;
    a.start(follow(recording, loop, early));
    c.start(follow(recording, loop, never));
    recording->begin({.status = 200, .headers = {}, .streamed = true});
    recording->append("one ");
    loop.settle();
    c.reset();
    EXPECT_EQ(early, "one ");
    b.start(follow(recording, loop, late));
    recording->append("two");
    recording->end(true);
    recording->append("after");
    loop.settle();
    EXPECT_EQ(early, "one two");
    EXPECT_EQ(late, "one two");
    EXPECT_EQ(never, "one ");
}

TEST(FrameSkipper, CountsEventsAndNotComments) {
    const std::string frames = ": hi\n\nevent: a\ndata: 1\n\n: x\n\nevent: b\ndata: 2\n\n";
    EXPECT_EQ(FrameSkipper(0).take(frames), frames);
    EXPECT_EQ(FrameSkipper(1).take(frames), ": x\n\nevent: b\ndata: 2\n\n");
    EXPECT_EQ(FrameSkipper(2).take(frames), "");
    FrameSkipper several(3);
    EXPECT_EQ(several.take(frames), "");
    EXPECT_EQ(several.take("event: c\n\nevent: d\n\n"), "event: d\n\n");
}

TEST(Multipart, ReadsParts) {
    const std::string body =
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\n"
        "content-disposition: form-data; filename=\"a\\\"b; name=x\"; name=\"file\"\r\n"
        "content-type: text/plain ; charset=utf-8\r\n\r\n1\r\n--c\r\n\r\n--b--\r\n";
    const auto parts = parse_multipart("multipart/form-data; boundary=b", body);
    ASSERT_TRUE(parts.ok()) << parts.error().message;
    ASSERT_EQ(parts->size(), 2u);
    EXPECT_EQ((*parts)[0].name, "purpose");
    EXPECT_EQ((*parts)[0].body, "batch");
    EXPECT_EQ((*parts)[1].filename, "a\"b; name=x");
    EXPECT_EQ((*parts)[1].body, "1\r\n--c\r\n");
    EXPECT_EQ((*parts)[0].media_type, "");
    EXPECT_EQ((*parts)[1].media_type, "text/plain");
    for (std::size_t cut = 0; cut + 4 < body.size(); ++cut)
        EXPECT_FALSE(parse_multipart("multipart/form-data; boundary=b", body.substr(0, cut)).ok());
    EXPECT_FALSE(parse_multipart("multipart/form-data", body).ok());
    EXPECT_FALSE(parse_multipart("application/json; boundary=b", body).ok());
}

TEST(Pages, OfAList) {
    Json::Array items;
    for (int i = 0; i < 5; ++i) items.push_back(Json(Json::Object{{"id", fmt::format("i{}", i)}}));
    const auto ids = [&](const char* query) {
        const auto page = read_page(query, true);
        EXPECT_TRUE(page.ok());
        const auto list = page_of(items, *page);
        return list.ok() ? *list : std::string("error");
    };
    EXPECT_THAT(
        ids("limit=2"),
        HasSubstr(
            R"("data":[{"id":"i4"},{"id":"i3"}],"first_id":"i4","last_id":"i3","has_more":true)"));
    EXPECT_THAT(ids("limit=2&order=asc&after=i3"), HasSubstr(R"("data":[{"id":"i4"}])"));
    EXPECT_EQ(ids("after=nope"), "error");
    EXPECT_THAT(ids("limit=2&before_id=i1"),
                HasSubstr(R"("data":[{"id":"i3"},{"id":"i2"}],"first_id":"i3")"));
    EXPECT_THAT(ids("limit=3&before_id=i1"), HasSubstr(R"("has_more":false)"));
    EXPECT_THAT(ids("limit=2&page=page_i3"), HasSubstr(R"("data":[{"id":"i2"},{"id":"i1"}])"));
    EXPECT_THAT(list_object(items, true, true), HasSubstr(R"("next_page":"page_i4")"));
    EXPECT_THAT(list_object(items, false, true), HasSubstr(R"("next_page":null)"));
    EXPECT_FALSE(read_page("page=i3", true).ok());
    EXPECT_FALSE(read_page("after_id=i3&before_id=i1", true).ok());
    EXPECT_FALSE(read_page("limit=0", true).ok());
    EXPECT_FALSE(read_page("order=up", true).ok());
    EXPECT_EQ(query_value("a=1&b=%2Fx+y&c", "b"), "/x y");
    EXPECT_EQ(query_value("a=1&c", "c"), "");
    EXPECT_EQ(query_value("a=1", "b"), std::nullopt);
    EXPECT_EQ(query_values("a%5B%5D=1&b=2&a[]=3", "a[]"), (std::vector<std::string>{"1", "3"}));
}

}  // namespace
}  // namespace nereid::gateway
