// Rpc over gRPC's callback API with generic (byte buffer) calls. Every call is one
// bidirectional-streaming gRPC call, so that unary and stream share one state machine; on the wire
// a unary call differs from a stream of one message in nothing.
//
// Threads: reactions (On...) run on gRPC's threads and only touch what their mutex guards, then
// post to the loop. A "hold" keeps a client call alive while the loop may still start a read on it.
#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "base/check.h"
#include "io/root_task.h"
#include "io/rpc.h"
#include "io/waiter.h"

namespace nereid::io {

namespace {

constexpr const char* kCodeKey = "nereid-code";
constexpr const char* kParamKey = "nereid-param-bin";
constexpr std::size_t kMaxStatusMessage =
    4 << 10;  // it travels in headers, which gRPC bounds at 8 KiB

std::string address_of(const std::string& host, std::uint16_t port) {
    return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                               : fmt::format("[{}]:{}", host, port);
}

grpc::StatusCode to_grpc(Code code) {
    switch (code) {
        case Code::kInvalidArgument:
        case Code::kContextLength:
        case Code::kConfig:
            return grpc::StatusCode::INVALID_ARGUMENT;
        case Code::kUnsupported:
            return grpc::StatusCode::UNIMPLEMENTED;
        case Code::kUnauthenticated:
            return grpc::StatusCode::UNAUTHENTICATED;
        case Code::kPermissionDenied:
            return grpc::StatusCode::PERMISSION_DENIED;
        case Code::kNotFound:
            return grpc::StatusCode::NOT_FOUND;
        case Code::kConflict:
            return grpc::StatusCode::FAILED_PRECONDITION;
        case Code::kTooLarge:
            return grpc::StatusCode::OUT_OF_RANGE;
        case Code::kRateLimited:
        case Code::kOverloaded:
        case Code::kNoSpace:
            return grpc::StatusCode::RESOURCE_EXHAUSTED;
        case Code::kUnavailable:
        case Code::kWorkerLost:
        case Code::kIo:
            return grpc::StatusCode::UNAVAILABLE;
        case Code::kCancelled:
            return grpc::StatusCode::CANCELLED;
        case Code::kDeadlineExceeded:
            return grpc::StatusCode::DEADLINE_EXCEEDED;
        case Code::kCorrupt:
            return grpc::StatusCode::DATA_LOSS;
        case Code::kInternal:
            return grpc::StatusCode::INTERNAL;
    }
    return grpc::StatusCode::UNKNOWN;
}

// For statuses that carry no code of ours: made by gRPC itself or by a foreign server.
Code from_grpc(grpc::StatusCode code) {
    switch (code) {
        case grpc::StatusCode::INVALID_ARGUMENT:
            return Code::kInvalidArgument;
        case grpc::StatusCode::UNIMPLEMENTED:
            return Code::kUnsupported;
        case grpc::StatusCode::UNAUTHENTICATED:
            return Code::kUnauthenticated;
        case grpc::StatusCode::PERMISSION_DENIED:
            return Code::kPermissionDenied;
        case grpc::StatusCode::NOT_FOUND:
            return Code::kNotFound;
        case grpc::StatusCode::ALREADY_EXISTS:
        case grpc::StatusCode::ABORTED:
        case grpc::StatusCode::FAILED_PRECONDITION:
            return Code::kConflict;
        case grpc::StatusCode::OUT_OF_RANGE:
        case grpc::StatusCode::RESOURCE_EXHAUSTED:
            return Code::kTooLarge;  // what gRPC says of too large a message
        case grpc::StatusCode::UNAVAILABLE:
            return Code::kUnavailable;
        case grpc::StatusCode::CANCELLED:
            return Code::kCancelled;
        case grpc::StatusCode::DEADLINE_EXCEEDED:
            return Code::kDeadlineExceeded;
        case grpc::StatusCode::DATA_LOSS:
            return Code::kCorrupt;
        default:
            return Code::kInternal;
    }
}

grpc::ByteBuffer to_buffer(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    return {&slice, 1};
}

std::string to_string(const grpc::ByteBuffer& buffer) {
    std::vector<grpc::Slice> slices;
    if (!buffer.Dump(&slices).ok()) return {};
    std::string bytes;
    bytes.reserve(buffer.Length());
    for (const auto& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    return bytes;
}

// ------------------------------------------------------------------ client

// Counts gRPC calls that are not done, so that the client can wait for gRPC's threads to leave
// them.
struct CallCount {
    std::mutex mutex;
    std::condition_variable none;
    int live = 0;

    void add() {
        const std::lock_guard lock(mutex);
        ++live;
    }
    void remove() {
        const std::lock_guard lock(mutex);
        if (--live == 0) none.notify_all();
    }
    void wait_none() {
        std::unique_lock lock(mutex);
        none.wait(lock, [&] { return live == 0; });
    }
};

class ClientCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                         public std::enable_shared_from_this<ClientCall> {
  public:
    ClientCall(Loop& loop, std::shared_ptr<CallCount> count)
        : loop_(loop), changed_(loop), count_(std::move(count)) {}

    void start(grpc::GenericStub& stub, const std::string& method, const std::string& request,
               TimePoint deadline) {
        self_ = shared_from_this();
        count_->add();
        if (deadline != TimePoint::never())
            context_.set_deadline(std::chrono::system_clock::now() + (deadline - loop_.now()));
        stub.PrepareBidiStreamingCall(&context_, method, {}, this);
        outgoing_ = to_buffer(request);
        AddHold();
        StartWriteLast(&outgoing_, {});
        StartCall();
    }

    // Loop. The caller does not care any more.
    void cancel() {
        bool release = false;
        {
            const std::lock_guard lock(mutex_);
            cancelled_ = true;
            if (!reading_) release = !std::exchange(released_, true);
        }
        context_.TryCancel();
        if (release) RemoveHold();
    }

    static Task<Result<std::string>> next(std::shared_ptr<ClientCall> call) {
        if (!call->end_ && call->begin_read()) {
            call->incoming_.Clear();
            call->StartRead(&call->incoming_);
        }
        while (!call->message_ && !call->end_) co_await call->changed_.wait();
        if (call->message_) {
            std::string m = std::move(*call->message_);
            call->message_.reset();
            co_return m;
        }
        if (call->end_->ok()) co_return Error{Code::kNotFound, "end of stream"};
        co_return call->end_->error();
    }

    // Reactions.
    void OnReadDone(bool ok) override {
        bool release = false;
        std::string bytes;
        if (ok) bytes = to_string(incoming_);
        {
            const std::lock_guard lock(mutex_);
            reading_ = false;
            if (!ok) ended_ = true;
            if (!ok || cancelled_) release = !std::exchange(released_, true);
        }
        if (ok) {
            loop_.post([self = self_, m = std::move(bytes)]() mutable {
                self->message_ = std::move(m);
                self->changed_.wake(Wake::kEvent);
            });
        }
        if (release) RemoveHold();
    }
    void OnDone(const grpc::Status& status) override {
        loop_.post([self = self_, end = result_of(status)] {
            self->end_ = end;
            self->changed_.wake(Wake::kEvent);
        });
        const auto count = count_;
        std::exchange(self_, nullptr)
            .reset();  // perhaps the last: nothing of this is used after it
        count->remove();
    }

  private:
    bool begin_read() {
        const std::lock_guard lock(mutex_);
        if (reading_ || ended_ || cancelled_) return false;
        reading_ = true;
        return true;
    }

    Result<void> result_of(const grpc::Status& status) const {
        if (status.ok()) return {};
        Error error{from_grpc(status.error_code()), status.error_message()};
        const auto& trailers = context_.GetServerTrailingMetadata();
        if (const auto code = trailers.find(kCodeKey); code != trailers.end())
            error.code = code_from_name({code->second.data(), code->second.size()});
        if (const auto param = trailers.find(kParamKey); param != trailers.end())
            error.param.assign(param->second.data(), param->second.size());
        return error;
    }

    Loop& loop_;
    grpc::ClientContext context_;
    grpc::ByteBuffer outgoing_, incoming_;
    // Loop only.
    Waiter changed_;
    std::optional<std::string> message_;
    std::optional<Result<void>> end_;

    std::mutex mutex_;
    bool reading_ = false, ended_ = false, cancelled_ = false,
         released_ = false;  // guarded by mutex_

    std::shared_ptr<CallCount> count_;
    std::shared_ptr<ClientCall> self_;  // until OnDone
};

class GrpcStream final : public RpcStream {
  public:
    explicit GrpcStream(std::shared_ptr<ClientCall> call) : call_(std::move(call)) {}
    ~GrpcStream() override { call_->cancel(); }
    Task<Result<std::string>> next() override { return ClientCall::next(call_); }

  private:
    std::shared_ptr<ClientCall> call_;
};

class GrpcClient final : public RpcClient {
  public:
    GrpcClient(Loop& loop, const std::string& target) : loop_(loop), stub_(channel(target)) {}
    ~GrpcClient() override { count_->wait_none(); }

    Task<Result<std::string>> call(std::string method, std::string request,
                                   TimePoint deadline) override {
        return unary(open(std::move(method), std::move(request), deadline));
    }
    std::unique_ptr<RpcStream> open(std::string method, std::string request,
                                    TimePoint deadline) override {
        auto call = std::make_shared<ClientCall>(loop_, count_);
        call->start(stub_, method, request, deadline);
        return std::make_unique<GrpcStream>(std::move(call));
    }

  private:
    static Task<Result<std::string>> unary(std::unique_ptr<RpcStream> stream) {
        auto answer = co_await stream->next();
        // A method that sends nothing is a stream that was called as unary.
        if (!answer.ok() && answer.code() == Code::kNotFound &&
            answer.error().message == "end of stream")
            co_return Error{Code::kInternal, "the method ended without an answer"};
        co_return answer;
    }
    static std::shared_ptr<grpc::Channel> channel(const std::string& target) {
        grpc::ChannelArguments arguments;
        arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxRpcMessage));
        arguments.SetMaxSendMessageSize(static_cast<int>(kMaxRpcMessage));
        // A process that restarts is found again within a second and not after gRPC's 20.
        arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
        arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
        return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
    }

    Loop& loop_;
    std::shared_ptr<CallCount> count_ = std::make_shared<CallCount>();
    grpc::GenericStub stub_;
};

// ------------------------------------------------------------------ server

class GrpcServer;

class ServerCall final : public grpc::ServerGenericBidiReactor,
                         public std::enable_shared_from_this<ServerCall> {
  public:
    ServerCall(Loop& loop, grpc::GenericCallbackServerContext* context)
        : loop_(loop), context_(context), written_(loop) {}

    // gRPC's thread, before any reaction. `arrived` runs on the loop when the request is complete.
    void refuse(const Error& error) {
        self_ = shared_from_this();
        finish(error);
    }
    void begin(std::move_only_function<void(std::shared_ptr<ServerCall>, std::string)> arrived) {
        self_ = shared_from_this();
        arrived_ = std::move(arrived);
        StartRead(&incoming_);
    }

    const std::string& method() const { return context_->method(); }

    // Loop. false: the caller has gone.
    static Task<bool> send(std::shared_ptr<ServerCall> call, std::string message) {
        if (call->gone_ || call->finished_) co_return false;
        call->outgoing_ = to_buffer(message);
        call->write_result_.reset();
        call->StartWrite(&call->outgoing_);
        while (!call->write_result_) co_await call->written_.wait();
        co_return *call->write_result_ && !call->gone_;
    }

    // Loop, or gRPC's thread before `arrived`. The first one counts.
    void finish(const Result<void>& result) {
        if (finished_.exchange(true)) return;
        if (result.ok()) return Finish(grpc::Status::OK);
        const Error& e = result.error();
        context_->AddTrailingMetadata(kCodeKey, std::string(code_info(e.code).name));
        if (!e.param.empty())
            context_->AddTrailingMetadata(kParamKey, e.param.substr(0, kMaxStatusMessage / 4));
        Finish({to_grpc(e.code), e.message.substr(0, kMaxStatusMessage)});
    }

    void OnReadDone(bool ok) override {
        if (!ok) return finish(Error{Code::kInvalidArgument, "a call without a request"});
        loop_.post([self = self_, bytes = to_string(incoming_)]() mutable {
            if (self->arrived_) std::exchange(self->arrived_, {})(self, std::move(bytes));
        });
    }
    void OnWriteDone(bool ok) override {
        loop_.post([self = self_, ok] {
            self->write_result_ = ok;
            self->written_.wake(Wake::kEvent);
        });
    }
    void OnCancel() override {
        loop_.post([self = self_] { self->gone_ = true; });
    }
    void OnDone() override { std::exchange(self_, nullptr).reset(); }

  private:
    Loop& loop_;
    grpc::GenericCallbackServerContext* context_;
    grpc::ByteBuffer incoming_, outgoing_;
    std::move_only_function<void(std::shared_ptr<ServerCall>, std::string)> arrived_;
    // Loop only.
    Waiter written_;
    std::optional<bool> write_result_;
    bool gone_ = false;

    std::atomic<bool> finished_{false};
    std::shared_ptr<ServerCall> self_;  // until OnDone
};

class GrpcServer final : public RpcServer, private grpc::CallbackGenericService {
  public:
    explicit GrpcServer(Loop& loop) : loop_(loop), idle_(loop) {}
    ~GrpcServer() override { shut_down(); }

    void handle(std::string method, RpcHandler handler) override {
        unary_[std::move(method)] = std::move(handler);
    }
    void handle_stream(std::string method, RpcStreamHandler handler) override {
        streams_[std::move(method)] = std::move(handler);
    }

    Result<std::uint16_t> start(const std::string& host, std::uint16_t port) override {
        CHECK(server_ == nullptr);
        grpc::ServerBuilder builder;
        int bound = 0;
        const std::string address = address_of(host, port);
        builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &bound);
        builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
        builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxRpcMessage));
        builder.SetMaxSendMessageSize(static_cast<int>(kMaxRpcMessage));
        builder.RegisterCallbackGenericService(this);
        server_ = builder.BuildAndStart();
        if (server_ == nullptr || bound == 0)
            return Error{
                Code::kConflict,
                address + " cannot be listened on; is it in use, or no address of this machine?"};
        return static_cast<std::uint16_t>(bound);
    }

    Task<void> stop(TimePoint deadline) override {
        stopping_ = true;
        while (!running_.empty()) {
            if (!co_await idle_.wait(deadline)) break;
        }
        shut_down();
    }

  private:
    struct Running {
        std::shared_ptr<ServerCall> call;
        RootTask task;
    };
    using At = std::list<Running>::iterator;

    grpc::ServerGenericBidiReactor* CreateReactor(
        grpc::GenericCallbackServerContext* context) override {
        const auto call = std::make_shared<ServerCall>(loop_, context);
        const std::lock_guard lock(mutex_);
        if (closed_) {
            call->refuse(stopped_error());
            return call.get();
        }
        std::erase_if(arriving_, [](const auto& weak) { return weak.expired(); });
        arriving_.push_back(call);
        call->begin([this, alive = std::weak_ptr<int>(alive_)](std::shared_ptr<ServerCall> c,
                                                               std::string request) {
            if (!alive.expired()) arrived(c, std::move(request));
        });
        return call.get();
    }

    static Error stopped_error() { return {Code::kUnavailable, "the server has stopped"}; }

    void arrived(const std::shared_ptr<ServerCall>& call, std::string request) {
        if (stopping_) return call->finish(Error{Code::kUnavailable, "the server is stopping"});
        const auto unary = unary_.find(call->method());
        const auto stream = streams_.find(call->method());
        if (unary == unary_.end() && stream == streams_.end())
            return call->finish(Error{Code::kUnsupported, "unknown method " + call->method()});
        const auto at = running_.emplace(running_.end());
        at->call = call;
        if (unary != unary_.end())
            at->task.start(run(at, unary->second, std::move(request)));
        else
            at->task.start(run_stream(at, stream->second, std::move(request)));
    }

    Task<void> run(At at, const RpcHandler& handler, std::string request) {
        auto result = co_await handler(std::move(request));
        if (!result.ok()) {
            at->call->finish(result.error());
        } else {
            (void)co_await ServerCall::send(at->call, std::move(*result));
            at->call->finish({});
        }
        done(at);
    }
    Task<void> run_stream(At at, const RpcStreamHandler& handler, std::string request) {
        const auto result = co_await handler(std::move(request), [call = at->call](std::string m) {
            return ServerCall::send(call, std::move(m));
        });
        at->call->finish(result);
        done(at);
    }
    void done(At at) {
        loop_.post([this, at, alive = std::weak_ptr<int>(alive_)] {
            if (alive.expired()) return;
            running_.erase(at);
            if (running_.empty()) idle_.notify();
        });
    }

    // Blocks until gRPC's threads have left: milliseconds, because by then every call has been told
    // its end.
    void shut_down() {
        if (server_ == nullptr) return;
        stopping_ = true;
        for (auto& r : running_) {
            r.task.reset();
            r.call->finish(stopped_error());
        }
        running_.clear();
        std::vector<std::weak_ptr<ServerCall>> rest;
        {
            const std::lock_guard lock(mutex_);
            closed_ = true;
            alive_.reset();
            rest.swap(arriving_);
        }
        for (const auto& weak : rest) {
            if (const auto call = weak.lock()) call->finish(stopped_error());
        }
        server_->Shutdown(std::chrono::system_clock::now());
        server_->Wait();
        server_.reset();
    }

    Loop& loop_;
    std::map<std::string, RpcHandler> unary_;
    std::map<std::string, RpcStreamHandler> streams_;
    Signal idle_;
    bool stopping_ = false;
    std::list<Running> running_;
    std::unique_ptr<grpc::Server> server_;

    std::mutex mutex_;
    bool closed_ = false;  // guarded by mutex_
    std::shared_ptr<int> alive_ =
        std::make_shared<int>(0);  // guarded by mutex_ against gRPC's threads
    std::vector<std::weak_ptr<ServerCall>>
        arriving_;  // guarded by mutex_; not yet finished, perhaps not yet on the loop
};

// gRPC writes its own lines to stderr, among our JSON logs; what matters comes back as an Error.
void quiet_grpc() {
    gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace

std::unique_ptr<RpcServer> make_grpc_server(Loop& loop) {
    quiet_grpc();
    return std::make_unique<GrpcServer>(loop);
}

std::unique_ptr<RpcClient> make_grpc_client(Loop& loop, const std::string& host,
                                            std::uint16_t port) {
    quiet_grpc();
    return std::make_unique<GrpcClient>(loop, address_of(host, port));
}

}  // namespace nereid::io
