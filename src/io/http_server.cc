#include "io/http_connection.h"

#include <list>
#include <vector>

#include "base/check.h"

namespace nereid::io {

namespace {

// Connections over the limit that are told so; beyond this many at once they are just closed.
constexpr std::size_t kMaxRefusing = 64;

class Server final : public HttpServer {
  public:
    Server(Loop& loop, HttpLimits limits, HttpHandler handler)
        : core_{.loop = loop, .limits = std::move(limits), .handler = std::move(handler)},
          all_gone_(loop) {
        CHECK(core_.handler != nullptr);
    }

    void serve(std::unique_ptr<Listener> listener, bool tls) override {
        auto& door = doors_.emplace_back(std::make_unique<Door>());
        door->listener = std::move(listener);
        door->tls = tls;
        door->task.start(accept(*door));
    }

    void stop_accepting() override {
        for (auto& door : doors_) door->listener->close();
    }

    Task<void> drain(TimePoint deadline) override {
        core_.draining = true;
        stop_accepting();
        for (auto& c : connections_) c->close_if_idle();
        while (!connections_.empty()) {
            if (co_await all_gone_.wait(deadline)) continue;
            for (auto& c : connections_) c->close_now();
            for (auto& c : refusing_) c->close_now();
            break;
        }
    }

    const HttpCounters& counters() const override { return core_.counters; }

  private:
    using List = std::list<std::shared_ptr<HttpConnection>>;
    struct Door {
        std::unique_ptr<Listener> listener;
        bool tls = false;
        RootTask task;
    };

    Task<void> accept(Door& door) {
        for (;;) {
            auto stream = co_await door.listener->accept();
            if (!stream.ok()) co_return;
            if (core_.counters.open < core_.limits.max_connections) {
                ++core_.counters.connections;
                ++core_.counters.open;
                add(connections_, std::move(*stream), door.tls)->start();
                continue;
            }
            ++core_.counters.refused;
            if (refusing_.size() < kMaxRefusing)
                add(refusing_, std::move(*stream), door.tls)->start_refusing();
        }
    }

    HttpConnection* add(List& list, std::unique_ptr<Stream> stream, bool tls) {
        const auto at = list.emplace(list.end());
        *at = std::make_shared<HttpConnection>(core_, std::move(stream), tls,
                                               [this, &list, at] { remove(list, at); });
        return at->get();
    }

    void remove(List& list, List::iterator at) {
        const bool counted = &list == &connections_;
        list.erase(at);
        if (!counted) return;
        --core_.counters.open;
        if (list.empty() && core_.draining) all_gone_.notify();
    }

    HttpServerCore core_;
    Signal all_gone_;
    List connections_;
    List refusing_;
    std::vector<std::unique_ptr<Door>> doors_;
};

}  // namespace

std::unique_ptr<HttpServer> make_http_server(Loop& loop, HttpLimits limits, HttpHandler handler) {
    return std::make_unique<Server>(loop, std::move(limits), std::move(handler));
}

}  // namespace nereid::io
