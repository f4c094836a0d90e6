// Several shards on real loops and one port: start, reload, drain and the end, from a thread that
// is none of theirs.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "gateway/gateway.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "ops/log.h"
#include "ops/metrics.h"

namespace nereid::gateway {
namespace {

class Echo final : public pools::TextBackend {
  public:
    io::Task<void> run(const model::Request&, OnEvents on_events, std::string*) override {
        std::vector<model::Event> events;
        events.emplace_back(model::Start{});
        events.emplace_back(model::TextDelta{.choice = 0, .text = "hello"});
        events.emplace_back(model::ChoiceEnd{});
        events.emplace_back(model::Done{});
        co_await on_events(events);
    }
};

TEST(Shards, StartServeReloadDrain) {
    io::LoopThreads loops(3);
    std::vector<std::unique_ptr<io::RealNetwork>> networks(3);
    std::vector<ShardContext> contexts;
    for (std::size_t i = 0; i < 3; ++i) {
        loops.run_on(i, [&] { networks[i] = std::make_unique<io::RealNetwork>(loops.loop(i)); });
        contexts.push_back({&loops.loop(i), networks[i].get()});
    }
    GatewayOptions options;
    options.port = 0;
    options.access_log = "off";
    ops::Logger log;
    ops::Registry metrics;
    std::vector<ModelEntry> models(1);
    models[0].id = "m";
    models[0].text_backend = [](const ShardContext&) { return std::make_unique<Echo>(); };
    auto gateway = make_gateway(contexts, options, models, log, metrics);
    ASSERT_TRUE(gateway.ok());
    const auto at = (*gateway)->start();
    ASSERT_TRUE(at.ok()) << at.error().message;
    ASSERT_NE(at->port, 0);

    io::RealLoop here;
    io::RealNetwork network(here);
    int answered = 0;
    const auto ask = [&](io::HttpClient& client) -> io::Task<void> {
        io::HttpClientRequest request;
        request.path = "/v1/chat/completions";
        request.body = R"({"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true})";
        auto response = co_await client.request(request, here.now() + 10s);
        if (!response.ok() || (*response)->status() != 200) co_return;
        const auto body = co_await (*response)->read_all(1 << 20, here.now() + 10s);
        answered += body.ok() && body->ends_with("data: [DONE]\n\n") ? 1 : 0;
    };
    {
        std::vector<std::unique_ptr<io::HttpClient>> clients;
        for (int i = 0; i < 30; ++i) {
            clients.push_back(io::make_http_client(here, network, {.endpoint = *at}));
            here.spawn(ask(*clients.back()));
        }
        EXPECT_TRUE(here.run_until([&] { return answered == 30; }, 20s));
        options.queue_max = 1;
        EXPECT_TRUE((*gateway)->reload(options).ok());
    }
    std::atomic<bool> drained = false;
    (*gateway)->drain([&] { drained = true; });
    EXPECT_TRUE(here.run_until([&] { return drained.load(); }, 20s));
    gateway->reset();
    for (std::size_t i = 0; i < 3; ++i) loops.run_on(i, [&] { networks[i].reset(); });
}

TEST(Shards, APortInUseIsAConflict) {
    io::RealLoop loop;
    io::RealNetwork network(loop);
    auto taken = network.listen({.host = "127.0.0.1", .port = 0, .unix_path = {}});
    ASSERT_TRUE(taken.ok());
    GatewayOptions options;
    options.port = (*taken)->local().port;
    options.access_log = "off";
    ops::Logger log;
    ops::Registry metrics;
    std::vector<ModelEntry> models(1);
    models[0].id = "m";
    models[0].text_backend = [](const ShardContext&) { return std::make_unique<Echo>(); };
    auto gateway = make_gateway({{&loop, &network}}, options, models, log, metrics);
    ASSERT_TRUE(gateway.ok());
    const auto at = (*gateway)->start();
    ASSERT_FALSE(at.ok());
    EXPECT_EQ(at.error().code, Code::kConflict);
}

}  // namespace
}  // namespace nereid::gateway
