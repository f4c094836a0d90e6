// A gateway on one loop of virtual time with two models, "m" (token engine) and "t" (text engine),
// both under the test's control.
#pragma once

#include "gateway/gateway_testing.h"
#include "ops/log.h"
#include "ops/metrics.h"

namespace nereid::gateway {

// A text engine that gives what the test puts into `script`, and waits at a null entry for
// release().
class FakeTextBackend final : public pools::TextBackend {
  public:
    struct Shared {
        std::vector<std::vector<model::Event>> script;
        std::vector<std::vector<model::Event>> first;  // of the first run, when it is not empty
        int running = 0;
        int runs = 0;
        int cut = 0;  // destroyed before its end
        model::Request last;
        std::vector<io::Signal*> waiting;
    };
    FakeTextBackend(io::Loop& loop, Shared& shared) : loop_(loop), shared_(shared) {}
    io::Task<void> run(const model::Request& request, OnEvents on_events,
                       std::string* served_by) override {
        Running running(loop_, shared_);
        if (served_by != nullptr) *served_by = "http://upstream";
        shared_.last = request;
        auto script = shared_.runs == 1 && !shared_.first.empty() ? shared_.first : shared_.script;
        for (auto& events : script) {
            if (events.empty()) {
                shared_.waiting.push_back(&running.released);
                co_await running.released.wait();
                std::erase(shared_.waiting, &running.released);
                continue;
            }
            if (!co_await on_events(events)) break;
        }
        running.done = true;
    }

  private:
    struct Running {
        Shared& shared;
        io::Signal released;
        bool done = false;
        Running(io::Loop& loop, Shared& s) : shared(s), released(loop) {
            ++shared.running;
            ++shared.runs;
        }
        Running(const Running&) = delete;
        Running& operator=(const Running&) = delete;
        ~Running() {
            std::erase(shared.waiting, &released);
            --shared.running;
            shared.cut += done ? 0 : 1;
        }
    };
    io::Loop& loop_;
    Shared& shared_;
};

class GatewayTest : public testing::Test {
  protected:
    GatewayTest() {
        options.port = 0;
        options.access_log = log_path();
        text_.tokenizer = std::make_shared<ByteTokenizer>();
        text_.chat_template = std::make_shared<PlainTemplate>(text_.tokenizer, true);
        text_.context_tokens = 100;
    }
    ~GatewayTest() override {
        gateway.reset();
        loop.settle();
        std::filesystem::remove(log_path());
    }

    void start() {
        gateway = make(net, worker);
        loop.settle();
    }
    // A started gateway whose model "m" is `engine`'s.
    std::unique_ptr<Gateway> make(io::TestNetwork& network, FakeWorker& engine) {
        std::vector<ModelEntry> models(2);
        models[0].id = "m";
        models[0].aliases = {"default"};
        models[0].created = 7;
        models[0].text = text_;
        models[0].worker = [&engine](io::Loop&) { return engine.handle(); };
        models[1].id = "t";
        models[1].text_backend = [this](const ShardContext& c) {
            return std::make_unique<FakeTextBackend>(*c.loop, backend);
        };
        auto made = make_gateway({{&loop, &network, launcher}}, options, std::move(models), log,
                                 metrics, state_);
        EXPECT_TRUE(made.ok()) << made.error().message;
        if (!made.ok()) return nullptr;
        const auto bound = (*made)->start();
        EXPECT_TRUE(bound.ok()) << bound.error().message;
        return std::move(*made);
    }
    std::unique_ptr<Client> client() { return std::make_unique<Client>(net); }
    std::unique_ptr<Client> chat(std::string_view extra = {}, std::string_view headers = {}) {
        auto c = client();
        c->post("/v1/chat/completions", chat_body(extra), headers);
        loop.settle();
        return c;
    }
    static std::string chat_body(std::string_view extra = {}) {
        return fmt::format(R"({{"model":"m","messages":[{{"role":"user","content":"Hi"}}]{}}})",
                           extra);
    }
    std::string log_path() const {
        const auto* info = testing::UnitTest::GetInstance()->current_test_info();
        return fmt::format("{}nereid-gateway-{}-{}.log", testing::TempDir(), getpid(),
                           info->name());
    }
    std::vector<Json> access_lines() {
        std::ifstream in(log_path());
        std::vector<Json> out;
        for (std::string line; std::getline(in, line);) {
            auto j = Json::parse(line);
            EXPECT_TRUE(j.ok()) << line;
            if (j.ok()) out.push_back(*j);
        }
        return out;
    }
    // The value of a sample in /metrics, by its name with labels; -1 when it is not there.
    double metric(std::string_view sample) {
        auto c = client();
        c->get("/metrics");
        loop.settle();
        const std::string text = "\n" + c->body();
        const auto at_ = text.find("\n" + std::string(sample) + " ");
        return at_ == std::string::npos ? -1 : std::stod(text.substr(at_ + sample.size() + 2));
    }

    io::TestLoop loop;
    io::TestNetwork net{loop};
    FakeWorker worker;
    FakeTextBackend::Shared backend;
    GatewayOptions options;
    io::ProcessLauncher* launcher = nullptr;
    ops::Logger log;
    ops::Registry metrics;
    text::TextModel text_;
    State state_;
    std::unique_ptr<Gateway> gateway;
};

}  // namespace nereid::gateway
