#include "io/rpc_memory.h"

#include <deque>
#include <list>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "io/root_task.h"
#include "io/waiter.h"

namespace nereid::io {

namespace {

// A message on its way to the caller, or the end when `message` is empty.
struct Item {
    std::optional<std::string> message;
    Result<void> end;
    bool arrived = false;
};

// The two ends of one call. Held by both; either may go away first.
struct Call {
    explicit Call(Loop& loop) : caller(loop), sender(loop) {}
    // In the order of sending, whatever their delays: a call is one ordered stream.
    std::deque<std::shared_ptr<Item>> items;
    Waiter caller;  // waits for an item to arrive
    Waiter sender;  // a stream handler waits until the caller asks for a message
    bool caller_gone = false;
    bool wanted = false;  // the caller asks for a message
    bool ending = false;  // its end was sent

    bool ready() const { return !items.empty() && items.front()->arrived; }
};

}  // namespace

struct MemoryRpc::World {
    Loop& loop;
    FateFn fate;
    std::map<std::string, Server*, std::less<>> servers;
    std::uint16_t next_port = 40'000;

    Fate decide(std::string_view server, std::string_view method) const {
        return fate ? fate(server, method) : Fate{};
    }
};

class MemoryRpc::Server final : public RpcServer {
  public:
    explicit Server(std::shared_ptr<World> world) : world_(std::move(world)), idle_(world_->loop) {}
    ~Server() override {
        leave();
        abandon();
    }

    void handle(std::string method, RpcHandler handler) override {
        unary_[std::move(method)] = std::move(handler);
    }
    void handle_stream(std::string method, RpcStreamHandler handler) override {
        streams_[std::move(method)] = std::move(handler);
    }

    Result<std::uint16_t> start(const std::string& host, std::uint16_t port) override {
        CHECK_MSG(address_.empty(), "start() of a server that has been started");
        while (port == 0) {
            if (!world_->servers.contains(fmt::format("{}:{}", host, world_->next_port)))
                port = world_->next_port;
            ++world_->next_port;
        }
        std::string address = fmt::format("{}:{}", host, port);
        if (!world_->servers.try_emplace(address, this).second)
            return Error{Code::kConflict,
                         address + " is in use; choose another port or stop the other process"};
        address_ = std::move(address);
        return port;
    }

    Task<void> stop(TimePoint deadline) override {
        stopping_ = true;
        while (!running_.empty()) {
            if (!co_await idle_.wait(deadline)) break;
        }
        leave();
        abandon();
    }

    // A request has arrived.
    void accept(const std::shared_ptr<Call>& call, const std::string& method, std::string request) {
        if (stopping_)
            return finish(call, method, Error{Code::kUnavailable, address_ + " is stopping"});
        if (request.size() > kMaxRpcMessage)
            return finish(call, method, Error{Code::kTooLarge, "request too large"});
        const auto unary = unary_.find(method);
        const auto stream = streams_.find(method);
        if (unary == unary_.end() && stream == streams_.end())
            return finish(call, method, Error{Code::kUnsupported, "unknown method " + method});
        const auto at = running_.emplace(running_.end());
        at->call = call;
        at->method = method;
        if (unary != unary_.end())
            at->task.start(run(at, unary->second, std::move(request)));
        else
            at->task.start(run_stream(at, stream->second, std::move(request)));
    }

  private:
    struct Running {
        std::shared_ptr<Call> call;
        std::string method;
        RootTask task;
    };
    using At = std::list<Running>::iterator;

    Task<void> run(At at, const RpcHandler& handler, std::string request) {
        auto result = co_await handler(std::move(request));
        if (result.ok()) {
            send_item(at->call, at->method, {.message = std::move(*result), .end = {}});
            finish(at->call, at->method, {});
        } else {
            finish(at->call, at->method, result.error());
        }
        done(at);
    }

    Task<void> run_stream(At at, const RpcStreamHandler& handler, std::string request) {
        const auto send = [this, at](std::string message) {
            return send_one(at, std::move(message));
        };
        auto result = co_await handler(std::move(request), send);
        finish(at->call, at->method, result);
        done(at);
    }

    // One message on the way at a time, and it leaves when the caller asks: that is the
    // backpressure.
    Task<bool> send_one(At at, std::string message) {
        const auto call = at->call;
        while (!call->caller_gone && !call->wanted) co_await call->sender.wait();
        if (call->caller_gone) co_return false;
        call->wanted = false;
        send_item(call, at->method, {.message = std::move(message), .end = {}});
        co_return true;
    }

    void send_item(const std::shared_ptr<Call>& call, const std::string& method, Item item) {
        const auto shared = call->items.emplace_back(std::make_shared<Item>(std::move(item)));
        const Fate fate = world_->decide(address_, method);
        if (fate.lost) return;  // and nothing behind it is seen
        world_->loop.arm(world_->loop.now() + fate.delay, [call, shared] {
            shared->arrived = true;
            if (call->ready()) call->caller.wake(Wake::kEvent);
        });
    }
    void finish(const std::shared_ptr<Call>& call, const std::string& method, Result<void> result) {
        call->ending = true;
        send_item(call, method, {.message = std::nullopt, .end = std::move(result)});
    }

    void done(At at) {
        world_->loop.post([this, at, alive = std::weak_ptr<int>(alive_)] {
            if (alive.expired()) return;
            running_.erase(at);
            if (running_.empty()) idle_.notify();
        });
    }

    void leave() {
        if (!address_.empty()) world_->servers.erase(address_);
    }
    // Handlers that still run end where they wait.
    void abandon() {
        alive_ = std::make_shared<int>(0);
        for (auto& r : running_) {
            r.task.reset();
            if (!r.call->ending)
                finish(r.call, r.method, Error{Code::kUnavailable, address_ + " has stopped"});
        }
        running_.clear();
    }

    std::shared_ptr<World> world_;
    std::string address_;
    std::map<std::string, RpcHandler> unary_;
    std::map<std::string, RpcStreamHandler> streams_;
    Signal idle_;
    bool stopping_ = false;
    std::list<Running> running_;
    std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

namespace {

class Stream final : public RpcStream {
  public:
    Stream(const std::shared_ptr<MemoryRpc::World>& world, std::string server, std::string method,
           std::string request, TimePoint deadline)
        : call_(std::make_shared<Call>(world->loop)), deadline_(deadline) {
        const auto fate = world->decide(server, method);
        if (fate.lost) return;
        world->loop.arm(
            world->loop.now() + fate.delay,
            [world, call = call_, server = std::move(server), method = std::move(method),
             request = std::move(request)]() mutable {
                if (call->caller_gone) return;
                const auto at = world->servers.find(server);
                if (at != world->servers.end())
                    return at->second->accept(call, method, std::move(request));
                call->items.push_back(std::make_shared<Item>(Item{
                    std::nullopt, Error{Code::kUnavailable, "nobody listens at " + server}, true}));
                call->caller.wake(Wake::kEvent);
            });
    }
    ~Stream() override {
        call_->caller_gone = true;
        call_->sender.wake_later(Wake::kEvent, call_);
    }

    Task<Result<std::string>> next() override { return next(call_, deadline_); }

  private:
    static Task<Result<std::string>> next(std::shared_ptr<Call> call, TimePoint deadline) {
        call->wanted = !call->ready();
        if (call->wanted) call->sender.wake_later(Wake::kEvent, call);
        while (!call->ready()) {
            if (co_await call->caller.wait(deadline) == Wake::kDeadline)
                co_return Error{Code::kDeadlineExceeded, "the call's deadline has passed"};
        }
        const auto item = call->items.front();
        if (!item->message) {  // stays: the end is told again
            if (item->end.ok()) co_return Error{Code::kNotFound, "end of stream"};
            co_return item->end.error();
        }
        call->items.pop_front();
        co_return std::move(*item->message);
    }

    std::shared_ptr<Call> call_;
    TimePoint deadline_;
};

class Client final : public RpcClient {
  public:
    Client(std::shared_ptr<MemoryRpc::World> world, std::string server)
        : world_(std::move(world)), server_(std::move(server)) {}

    Task<Result<std::string>> call(std::string method, std::string request,
                                   TimePoint deadline) override {
        return unary(open(std::move(method), std::move(request), deadline));
    }
    std::unique_ptr<RpcStream> open(std::string method, std::string request,
                                    TimePoint deadline) override {
        return std::make_unique<Stream>(world_, server_, std::move(method), std::move(request),
                                        deadline);
    }

  private:
    static Task<Result<std::string>> unary(std::unique_ptr<RpcStream> stream) {
        co_return co_await stream->next();
    }

    std::shared_ptr<MemoryRpc::World> world_;
    std::string server_;
};

}  // namespace

MemoryRpc::MemoryRpc(Loop& loop, FateFn fate)
    : world_(std::make_shared<World>(World{.loop = loop, .fate = std::move(fate), .servers = {}})) {
}

std::unique_ptr<RpcServer> MemoryRpc::make_server() { return std::make_unique<Server>(world_); }

std::unique_ptr<RpcClient> MemoryRpc::make_client(const std::string& host, std::uint16_t port) {
    return std::make_unique<Client>(world_, fmt::format("{}:{}", host, port));
}

}  // namespace nereid::io
