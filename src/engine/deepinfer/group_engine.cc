#include "engine/deepinfer/group_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "io/root_task.h"
#include "model/engine_wire.h"

namespace nereid::engine::deepinfer {

namespace {

namespace wire = model::wire;

constexpr std::size_t kReadBytes = 256 << 10;
constexpr Duration kConnectPause = 50ms;
constexpr std::size_t kPendingTokens =
    1 << 16;  // beyond them ranks are not read until the client has
constexpr int kConfigExit = 2;

}  // namespace

struct GroupEngine::State {
    struct Rank {
        Rank(State& s, RankLaunch l)
            : state(s), launch(std::move(l)), outgoing(s.loop), resume_reading(s.loop) {}
        State& state;
        RankLaunch launch;
        std::unique_ptr<io::Process> process;
        std::unique_ptr<io::Stream> stream;
        wire::Decoder decoder;
        std::string outbox;
        io::Signal outgoing;
        io::Signal resume_reading;
        std::optional<model::EngineInfo> info;
        model::Load load;
        TimePoint heard;
        std::optional<TimePoint> pinged;  // nothing was heard since
        std::string last_line;
        io::RootTask watching, talking, writing;
    };

    State(io::Loop& l, io::Network& n, io::ProcessLauncher& p, ops::Logger& lg, GroupOptions o)
        : loop(l), network(n), launcher(p), log(lg), options(std::move(o)), router(0), changed(l) {}

    io::Loop& loop;
    io::Network& network;
    io::ProcessLauncher& launcher;
    ops::Logger& log;
    const GroupOptions options;
    std::vector<std::unique_ptr<Rank>> ranks;
    GroupRouter router;
    model::EngineInfo info;
    std::optional<Error> failed;
    model::StepFrame pending;
    bool news = false;
    std::uint64_t steps = 0;
    std::uint64_t nonce = 0;
    GroupCounters counters;
    std::function<void()> wake;
    io::Signal changed;  // while starting: a greeting, or a failure

    std::vector<std::pair<std::string, std::string>> python_path() const;
    std::string socket_of(const Rank& r) const;
    io::Task<Result<std::vector<RankLaunch>>> read_config();
    Result<void> launch(Rank& r);
    io::Task<void> watch(Rank& r);
    io::Task<bool> connect(Rank& r);
    io::Task<void> talk(Rank& r);
    io::Task<void> write(Rank& r);
    void on_message(Rank& r, wire::Message message);
    void send(Rank& r, const wire::Message& message);
    void send(Rank& r, const model::Command& command);
    void command_for(RequestId id, const model::Command& command, bool kv);
    void fail(Error error);
    void tell() {
        news = true;
        changed.notify();
        if (wake) wake();
    }
    std::size_t pending_tokens() const { return pending.tokens.size(); }
};

// ---------------------------------------------------------------- starting

std::vector<std::pair<std::string, std::string>> GroupEngine::State::python_path() const {
    std::vector<std::pair<std::string, std::string>> out{{"PYTHONUNBUFFERED", "1"}};
    if (!options.package_folder.empty()) out.emplace_back("PYTHONPATH", options.package_folder);
    return out;
}

std::string GroupEngine::State::socket_of(const Rank& r) const {
    return fmt::format("{}{}.sock", options.socket_prefix, r.launch.rank);
}

// The configuration is read where it is declared: by the Python side.
io::Task<Result<std::vector<RankLaunch>>> GroupEngine::State::read_config() {
    std::string text, last_line;
    io::ProcessSpec spec;
    spec.argv = {options.python, "-m",           "nereid_deepinfer",
                 "--config",     options.config, "--print-environment"};
    spec.env_extra = python_path();
    spec.on_line = [&text, &last_line](std::string_view line, bool is_stderr) {
        if (is_stderr) {
            last_line = line;
        } else {
            text.append(line).push_back('\n');
        }
    };
    CO_TRY(const auto process, launcher.start(std::move(spec)));
    const io::ExitStatus status = co_await process->wait();
    if (status.code != 0 || status.signal != 0) {
        co_return Error{
            status.code == kConfigExit || status.code == 1 ? Code::kConfig : Code::kUnavailable,
            last_line.empty() ? options.python + ": " + status.to_string() : last_line};
    }
    co_return parse_launches(text);
}

Result<void> GroupEngine::State::launch(Rank& r) {
    io::ProcessSpec spec;
    spec.argv = {r.launch.python,
                 "-m",
                 "nereid_deepinfer",
                 "--config",
                 options.config,
                 "--rank",
                 std::to_string(r.launch.rank),
                 "--socket",
                 socket_of(r)};
    spec.env_extra = python_path();
    for (const auto& variable : r.launch.environment) spec.env_extra.push_back(variable);
    spec.on_line = [this, &r](std::string_view line, bool is_stderr) {
        if (line.empty()) return;
        if (is_stderr) r.last_line = line;
        log.info("rank", {{"rank", r.launch.rank}, {"line", line}});
    };
    TRY(r.process, launcher.start(std::move(spec)));
    r.heard = loop.now();
    r.watching.start(watch(r));
    r.talking.start(talk(r));
    return {};
}

io::Task<Result<void>> GroupEngine::start() {
    State& s = *state_;
    CO_TRY(auto launches, co_await s.read_config());
    s.router = GroupRouter(launches.size());
    for (auto& launch : launches)
        s.ranks.push_back(std::make_unique<State::Rank>(s, std::move(launch)));
    for (const auto& rank : s.ranks) CO_TRY_VOID(s.launch(*rank));
    const TimePoint deadline = s.loop.now() + s.options.start_timeout;
    const auto greeted = [](const auto& r) { return r->info.has_value(); };
    while (!s.failed && !std::all_of(s.ranks.begin(), s.ranks.end(), greeted)) {
        if (!co_await s.changed.wait(deadline) && s.loop.now() >= deadline)
            s.fail({Code::kUnavailable, "not all ranks have greeted within the start time-out"});
    }
    if (s.failed) co_return *s.failed;
    std::vector<model::EngineInfo> infos;
    for (const auto& rank : s.ranks) infos.push_back(*rank->info);
    CO_TRY(s.info, merge_infos(infos));
    s.news = false;
    co_return Result<void>{};
}

// ---------------------------------------------------------------- one rank

io::Task<void> GroupEngine::State::watch(Rank& r) {
    const io::ExitStatus status = co_await r.process->wait();
    const bool config = status.code == kConfigExit && status.signal == 0 && !r.info;
    fail({config ? Code::kConfig : Code::kUnavailable,
          fmt::format("rank {}: {}{}{}", r.launch.rank, status.to_string(),
                      r.last_line.empty() ? "" : ": ", r.last_line)});
}

io::Task<bool> GroupEngine::State::connect(Rank& r) {
    while (!failed) {
        auto stream = co_await network.connect({.host = {}, .port = 0, .unix_path = socket_of(r)},
                                               loop.now() + 1s);
        if (stream.ok()) {
            r.stream = std::move(*stream);
            co_return true;
        }
        co_await loop.sleep_for(kConnectPause);  // it loads; start() has the time-out
    }
    co_return false;
}

io::Task<void> GroupEngine::State::talk(Rank& r) {
    if (!co_await connect(r)) co_return;
    send(r, wire::Message{wire::Hello{wire::kVersion, wire::kVersion, "nereid worker"}});
    r.writing.start(write(r));
    std::string buffer(kReadBytes, '\0');
    while (!failed) {
        while (pending_tokens() > kPendingTokens && !failed) co_await r.resume_reading.wait();
        const auto n = co_await r.stream->read(buffer);
        if (!n.ok() || *n == 0) {
            fail({Code::kUnavailable,
                  fmt::format("rank {}: {}", r.launch.rank,
                              n.ok() ? "closed its socket" : n.error().message)});
            co_return;
        }
        r.decoder.feed({buffer.data(), *n});
        for (;;) {
            auto message = r.decoder.next();
            if (!message.ok()) {
                fail({Code::kCorrupt,
                      fmt::format("rank {}: {}", r.launch.rank, message.error().message)});
                co_return;
            }
            if (!*message) break;
            on_message(r, std::move(**message));
        }
    }
}

io::Task<void> GroupEngine::State::write(Rank& r) {
    std::string out;
    while (!failed) {
        if (r.outbox.empty()) {
            co_await r.outgoing.wait();
            continue;
        }
        out.clear();
        out.swap(r.outbox);
        const std::string_view pieces[] = {out};
        const auto written = co_await r.stream->write(pieces);
        if (!written.ok()) {
            fail({Code::kUnavailable,
                  fmt::format("rank {}: {}", r.launch.rank, written.error().message)});
            co_return;
        }
    }
}

void GroupEngine::State::on_message(Rank& r, wire::Message message) {
    r.heard = loop.now();
    r.pinged.reset();
    if (auto* frame = std::get_if<model::StepFrame>(&message); frame != nullptr && r.info) {
        ++counters.frames;
        router.on_frame(static_cast<std::size_t>(
                            std::find_if(ranks.begin(), ranks.end(),
                                         [&r](const auto& other) { return other.get() == &r; }) -
                            ranks.begin()),
                        *frame);
        r.load = frame->load;
        merge_frame(pending, std::move(*frame));
        tell();
    } else if (auto* welcome = std::get_if<wire::Welcome>(&message);
               welcome != nullptr && !r.info) {
        r.info = std::move(welcome->info);
        tell();
    } else if (const auto* refuse = std::get_if<wire::Refuse>(&message);
               refuse != nullptr && !r.info) {
        fail({Code::kConfig,
              fmt::format("rank {} refuses: {}", r.launch.rank, refuse->error.message)});
    } else if (const auto* ping = std::get_if<wire::Ping>(&message)) {
        send(r, wire::Message{wire::Pong{ping->nonce}});
    } else if (!std::holds_alternative<wire::Pong>(message)) {
        fail({Code::kCorrupt,
              fmt::format("rank {}: a message that an engine may not send now", r.launch.rank)});
    }
}

void GroupEngine::State::send(Rank& r, const wire::Message& message) {
    wire::encode(message, r.outbox);
    r.outgoing.notify();
}

void GroupEngine::State::send(Rank& r, const model::Command& command) {
    if (wire::encode(command, r.outbox)) {
        r.outgoing.notify();
        return;
    }
    ++counters.unsendable;
    const auto* add = std::get_if<model::AddRequest>(&command);
    const auto* admit = std::get_if<model::AdmitDecode>(&command);
    if (add == nullptr && admit == nullptr) return;
    model::Finished end;
    end.id = add != nullptr ? add->id : admit->request.id;
    end.reason = model::EndReason::kFailed;
    end.error = Error{Code::kTooLarge, "the request is larger than a message to an engine may be"};
    model::StepFrame frame;
    frame.finished.push_back(std::move(end));
    if (const auto rank = router.rank_of(frame.finished[0].id)) router.on_frame(*rank, frame);
    merge_frame(pending, std::move(frame));
    tell();
}

void GroupEngine::State::command_for(RequestId id, const model::Command& command, bool kv) {
    if (const auto rank = router.rank_of(id)) {
        send(*ranks[*rank], command);
    } else if (kv) {
        pending.kv_failed.push_back({id, {Code::kNotFound, "no rank has this request"}});
        tell();
    }
}

void GroupEngine::State::fail(Error error) {
    if (failed) return;
    log.warn("the group has failed", {{"error", error.message}});
    failed = std::move(error);
    tell();
}

// ---------------------------------------------------------------- the Engine

GroupEngine::GroupEngine(io::Loop& loop, io::Network& network, io::ProcessLauncher& launcher,
                         ops::Logger& log, GroupOptions options)
    : state_(std::make_unique<State>(loop, network, launcher, log, std::move(options))) {}

GroupEngine::~GroupEngine() {
    state_->wake = nullptr;
    for (const auto& rank : state_->ranks) {
        rank->writing.reset();
        rank->talking.reset();
        rank->watching.reset();
    }
}

const model::EngineInfo& GroupEngine::info() const { return state_->info; }
const GroupCounters& GroupEngine::counters() const { return state_->counters; }
void GroupEngine::set_waker(std::function<void()> wake) { state_->wake = std::move(wake); }
bool GroupEngine::has_output() const { return state_->news; }

std::vector<int> GroupEngine::pids() const {
    std::vector<int> out;
    for (const auto& rank : state_->ranks)
        if (rank->process) out.push_back(rank->process->pid());
    return out;
}

TimePoint GroupEngine::wake_at() const {
    TimePoint next = TimePoint::never();
    for (const auto& rank : state_->ranks) {
        const TimePoint since = rank->pinged ? *rank->pinged : rank->heard;
        next = std::min(next, since + state_->options.progress_timeout / 2);
    }
    return next;
}

void GroupEngine::submit(model::Command command, TimePoint) {
    State& s = *state_;
    if (s.failed) return;  // the next step() says so
    if (const auto* add = std::get_if<model::AddRequest>(&command)) {
        const std::size_t rank = s.router.place(*add);
        s.send(*s.ranks[rank], command);
    } else if (const auto* admit = std::get_if<model::AdmitDecode>(&command)) {
        const std::size_t rank = s.router.place(admit->request);
        s.send(*s.ranks[rank], command);
    } else if (const auto* abort = std::get_if<model::AbortRequest>(&command)) {
        s.command_for(abort->id, command, false);
    } else if (const auto* import = std::get_if<model::ImportPrefix>(&command)) {
        s.command_for(import->id, command, true);
    } else if (const auto* blocks = std::get_if<model::ExportBlocks>(&command)) {
        s.command_for(blocks->id, command, true);
    } else if (const auto* pin = std::get_if<model::Pin>(&command)) {
        s.command_for(pin->id, command, false);
    } else if (const auto* release = std::get_if<model::Release>(&command)) {
        if (const auto rank = s.router.release(release->id)) s.send(*s.ranks[*rank], command);
    } else {  // Drain, MapRegion: for all
        for (const auto& rank : s.ranks) s.send(*rank, command);
    }
}

Result<model::StepFrame> GroupEngine::step(TimePoint now) {
    State& s = *state_;
    for (const auto& rank : s.ranks) {
        // Silence counts from our own question: while no client is there nobody asks.
        const Duration patience = s.options.progress_timeout / 2;
        if (rank->pinged && now - *rank->pinged >= patience && !s.failed) {
            s.fail({Code::kUnavailable,
                    fmt::format("rank {} has said nothing for {} ms", rank->launch.rank,
                                static_cast<std::int64_t>(to_ms(now - rank->heard)))});
        } else if (!rank->pinged && now - rank->heard >= patience) {
            rank->pinged = now;
            ++s.counters.pings;
            s.send(*rank, wire::Message{wire::Ping{++s.nonce}});
        }
    }
    if (s.failed) return *s.failed;
    model::StepFrame frame = std::exchange(s.pending, {});
    s.news = false;
    frame.step = {++s.steps};
    std::vector<model::Load> loads;
    for (const auto& rank : s.ranks) loads.push_back(rank->load);
    frame.load = merge_loads(loads);
    for (const auto& rank : s.ranks) rank->resume_reading.notify();
    return frame;
}

}  // namespace nereid::engine::deepinfer
