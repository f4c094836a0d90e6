// Several backends behind one model: choice, retry before the first byte, breakers, membership,
// shards.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "gateway/gateway_testing.h"
#include "gateway/routing/routed_text.h"
#include "gateway/routing/routed_worker.h"
#include "io/http_testing.h"
#include "io/root_task.h"

namespace nereid::gateway {
namespace {

using Events = std::vector<model::Event>;
using router::Health;
using router::Outcome;

Events text(std::string s) {
    Events out;
    out.emplace_back(model::TextDelta{.choice = 0, .text = std::move(s), .tokens = 1});
    return out;
}
Events done() {
    Events out;
    out.emplace_back(model::Done{});
    return out;
}
Events failed(Code code) {
    Events out;
    out.emplace_back(model::Failed{{code, "no"}});
    return out;
}

// A server that answers as the test says, or waits until it is released.
struct Server {
    std::vector<Events> script{text("a"), done()};
    bool hold = false;
    int asked = 0;
    int running = 0;
    int made = 0;
    int closed = 0;
    std::vector<io::Signal*> waiting;
};

class ScriptedServer final : public pools::TextBackend {
  public:
    ScriptedServer(io::Loop& loop, Server& server) : loop_(loop), server_(server) { ++server.made; }
    ~ScriptedServer() override { ++server_.closed; }
    io::Task<void> run(const model::Request&, OnEvents on_events, std::string* served_by) override {
        struct Running {
            Server& server;
            io::Signal signal;
            Running(io::Loop& l, Server& s) : server(s), signal(l) { ++s.running; }
            ~Running() {
                --server.running;
                std::erase(server.waiting, &signal);
            }
        } running(loop_, server_);
        ++server_.asked;
        if (served_by != nullptr) *served_by = "x";
        if (server_.hold) {
            server_.waiting.push_back(&running.signal);
            co_await running.signal.wait();
        }
        auto script = server_.script;
        for (Events& events : script) {
            if (!co_await on_events(events)) co_return;
        }
    }

  private:
    io::Loop& loop_;
    Server& server_;
};

class RoutingTest : public testing::Test {
  protected:
    explicit RoutingTest(RoutingOptions o = {.slow_start = 0s}) : options(std::move(o)) {}

    void start(const std::vector<std::string>& urls, std::size_t shards = 1) {
        routed = std::make_unique<RoutedText>(
            options, "m", urls,
            [this](const ShardContext& c, const std::string& url) {
                return std::make_unique<ScriptedServer>(*c.loop, servers[url]);
            },
            probe);
        for (std::size_t i = 0; i < shards; ++i) {
            backends.push_back(routed->backend_for({.loop = &loop, .network = nullptr}));
        }
    }
    struct Answer {
        io::RootTask task;
        std::string text;
        std::optional<Error> error;
        int starts = 0;
        bool done = false;
    };
    std::unique_ptr<Answer> ask(const std::string& prompt = "hello", std::size_t shard = 0) {
        auto answer = std::make_unique<Answer>();
        auto& request = requests.emplace_back();
        request.messages.push_back(
            {.role = model::Role::kUser, .parts = {model::TextPart{prompt}}});
        answer->task.start(backends[shard]->run(
            request, [a = answer.get()](Events& events) { return take(*a, events); }));
        loop.settle();
        return answer;
    }
    static io::Task<bool> take(Answer& a, Events& events) {
        for (const model::Event& e : events) {
            if (const auto* t = std::get_if<model::TextDelta>(&e)) a.text += t->text;
            if (const auto* f = std::get_if<model::Failed>(&e)) a.error = f->error;
            a.starts += std::holds_alternative<model::Start>(e) ? 1 : 0;
            a.done = a.done || std::holds_alternative<model::Done>(e);
        }
        co_return true;
    }
    double metric(std::string_view sample) {
        const std::string all = "\n" + metrics.render();
        const auto at = all.find("\n" + std::string(sample) + " ");
        return at == std::string::npos ? -1 : std::stod(all.substr(at + sample.size() + 2));
    }

    io::TestLoop loop;
    ops::Registry metrics;
    RoutingProbe probe{metrics};
    RoutingOptions options;
    std::map<std::string, Server> servers;
    std::deque<model::Request> requests;
    std::unique_ptr<RoutedText> routed;
    std::vector<std::unique_ptr<pools::TextBackend>> backends;
};

TEST_F(RoutingTest, RequestsSpreadByWhatRuns) {
    for (const char* u : {"a", "b", "c"}) servers[u].hold = true;
    start({"a", "b", "c"});
    std::vector<std::unique_ptr<Answer>> held;
    for (int i = 0; i < 9; ++i) held.push_back(ask());
    for (const char* u : {"a", "b", "c"}) EXPECT_EQ(servers[u].running, 3) << u;
    EXPECT_EQ(metric(R"(nereid_router_in_flight{backend="a"})"), 3);
    held.clear();  // clients go
    EXPECT_EQ(metric(R"(nereid_router_in_flight{backend="a"})"), 0);
    EXPECT_EQ(metric(R"(nereid_router_chosen_total{backend="b"})"), 3);
    EXPECT_GT(metric(R"(nereid_router_balance_efficiency{model="m",shard="0"})"), 0);
}

TEST_F(RoutingTest, AConversationStaysWhereItsPrefixIs) {
    start({"a", "b", "c", "d"});
    std::string prompt(20'000, 'x');
    ask(prompt);
    std::string first;
    for (const auto& [url, s] : servers) {
        if (s.asked == 1) first = url;
    }
    for (int turn = 0; turn < 5; ++turn) {
        prompt += std::string(700, static_cast<char>('a' + turn));
        ask(prompt);
        loop.advance(10s);
    }
    EXPECT_EQ(servers[first].asked, 6);
}

// Before the first byte a request is tried once elsewhere, whatever the class of the failure but
// the client's own.
TEST_F(RoutingTest, OneRetryElsewhereBeforeTheFirstByte) {
    start({"a", "b"});
    for (const Code code :
         {Code::kUnavailable, Code::kOverloaded, Code::kDeadlineExceeded, Code::kConfig}) {
        for (auto& [url, s] : servers) s.asked = 0;
        servers["a"].script = servers["b"].script = {failed(code)};
        const auto lost = ask();
        EXPECT_EQ(lost->error->code, code);
        EXPECT_EQ(servers["a"].asked + servers["b"].asked, 2);  // once each
        EXPECT_EQ(servers["a"].asked, 1);
        loop.advance(2s);
    }
    servers["a"].script = {failed(Code::kUnavailable)};
    servers["b"].script = {text("ok"), done()};
    for (int i = 0; i < 6; ++i) {
        const auto answer = ask();
        EXPECT_EQ(answer->text, "ok");
        EXPECT_TRUE(answer->done);
        EXPECT_FALSE(answer->error);
    }
    EXPECT_GT(metric("nereid_router_retries_total"), 0);
}

TEST_F(RoutingTest, NoRetryOfTheClientsOwnFaultNorAfterOutput) {
    start({"a", "b"});
    servers["a"].script = servers["b"].script = {failed(Code::kInvalidArgument)};
    EXPECT_EQ(ask()->error->code, Code::kInvalidArgument);
    EXPECT_EQ(servers["a"].asked + servers["b"].asked, 1);
    servers["a"].script = servers["b"].script = {text("half"), failed(Code::kWorkerLost)};
    const auto answer = ask();
    EXPECT_EQ(answer->text, "half");
    EXPECT_EQ(answer->error->code, Code::kWorkerLost);
    EXPECT_EQ(servers["a"].asked + servers["b"].asked, 2);
}

// A server that dies after its answer's head, before anything of the answer.
TEST_F(RoutingTest, AHeadAloneIsNoAnswer) {
    start({"a", "b"});
    Events head;
    head.emplace_back(model::Start{});
    Events head_and_end = head;
    head_and_end.emplace_back(model::Failed{{Code::kWorkerLost, "no"}});
    servers["a"].script = {head, head_and_end};
    servers["b"].script = {head, text("ok"), done()};
    for (int i = 0; i < 4; ++i) {
        const auto answer = ask();
        EXPECT_EQ(answer->text, "ok");
        EXPECT_FALSE(answer->error);
        EXPECT_EQ(answer->starts, 1);
    }
    EXPECT_GT(servers["a"].asked, 0);
    servers["b"].script = servers["a"].script;
    loop.advance(2s);
    const auto lost = ask();
    EXPECT_EQ(lost->error->code, Code::kWorkerLost);
}

// R35: 4xx and 429 open no breaker; R36: faults do, and it ends by itself.
TEST_F(RoutingTest, R35_R36_BreakersOpenForFaultsOnly) {
    options.retry_burst = 1000;  // the breaker is under test, not the budget
    start({"a", "b"});
    servers["a"].script = {failed(Code::kInvalidArgument)};
    servers["b"].hold = true;
    for (int i = 0; i < 30; ++i) ask();
    servers["a"].script = {failed(Code::kRateLimited)};
    servers["b"].hold = false;
    for (int i = 0; i < 30; ++i) {
        ask();
        loop.advance(600ms);
    }
    EXPECT_EQ(metric(R"(nereid_router_breaker_opened_total{backend="a"})"), 0);
    EXPECT_GT(metric(R"(nereid_router_busy_total{backend="a"})"), 0);
    servers["a"].script = {failed(Code::kUnavailable)};
    int asked = servers["a"].asked;
    for (int i = 0; i < 40; ++i) EXPECT_FALSE(ask()->error);
    EXPECT_EQ(servers["a"].asked - asked, 3);
    EXPECT_EQ(metric(R"(nereid_router_breaker_opened_total{backend="a"})"), 1);
    servers["a"].script = {text("ok"), done()};
    loop.advance(1s);
    asked = servers["a"].asked;
    for (int i = 0; i < 20; ++i) ask();
    EXPECT_GT(servers["a"].asked, asked + 5);  // the trial succeeded
}

// All of them fail: nobody is locked out for good, and the moment one is back it serves.
TEST_F(RoutingTest, R36_AllBreakersOpenIsNoOutage) {
    start({"a", "b"});
    servers["a"].script = servers["b"].script = {failed(Code::kUnavailable)};
    for (int i = 0; i < 20; ++i) ask();
    servers["a"].script = servers["b"].script = {text("ok"), done()};
    EXPECT_EQ(ask()->text, "ok");
}

TEST_F(RoutingTest, AloneItIsNeverMarkedBusy) {
    start({"a"});
    servers["a"].script = {failed(Code::kRateLimited)};
    EXPECT_EQ(ask()->error->code, Code::kRateLimited);
    servers["a"].script = {text("ok"), done()};
    EXPECT_EQ(ask()->text, "ok");
}

TEST_F(RoutingTest, TheRetryBudgetBoundsRetries) {
    options.retry_ratio = 0.1;
    options.retry_burst = 2;
    start({"a", "b"});
    servers["a"].script = servers["b"].script = {failed(Code::kDeadlineExceeded)};
    for (int i = 0; i < 100; ++i) ask();
    EXPECT_LE(servers["a"].asked + servers["b"].asked, 100 + 2 + 10);
    EXPECT_GT(metric("nereid_router_retries_refused_total"), 80);
}

// Servers come and go at run time; one that goes finishes what it has.
TEST_F(RoutingTest, AddDrainRemove) {
    start({"a", "b"});
    servers["a"].hold = servers["b"].hold = true;
    std::vector<std::unique_ptr<Answer>> held;
    for (int i = 0; i < 4; ++i) held.push_back(ask());
    routed->set_urls({"b", "c"});
    loop.settle();
    EXPECT_EQ(servers["c"].made, 1);
    EXPECT_EQ(servers["a"].closed, 0);
    servers["c"].hold = true;
    for (int i = 0; i < 6; ++i) held.push_back(ask());
    EXPECT_EQ(servers["a"].running, 2);
    EXPECT_GT(servers["c"].running, 2);
    const auto waiting = servers["a"].waiting;
    for (io::Signal* s : waiting) s->notify();
    loop.settle();
    EXPECT_EQ(servers["a"].closed, 1);
    EXPECT_TRUE(held[0]->done || held[1]->done);
    // It comes back: another life.
    servers["a"].hold = true;
    routed->set_urls({"a", "b", "c"});
    loop.settle();
    EXPECT_EQ(servers["a"].made, 2);
    for (int i = 0; i < 6; ++i) held.push_back(ask());
    EXPECT_GT(servers["a"].running, 0);
    // None left.
    held.clear();
    routed->set_urls({});
    loop.settle();
    EXPECT_EQ(ask()->error->code, Code::kUnavailable);
    EXPECT_EQ(servers["b"].closed, 1);
    EXPECT_EQ(servers["c"].closed, 1);
}

// Shards hear of each other's placements: two shards do not both fill the same server.
TEST_F(RoutingTest, R10_ShardsShareTheTruth) {
    for (const char* u : {"a", "b"}) servers[u].hold = true;
    start({"a", "b"}, 2);
    std::vector<std::unique_ptr<Answer>> held;
    held.push_back(ask("hello", 0));
    const std::string first = servers["a"].running == 1 ? "a" : "b";
    for (int i = 0; i < 20; ++i) {
        auto other = ask("hello", 1);
        if (i == 0) continue;  // the first one tells that there are two
        EXPECT_EQ(servers[first].running, 1) << i;
        loop.advance(150ms);
    }
}

class RoutedWorkersTest : public testing::Test {
  protected:
    void start(std::size_t n) {
        std::vector<RoutedWorkers::MakeHandle> make;
        for (std::size_t i = 0; i < n; ++i) {
            workers.emplace_back();
            make.push_back([this, i](io::Loop&) {
                return std::make_unique<Named>(workers[i].handle(), "w" + std::to_string(i));
            });
        }
        routed = std::make_unique<RoutedWorkers>(RoutingOptions{.slow_start = 0s}, "m",
                                                 std::move(make), probe);
        handle = routed->handle_for(loop);
    }
    struct Named final : pools::WorkerHandle {
        Named(std::unique_ptr<pools::WorkerHandle> h, std::string n)
            : inner(std::move(h)), own_name(std::move(n)) {}
        std::string_view name() const override { return own_name; }
        const pools::WorkerStatus& status() const override { return inner->status(); }
        std::unique_ptr<pools::Session> submit(model::AddRequest r, pools::UpdateFn fn) override {
            return inner->submit(std::move(r), std::move(fn));
        }
        std::unique_ptr<pools::WorkerHandle> inner;
        std::string own_name;
    };
    struct Asked {
        std::unique_ptr<pools::Session> session;
        std::size_t tokens = 0;
        std::optional<Error> error;
        bool finished = false;
    };
    std::unique_ptr<Asked> ask(std::size_t prompt = 10, TokenId fill = 1) {
        auto asked = std::make_unique<Asked>();
        model::AddRequest r;
        r.prompt.assign(prompt, fill);
        r.max_tokens = 10;
        asked->session = handle->submit(std::move(r), [a = asked.get()](pools::Update&& u) {
            EXPECT_FALSE(a->finished || a->error);
            a->tokens += u.tokens.size();
            a->error = u.error;
            a->finished = u.finished.has_value();
        });
        loop.settle();
        return asked;
    }
    int running(std::size_t i) { return workers[i].open_sessions(); }

    io::TestLoop loop;
    ops::Registry metrics;
    RoutingProbe probe{metrics};
    std::deque<FakeWorker> workers;
    std::unique_ptr<RoutedWorkers> routed;
    std::unique_ptr<pools::WorkerHandle> handle;
};

TEST_F(RoutedWorkersTest, SpreadsAndKeepsPrefixes) {
    start(3);
    std::vector<std::unique_ptr<Asked>> held;
    for (int i = 0; i < 9; ++i) held.push_back(ask());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(running(i), 3);
    held.clear();
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(running(i), 0);
    const auto first = ask(2000, 7);
    std::size_t home = 0;
    while (running(home) == 0) ++home;
    workers[home].finish(workers[home].jobs.size() - 1);
    EXPECT_TRUE(first->finished);
    for (int i = 0; i < 4; ++i) {
        const auto next = ask(2100, 7);
        EXPECT_EQ(running(home), 2);
    }
}

TEST_F(RoutedWorkersTest, RetriesOnceElsewhereBeforeOutput) {
    start(2);
    workers[0].refuse = Error{Code::kOverloaded, "full"};
    for (int i = 0; i < 4; ++i) {
        const auto asked = ask();
        EXPECT_FALSE(asked->error);
        EXPECT_EQ(running(1), 1);
    }
    workers[1].refuse = workers[0].refuse;
    loop.advance(1s);
    EXPECT_EQ(ask()->error->code, Code::kOverloaded);
    workers[0].refuse = workers[1].refuse = std::nullopt;
    loop.advance(1s);
    const auto lost = ask();
    const std::size_t at = running(0) == 1 ? 0 : 1;
    workers[at].say(workers[at].jobs.size() - 1, "half");
    workers[at].lose(workers[at].jobs.size() - 1, {Code::kWorkerLost, "died"});
    loop.settle();
    EXPECT_EQ(lost->error->code, Code::kWorkerLost);
    EXPECT_EQ(lost->tokens, 4u);
}

TEST_F(RoutedWorkersTest, EnginesThatRestartGetNothingNew) {
    start(2);
    workers[0].status.state = pools::WorkerState::kBackoff;
    std::vector<std::unique_ptr<Asked>> held;
    for (int i = 0; i < 5; ++i) held.push_back(ask());
    EXPECT_EQ(running(1), 5);
    EXPECT_EQ(handle->status().state, pools::WorkerState::kReady);
    workers[1].status.state = pools::WorkerState::kFailed;
    held.push_back(ask());  // it waits where it can come to something
    EXPECT_EQ(running(0), 1);
    EXPECT_EQ(handle->status().state, pools::WorkerState::kBackoff);
    workers[0].status.load.running = 3;
    workers[1].status.load.running = 4;
    EXPECT_EQ(handle->status().load.running, 7u);
    workers[0].status.state = pools::WorkerState::kFailed;
    held.push_back(ask());
    EXPECT_EQ(running(0) + running(1), 7);
}

// Engines join at run time, and leave when their owner drains them.
TEST_F(RoutedWorkersTest, EnginesJoinAndLeave) {
    start(1);
    std::vector<std::unique_ptr<Asked>> held;
    for (int i = 0; i < 4; ++i) held.push_back(ask());
    EXPECT_EQ(running(0), 4);
    workers.emplace_back();
    routed->add([this](io::Loop&) { return std::make_unique<Named>(workers[1].handle(), "w1"); });
    loop.settle();
    for (int i = 0; i < 4; ++i) held.push_back(ask());
    EXPECT_EQ(running(0), 4);
    EXPECT_EQ(running(1), 4);
    workers[0].status.state = pools::WorkerState::kDraining;
    for (int i = 0; i < 4; ++i) held.push_back(ask());
    EXPECT_EQ(running(0), 4);  // they go on
    EXPECT_EQ(running(1), 8);
    EXPECT_EQ(handle->status().state, pools::WorkerState::kReady);
    workers[0].finish(0);
    EXPECT_TRUE(held[0]->finished);
    held.clear();
    workers[0].status.load.kv_total_tokens = 100;
    workers[0].status.state = pools::WorkerState::kStopped;
    EXPECT_EQ(handle->status().load.kv_total_tokens, 0u);
    const auto last = ask();
    EXPECT_EQ(running(1), 1);
}

// A second start of a request that has said no more than that it started is the client's first.
TEST_F(RoutedWorkersTest, RetriesAfterAStartWithoutOutput) {
    start(2);
    const auto asked = ask();
    const std::size_t at = running(0) == 1 ? 0 : 1;
    workers[at].start(workers[at].jobs.size() - 1);
    workers[at].lose(workers[at].jobs.size() - 1, {Code::kWorkerLost, "died"});
    loop.settle();
    EXPECT_FALSE(asked->error);
    EXPECT_EQ(running(1 - at), 1);
}

TEST(Fleet, CostsBeginWithTheEnginesOwn) {
    const std::string path = ::testing::TempDir() + "cost.json";
    std::ofstream(path) << R"({"model":{"prefill":{"per_token_flops":3e10,)"
                           R"("per_token_context_flops":6e4},"decode":null}})";
    RoutingOptions routing;
    routing.cost = path;
    routing.cost_tflops = 300;
    const auto cost = routing.engine_cost();
    ASSERT_TRUE(cost.ok()) << cost.error().message;
    routing.first_cost = *cost;
    Fleet fleet({.routing = routing, .model = "m"});
    EXPECT_DOUBLE_EQ(fleet.view().cost(router::Stage::kUnified).prefill.per_token_ms, 0.1);
    router::CostModel other;
    other.prefill.per_token_ms = 0.4;
    fleet.begin_cost(other, TimePoint{});
    EXPECT_DOUBLE_EQ(fleet.view().cost(router::Stage::kUnified).prefill.per_token_ms, 0.4);
    std::ofstream(path) << "{";
    const auto broken = routing.engine_cost();
    ASSERT_FALSE(broken.ok());
    EXPECT_EQ(broken.error().code, Code::kConfig);
    EXPECT_NE(broken.error().message.find(path), std::string::npos);
}

TEST(RoutingOptions, PoliciesAreCheckedAtStart) {
    EXPECT_TRUE(RoutingOptions{}.validate().ok());
    EXPECT_TRUE(RoutingOptions{.policy = "round-robin"}.validate().ok());
    EXPECT_EQ(RoutingOptions{.policy = "encoder-affinity"}.validate().code(), Code::kConfig);
    EXPECT_EQ(RoutingOptions{.policy = "best"}.validate().code(), Code::kConfig);
}

TEST(TextShape, CountsAndNames) {
    model::Request r;
    r.messages.push_back(
        {.role = model::Role::kSystem, .parts = {model::TextPart{std::string(2000, 's')}}});
    r.messages.push_back({.role = model::Role::kUser, .parts = {model::TextPart{"hi"}}});
    const TextShape a = text_shape(r);
    EXPECT_NEAR(a.prompt_tokens, 501, 2);
    EXPECT_EQ(a.blocks.size(), 3u);
    r.messages.push_back(
        {.role = model::Role::kUser, .parts = {model::TextPart{std::string(600, 'q')}}});
    const TextShape b = text_shape(r);
    EXPECT_TRUE(std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin()));
    r.prompts.emplace_back(std::vector<TokenId>(100));
    EXPECT_EQ(text_shape(r).prompt_tokens, b.prompt_tokens + 100);
}

}  // namespace
}  // namespace nereid::gateway
