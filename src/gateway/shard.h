// GatewayShard: the gateway on one loop: its HTTP server, its handles of the models, its snapshot
// of the knobs. Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/prng.h"
#include "gateway/core.h"
#include "gateway/exchange.h"
#include "gateway/jobs.h"
#include "gateway/models.h"
#include "gateway/pdf_reader.h"
#include "io/root_task.h"

namespace nereid::gateway {

class GatewayShard {
  public:
    // `number` tells the shards' random numbers apart. `entries` must outlive the shard.
    GatewayShard(Core& core, ShardContext context, std::size_t number,
                 std::shared_ptr<const Settings> settings, const std::vector<ModelEntry>& entries);

    void serve(std::unique_ptr<io::Listener> listener, bool tls) {
        server_->serve(std::move(listener), tls);
    }
    void apply(std::shared_ptr<const Settings> settings) { settings_ = std::move(settings); }
    void stop_accepting() { server_->stop_accepting(); }
    // `done` runs when the connections are gone, by themselves or at the deadline. Once.
    void drain(TimePoint deadline, std::function<void()> done) {
        draining_.start(drain_server(deadline, std::move(done)));
    }
    // Takes up what a process before this one has left undone (pending.h). One shard of a gateway.
    void resume() { jobs_.spawn(watch_pending()); }
    io::Loop& loop() { return loop_; }
    const io::HttpCounters& counters() const { return server_->counters(); }

  private:
    io::Task<void> handle(io::HttpRequest& http, io::HttpReply& reply);
    io::Task<void> dispatch(Exchange& x, const RouteMatch& route);
    io::Task<void> watch_pending();
    io::Task<void> drain_server(TimePoint deadline, std::function<void()> done);

    Core& core_;
    io::Loop& loop_;
    io::Network& network_;
    std::shared_ptr<const Settings> settings_;
    Prng prng_;
    HttpMetrics::Feed http_metrics_;
    ShardModels models_;
    PdfReader pdf_;
    std::function<io::Task<void>(Exchange&, const RouteMatch&)> dispatch_;
    Jobs jobs_;
    std::unique_ptr<io::HttpServer> server_;  // goes before what its handlers use
    io::RootTask draining_;
};

}  // namespace nereid::gateway
