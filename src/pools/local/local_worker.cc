#include "pools/local/local_worker.h"

#include <array>
#include <atomic>
#include <map>
#include <utility>
#include <variant>

#include "base/check.h"
#include "io/channel.h"
#include "model/engine_wire.h"
#include "pools/local/supervisor.h"
#include "pools/local/worker_metrics.h"

namespace nereid::pools {

namespace {

namespace wire = model::wire;

constexpr Duration kConnectPause = 10ms;  // between attempts while the child loads its model
constexpr std::size_t kReadBytes = 256 << 10;
constexpr int kSigKill = 9;
constexpr int kSigTerm = 15;

struct Core;

// The end of one handle on its loop: who is called for which request. Everything but `loop` and
// `route` belongs to that loop. Shared by the handle, its sessions and what is under way to it.
struct Mailbox {
    Mailbox(io::Loop& l, std::uint32_t r) : loop(l), route(r) {}

    io::Loop& loop;
    const std::uint32_t route;
    std::map<RequestId, UpdateFn> calls;  // requests whose session lives and which have not ended
    WorkerStatus status;

    void deliver(std::vector<std::pair<RequestId, Update>> updates) {
        for (auto& [id, update] : updates) {
            const auto it = calls.find(id);
            if (it == calls.end()) continue;  // its session has been destroyed
            const bool last = update.finished || update.error;
            // The callee may destroy its own session, and others: it is not called from inside the
            // map.
            UpdateFn fn = std::move(it->second);
            if (last) calls.erase(it);
            fn(std::move(update));
            if (last) continue;
            if (const auto still = calls.find(id); still != calls.end())
                still->second = std::move(fn);
        }
    }
};

// One connection to one child.
struct Link {
    explicit Link(io::Loop& loop) : wake(loop, 1) {}
    std::unique_ptr<io::Stream> stream;  // null until connected
    wire::Decoder decoder;
    std::string outbox;
    io::Channel<char> wake;
    bool greeted = false;
    bool closed = false;

    // False: the message is larger than the wire allows; nothing was sent.
    bool send(const wire::Message& message) {
        if (!wire::encode(message, outbox)) return false;
        wake.push(0);
        return true;
    }
    void close() {
        closed = true;
        wake.close();
        if (stream) stream->close();
    }
};

struct Core : std::enable_shared_from_this<Core> {
    Core(io::Loop& l, io::Network& n, io::ProcessLauncher& p, ops::Logger& lg, ops::Registry& m,
         LocalWorkerOptions o)
        : loop(l),
          network(n),
          launcher(p),
          log(lg),
          options(std::move(o)),
          supervisor(config_of(options)),
          metrics(m, options.name),
          stopped(l, 1) {}

    static SupervisorConfig config_of(const LocalWorkerOptions& o) {
        SupervisorConfig c;
        c.queue_max = static_cast<std::uint64_t>(o.queue_max);
        c.start_timeout = o.start_timeout;
        c.progress_timeout = o.progress_timeout;
        return c;
    }

    io::Loop& loop;
    io::Network& network;
    io::ProcessLauncher& launcher;
    ops::Logger& log;
    const LocalWorkerOptions options;
    Supervisor supervisor;
    WorkerMetrics metrics;
    std::atomic<std::uint64_t> next_id{1};  // any thread
    std::vector<std::shared_ptr<Mailbox>> mailboxes;
    std::shared_ptr<io::Process> process;
    std::shared_ptr<Link> link;
    std::string last_line;
    io::Loop::TimerId timer = 0;
    TimePoint timer_at = TimePoint::never();
    io::Channel<char> stopped;
    std::pair<WorkerState, std::string> logged{WorkerState::kStarting, {}};
    std::array<std::uint32_t, 3> told{};  // running, waiting, in flight: as the handles know them
    std::function<void(const WorkerStatus&)> on_state;
    bool shut = false;

    void apply(SupervisorEvent event);
    void perform(Actions& actions);
    void post_updates(Actions& actions);
    void send(Actions& actions);
    void start_child();
    void arm();
    void log_state();
    void shutdown();
    io::Task<void> watch(std::shared_ptr<io::Process> child);
    io::Task<void> converse(std::shared_ptr<Link> l);
    io::Task<bool> connect(Link& l);
    io::Task<void> write(std::shared_ptr<Link> l);
    void on_message(Link& l, wire::Message message);
    void link_ended(const Link& l, std::string reason);
};

// ---------------------------------------------------------------- decisions carried out

void Core::apply(SupervisorEvent event) {
    if (shut) return;
    Actions actions = supervisor.step(std::move(event), loop.now());
    perform(actions);
}

void Core::perform(Actions& actions) {
    metrics.update(supervisor);
    if (actions.state_changed) log_state();
    post_updates(actions);
    if (actions.close_link && link) std::exchange(link, nullptr)->close();
    if (actions.kill_child && process) process->signal(kSigKill);
    if (actions.terminate_child && process) process->signal(kSigTerm);
    send(actions);
    if (actions.stopped) stopped.push(0);
    arm();
    if (actions.start_child) start_child();  // last: it calls apply
}

// One post per loop, whatever the number of requests.
void Core::post_updates(Actions& actions) {
    const WorkerStatus& now = supervisor.status();
    // Handles hear of a step when it says something about their requests, or when the counts that
    // people watch change.
    const std::array<std::uint32_t, 3> counts{now.load.running, now.load.waiting, now.in_flight};
    const bool counts_changed = std::exchange(told, counts) != counts;
    if (actions.deliver.empty() && !actions.state_changed && !counts_changed) return;
    std::vector<std::vector<std::pair<RequestId, Update>>> by_route(mailboxes.size());
    for (auto& d : actions.deliver) by_route[d.route].emplace_back(d.id, std::move(d.update));
    for (const auto& box : mailboxes) {
        auto& updates = by_route[box->route];
        if (actions.state_changed) {
            box->loop.post([box, updates = std::move(updates), status = now]() mutable {
                box->status = std::move(status);
                box->deliver(std::move(updates));
            });
        } else if (!updates.empty() || (counts_changed && &box->loop != &loop)) {
            // The greeting and the texts have not changed: they are not copied at every step.
            box->loop.post([box, updates = std::move(updates), load = now.load, steps = now.steps,
                            in_flight = now.in_flight]() mutable {
                box->status.load = load;
                box->status.steps = steps;
                box->status.in_flight = in_flight;
                box->deliver(std::move(updates));
            });
        }
    }
    if (actions.state_changed && on_state) on_state(now);
}

void Core::send(Actions& actions) {
    if (!link) return;
    std::vector<RequestId> unsendable;
    for (auto& command : actions.send) {
        const auto* add = std::get_if<model::AddRequest>(&command);
        const RequestId id = add == nullptr ? RequestId{} : add->id;
        if (!link->send(std::move(command))) unsendable.push_back(id);
    }
    if (actions.ping) link->send(wire::Ping{*actions.ping});
    for (const RequestId id : unsendable) apply(UnsendableEvent{id});
}

// Timers move with every frame: an early tick is harmless, so the timer is only ever armed earlier,
// not later.
void Core::arm() {
    const TimePoint at = supervisor.wake_at();
    if (at >= timer_at) return;
    if (timer != 0) loop.cancel(timer);
    timer_at = at;
    timer = loop.arm(at, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        self->timer = 0;
        self->timer_at = TimePoint::never();
        self->apply(TickEvent{});
    });
}

void Core::log_state() {
    const WorkerStatus& s = supervisor.status();
    const std::pair news{s.state, s.last_error};
    if (std::exchange(logged, news) == news) return;
    const bool bad = s.state == WorkerState::kBackoff || s.state == WorkerState::kFailed;
    ops::Fields fields{{"worker", options.name}, {"state", to_string(s.state)}};
    if (bad) fields.push_back({"error", s.last_error});
    if (s.state == WorkerState::kBackoff) fields.push_back({"retry_in_ms", to_ms(s.retry_in)});
    if (s.pid != 0) fields.push_back({"pid", s.pid});
    if (bad) {
        log.warn("worker state", fields);
    } else {
        log.info("worker state", fields);
    }
}

void Core::start_child() {
    io::ProcessSpec spec;
    spec.argv = options.argv;
    spec.on_line = [weak = weak_from_this()](std::string_view line, bool is_stderr) {
        const auto self = weak.lock();
        if (!self || line.empty()) return;
        if (is_stderr) self->last_line = line;
        self->log.info("engine process", {{"worker", self->options.name}, {"line", line}});
    };
    last_line.clear();
    auto started = launcher.start(std::move(spec));
    if (!started.ok()) {
        apply(SpawnFailedEvent{started.error()});
        return;
    }
    process = std::move(*started);
    link = std::make_shared<Link>(loop);
    loop.spawn(watch(process));
    loop.spawn(converse(link));
    apply(SpawnedEvent{process->pid()});
}

void Core::shutdown() {
    shut = true;
    if (timer != 0) loop.cancel(std::exchange(timer, 0));
    if (link) std::exchange(link, nullptr)->close();
    if (process) process->signal(kSigKill);
    process = nullptr;
    stopped.close();
    on_state = nullptr;
}

// ---------------------------------------------------------------- the child and its socket

io::Task<void> Core::watch(std::shared_ptr<io::Process> child) {
    const auto self = shared_from_this();
    const io::ExitStatus status = co_await child->wait();
    if (process == child) process = nullptr;
    apply(ExitedEvent{status.code, status.signal, status.to_string(), last_line});
}

io::Task<bool> Core::connect(Link& l) {
    while (!l.closed) {
        auto stream = co_await network.connect(
            {.host = {}, .port = 0, .unix_path = options.socket_path}, loop.now() + 1s);
        if (l.closed) break;
        if (stream.ok()) {
            l.stream = std::move(*stream);
            co_return true;
        }
        co_await loop.sleep_for(
            kConnectPause);  // it does not listen yet; the start time-out is the supervisor's
    }
    co_return false;
}

io::Task<void> Core::converse(std::shared_ptr<Link> l) {
    const auto self = shared_from_this();
    if (!co_await connect(*l)) co_return;
    l->send(wire::Hello{wire::kVersion, wire::kVersion, "nereid " + options.name});
    loop.spawn(write(l));
    std::string buffer(kReadBytes, '\0');
    while (!l->closed) {
        auto n = co_await l->stream->read(buffer);
        if (!n.ok() || *n == 0) {
            link_ended(*l, n.ok() ? "closed by the process" : n.error().message);
            break;
        }
        l->decoder.feed({buffer.data(), *n});
        while (!l->closed) {
            auto message = l->decoder.next();
            if (!message.ok()) {
                apply(BadMessageEvent{message.error()});
                break;
            }
            if (!*message) break;
            on_message(*l, std::move(**message));
        }
    }
}

io::Task<void> Core::write(std::shared_ptr<Link> l) {
    const auto self = shared_from_this();
    std::string out;
    while (!l->closed) {
        if (l->outbox.empty()) {
            (void)co_await l->wake.pop();
            continue;
        }
        out.clear();
        out.swap(l->outbox);
        const std::string_view pieces[] = {out};
        const auto written = co_await l->stream->write(pieces);
        if (!written.ok()) {
            link_ended(*l, written.error().message);
            break;
        }
    }
}

void Core::on_message(Link& l, wire::Message message) {
    if (auto* frame = std::get_if<model::StepFrame>(&message); frame != nullptr && l.greeted) {
        apply(FrameEvent{std::move(*frame)});
    } else if (auto* welcome = std::get_if<wire::Welcome>(&message);
               welcome != nullptr && !l.greeted) {
        l.greeted = true;
        apply(GreetedEvent{std::move(welcome->info)});
    } else if (const auto* refuse = std::get_if<wire::Refuse>(&message);
               refuse != nullptr && !l.greeted) {
        apply(RefusedEvent{refuse->error});
    } else if (const auto* ping = std::get_if<wire::Ping>(&message)) {
        l.send(wire::Pong{ping->nonce});
    } else if (std::holds_alternative<wire::Pong>(message)) {
        apply(PongEvent{});
    } else {
        apply(BadMessageEvent{{Code::kCorrupt, "a message that an engine may not send now"}});
    }
}

void Core::link_ended(const Link& l, std::string reason) {
    if (!l.closed) apply(LinkClosedEvent{std::move(reason)});
}

// ---------------------------------------------------------------- what callers hold

class LocalSession final : public Session {
  public:
    LocalSession(std::shared_ptr<Core> core, std::shared_ptr<Mailbox> box, RequestId id)
        : core_(std::move(core)), box_(std::move(box)), id_(id) {}
    LocalSession(const LocalSession&) = delete;
    LocalSession& operator=(const LocalSession&) = delete;
    // The one place that aborts, and only what has not ended: exactly once (A55).
    ~LocalSession() override {
        if (box_->calls.erase(id_) == 0) return;
        if (&box_->loop == &core_->loop) {
            core_->apply(AbortEvent{id_});
        } else {
            core_->loop.post([core = core_, id = id_] { core->apply(AbortEvent{id}); });
        }
    }

  private:
    std::shared_ptr<Core> core_;
    std::shared_ptr<Mailbox> box_;
    RequestId id_;
};

class LocalHandle final : public WorkerHandle {
  public:
    LocalHandle(std::shared_ptr<Core> core, std::shared_ptr<Mailbox> box)
        : core_(std::move(core)), box_(std::move(box)) {}
    std::string_view name() const override { return core_->options.name; }
    const WorkerStatus& status() const override {
        return &box_->loop == &core_->loop ? core_->supervisor.status() : box_->status;
    }
    std::unique_ptr<Session> submit(model::AddRequest request, UpdateFn on_update) override {
        const RequestId id{core_->next_id.fetch_add(1, std::memory_order_relaxed)};
        request.id = id;
        box_->calls.emplace(id, std::move(on_update));
        SubmitEvent event{box_->route, std::move(request)};
        if (&box_->loop == &core_->loop) {
            core_->apply(
                std::move(event));  // what it answers is posted: never from inside this call
        } else {
            core_->loop.post(
                [core = core_, e = std::move(event)]() mutable { core->apply(std::move(e)); });
        }
        return std::make_unique<LocalSession>(core_, box_, id);
    }

  private:
    std::shared_ptr<Core> core_;
    std::shared_ptr<Mailbox> box_;
};

class LocalWorkerImpl final : public LocalWorker {
  public:
    explicit LocalWorkerImpl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
    LocalWorkerImpl(const LocalWorkerImpl&) = delete;
    LocalWorkerImpl& operator=(const LocalWorkerImpl&) = delete;
    ~LocalWorkerImpl() override { core_->shutdown(); }

    std::unique_ptr<WorkerHandle> handle_for(io::Loop& loop) override {
        auto box =
            std::make_shared<Mailbox>(loop, static_cast<std::uint32_t>(core_->mailboxes.size()));
        box->status = core_->supervisor.status();
        core_->mailboxes.push_back(box);
        return std::make_unique<LocalHandle>(core_, std::move(box));
    }
    void on_state(std::function<void(const WorkerStatus&)> fn) override {
        core_->on_state = std::move(fn);
    }
    void start() override { core_->apply(StartEvent{}); }
    io::Task<void> drain(TimePoint deadline) override {
        const auto core = core_;
        core->apply(DrainEvent{deadline});
        if (core->supervisor.status().state != WorkerState::kStopped)
            (void)co_await core->stopped.pop();
    }
    const WorkerStatus& status() const override { return core_->supervisor.status(); }

  private:
    std::shared_ptr<Core> core_;
};

}  // namespace

void LocalWorkerOptions::bind(io::ConfigBinder& b) {
    b.knob("worker.queue_max", queue_max,
           {.unit = "requests",
            .min = 1,
            .max = 1e6,
            .doc = "Requests without output that are held for the engine; more are refused."});
    b.knob("worker.start_timeout", start_timeout,
           {.min = 1,
            .doc = "From the start of the engine process to its greeting; the model loads in this "
                   "time."});
    b.knob("worker.progress_timeout", progress_timeout,
           {.min = 1,
            .doc = "An engine process with work that is silent for this long is killed and started "
                   "again."});
}

std::unique_ptr<LocalWorker> make_local_worker(io::Loop& link_loop, io::Network& network,
                                               io::ProcessLauncher& launcher, ops::Logger& log,
                                               ops::Registry& metrics, LocalWorkerOptions options) {
    return std::make_unique<LocalWorkerImpl>(
        std::make_shared<Core>(link_loop, network, launcher, log, metrics, std::move(options)));
}

}  // namespace nereid::pools
