#include "engine/host/engine_host.h"

#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "io/channel.h"
#include "io/root_task.h"
#include "model/engine_wire.h"

namespace nereid::engine {

namespace {

namespace wire = model::wire;

constexpr Duration kGreetingTimeout = 10s;
constexpr std::size_t kReadBytes = 64 << 10;

// One client, from accept to close. Shared by the two tasks that read and step.
struct Connection {
    Connection(io::Loop& loop, std::unique_ptr<io::Stream> s)
        : stream(std::move(s)), wake(loop, 1), reader_done(loop, 1) {}

    std::unique_ptr<io::Stream> stream;
    wire::Decoder decoder;
    io::Channel<char> wake;  // something to do: a command, a ping, the end
    io::Channel<char> reader_done;
    std::set<RequestId> requests;  // added and not finished
    std::optional<std::uint64_t>
        pong;  // a newer ping replaces it: any pong proves that the loop turns
    bool ended = false;

    void end() {
        ended = true;
        wake.push(0);
    }
};

}  // namespace

struct EngineHost::State {
    State(io::Loop& l, Engine& e, ops::Logger& lg) : loop(l), engine(e), log(lg) {}

    io::Loop& loop;
    Engine& engine;
    ops::Logger& log;
    HostCounters counters;
    std::unique_ptr<io::Listener> listener;
    Connection* current = nullptr;
    bool stopping = false;

    io::Task<Result<void>> serve(std::unique_ptr<io::Stream> stream);
    io::Task<bool> greet(Connection& c);
    io::Task<void> read_commands(Connection& c);
    Result<void> on_message(Connection& c, wire::Message message);
    io::Task<Result<void>> step_until_end(Connection& c);
    Result<void> abort_requests(Connection& c);
    io::Task<Result<std::optional<wire::Message>>> next_message(Connection& c, TimePoint deadline);

    void bad_message(const Error& error, const Connection& c) {
        ++counters.bad_messages;
        log.warn("engine host: bad message, closing the connection",
                 {{"error", error.message}, {"peer", c.stream->peer()}});
    }
    void forget_finished(Connection& c, const model::StepFrame& frame) const {
        for (const auto& f : frame.finished) c.requests.erase(f.id);
    }
};

EngineHost::EngineHost(io::Loop& loop, Engine& engine, ops::Logger& log)
    : state_(std::make_unique<State>(loop, engine, log)) {}

EngineHost::~EngineHost() = default;

const HostCounters& EngineHost::counters() const { return state_->counters; }

void EngineHost::stop() {
    State& s = *state_;
    s.stopping = true;
    if (s.listener) s.listener->close();
    if (s.current != nullptr) {
        s.current->end();
        s.current->stream->close();
    }
}

io::Task<Result<void>> EngineHost::run(std::unique_ptr<io::Listener> listener) {
    State& s = *state_;
    s.listener = std::move(listener);
    while (!s.stopping) {
        auto stream = co_await s.listener->accept();
        if (!stream.ok()) {
            if (s.stopping) break;
            co_return stream.error();
        }
        CO_TRY_VOID(co_await s.serve(std::move(*stream)));
    }
    co_return Result<void>{};
}

io::Task<Result<void>> EngineHost::State::serve(std::unique_ptr<io::Stream> stream) {
    ++counters.connections;
    Connection c(loop, std::move(stream));
    current = &c;
    engine.set_waker([&c] { c.wake.push(0); });
    Result<void> result;
    if (co_await greet(c)) {
        io::RootTask
            reader;  // goes with this task, also when the process is killed in a simulation
        reader.start(read_commands(c));
        result = co_await step_until_end(c);
        c.ended = true;
        c.stream->close();  // ends the reader
        (void)co_await c.reader_done.pop();
    }
    c.stream->close();
    current = nullptr;
    engine.set_waker({});
    if (result.ok()) result = abort_requests(c);
    co_return result;
}

// A message, or nullopt at the end of the connection (or the deadline); kCorrupt for bytes that are
// none.
io::Task<Result<std::optional<wire::Message>>> EngineHost::State::next_message(Connection& c,
                                                                               TimePoint deadline) {
    char buffer[4096];  // greetings are small; the reader has its own buffer
    for (;;) {
        CO_TRY(auto message, c.decoder.next());
        if (message) co_return std::move(message);
        auto n = co_await c.stream->read(buffer, deadline);
        if (!n.ok() && n.code() == Code::kDeadlineExceeded) ++counters.greeting_timeouts;
        if (!n.ok() || *n == 0) co_return std::optional<wire::Message>{};
        c.decoder.feed({buffer, *n});
    }
}

io::Task<bool> EngineHost::State::greet(Connection& c) {
    auto first = co_await next_message(c, loop.now() + kGreetingTimeout);
    if (!first.ok()) {
        bad_message(first.error(), c);
        co_return false;
    }
    if (!*first) co_return false;
    const auto* hello = std::get_if<wire::Hello>(&**first);
    if (hello == nullptr) {
        bad_message({Code::kCorrupt, "the first message is not a greeting"}, c);
        co_return false;
    }
    std::string out;
    const bool ours = hello->version_min <= wire::kVersion && wire::kVersion <= hello->version_max;
    if (ours) {
        wire::encode(wire::Message{wire::Welcome{wire::kVersion, engine.info()}}, out);
    } else {
        ++counters.refused;
        wire::encode(
            wire::Message{wire::Refuse{
                {Code::kUnsupported, "engine-wire version " + std::to_string(wire::kVersion) +
                                         " is spoken here; the client offers " +
                                         std::to_string(hello->version_min) + " to " +
                                         std::to_string(hello->version_max)}}},
            out);
    }
    const std::string_view pieces[] = {out};
    const bool written = (co_await c.stream->write(pieces)).ok();
    co_return written&& ours;
}

io::Task<void> EngineHost::State::read_commands(Connection& c) {
    std::string buffer(kReadBytes, '\0');
    while (!c.ended) {
        // What came together with the greeting is in the decoder already.
        Result<void> handled;
        for (;;) {
            auto message = c.decoder.next();
            if (!message.ok()) {
                handled = message.error();
                break;
            }
            if (!*message) break;
            handled = on_message(c, std::move(**message));
            if (!handled.ok()) break;
        }
        if (!handled.ok()) {
            bad_message(handled.error(), c);
            break;
        }
        auto n = co_await c.stream->read(buffer);
        if (!n.ok() || *n == 0) break;
        c.decoder.feed({buffer.data(), *n});
    }
    c.end();
    c.stream->close();  // a write that waits for a client that is gone returns
    c.reader_done.push(0);
}

Result<void> EngineHost::State::on_message(Connection& c, wire::Message message) {
    if (const auto* ping = std::get_if<wire::Ping>(&message)) {
        c.pong = ping->nonce;
    } else if (auto* command = std::get_if<model::Command>(&message)) {
        ++counters.commands;
        if (const auto* add = std::get_if<model::AddRequest>(command)) c.requests.insert(add->id);
        if (const auto* admit = std::get_if<model::AdmitDecode>(command))
            c.requests.insert(admit->request.id);
        engine.submit(std::move(*command), loop.now());
    } else if (!std::holds_alternative<wire::Pong>(message)) {
        return Error{Code::kCorrupt, "a message that a client may not send"};
    }
    c.wake.push(0);
    return {};
}

io::Task<Result<void>> EngineHost::State::step_until_end(Connection& c) {
    std::string out;
    while (!c.ended) {
        out.clear();
        if (engine.due(loop.now())) {
            CO_TRY(auto frame, engine.step(loop.now()));
            ++counters.steps;
            forget_finished(c, frame);
            // A step of prefill alone says nothing about a request, but it is progress and has a
            // load report.
            wire::encode(frame, out);
        }
        if (c.pong)
            wire::encode(wire::Message{wire::Pong{*std::exchange(c.pong, std::nullopt)}}, out);
        if (out.empty()) {
            (void)co_await c.wake.pop(engine.wake_at());
            continue;
        }
        const std::string_view pieces[] = {out};
        if (!(co_await c.stream->write(pieces)).ok()) break;
        // The loop looks at the socket and the reader handles what is there: a command that has
        // arrived by now is applied before the next step.
        co_await loop.yield();
    }
    co_return Result<void>{};
}

Result<void> EngineHost::State::abort_requests(Connection& c) {
    counters.orphans += c.requests.size();
    for (const RequestId id : c.requests) engine.submit(model::AbortRequest{id}, loop.now());
    // The next client must not hear of them.
    while (!c.requests.empty() && engine.due(loop.now())) {
        TRY(auto frame, engine.step(loop.now()));
        ++counters.steps;
        forget_finished(c, frame);
    }
    return {};
}

}  // namespace nereid::engine
