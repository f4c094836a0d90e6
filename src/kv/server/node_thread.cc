#include "kv/server/node_thread.h"

#include <future>
#include <utility>

#include "io/real_disk.h"
#include "io/real_network.h"

namespace nereid::kv {

NodeThread::NodeThread() = default;

io::Task<void> NodeThread::begin(CacheServerOptions options, NodeProbe* probe, Duration patience,
                                 std::move_only_function<void(Result<void>)> done) {
    io::RealLoop& loop = threads_.loop(0);
    const TimePoint until = loop.now() + patience;
    for (;;) {
        auto server = co_await CacheServer::start(loop, *network_, *disk_, options, probe);
        if (server.ok()) {
            server_ = std::move(*server);
            co_return done({});
        }
        if (server.code() != Code::kConflict || loop.now() >= until) co_return done(server.error());
        co_await loop.sleep_for(50ms);
    }
}

Result<std::unique_ptr<NodeThread>> NodeThread::start(CacheServerOptions options, NodeProbe* probe,
                                                      Duration patience) {
    std::unique_ptr<NodeThread> self(new NodeThread());
    std::promise<Result<void>> started;
    self->threads_.run_on(0, [&] {
        io::RealLoop& loop = self->threads_.loop(0);
        self->network_ = std::make_unique<io::RealNetwork>(loop);
        self->disk_ = std::make_unique<io::RealDisk>(
            loop, io::RealDiskOptions{.threads = 2, .direct = true, .uring = true});
        loop.spawn(self->begin(std::move(options), probe, patience,
                               [&started](Result<void> r) { started.set_value(std::move(r)); }));
    });
    TRY_VOID(started.get_future().get());
    return self;
}

io::Task<void> NodeThread::end(std::move_only_function<void()> done) {
    if (server_ != nullptr) co_await server_->stop();
    done();
}

NodeThread::~NodeThread() {
    std::promise<void> ended;
    threads_.run_on(0, [&] { threads_.loop(0).spawn(end([&ended] { ended.set_value(); })); });
    ended.get_future().wait();
    threads_.run_on(0, [this] {
        server_.reset();
        disk_.reset();
        network_.reset();
    });
}

}  // namespace nereid::kv
