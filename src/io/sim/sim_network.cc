#include "io/sim_network.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "io/memory_stream.h"
#include "io/waiter.h"

namespace nereid::io {

namespace {

using HostPair = std::pair<std::string, std::string>;  // smaller name first
HostPair pair_of(const std::string& a, const std::string& b) {
    return a < b ? HostPair{a, b} : HostPair{b, a};
}

constexpr Duration kSynRetry = 200ms;  // a connect that got no answer asks again, as a kernel does

class Wire;
struct ListenState {
    ListenState(SimLoop& l, Endpoint at) : loop(l), local(std::move(at)), waiter(l) {}
    SimLoop& loop;
    Endpoint local;
    Waiter waiter;
    std::deque<std::shared_ptr<PipeEnd>> queue;  // connected, not yet accepted
    bool reuse_port = false;
    bool closed = false;
};

using ListenKey = std::tuple<std::string, std::uint16_t, std::string>;  // host, port, path

}  // namespace

struct SimNetwork::Core : std::enable_shared_from_this<SimNetwork::Core> {
    Core(SimScheduler& s, SimNetworkOptions o) : scheduler(s), options(o), rng(s.fork_rng()) {}

    Duration latency(const std::string& a, const std::string& b) {
        const auto span = [this](Duration low, Duration high) {
            return low + Duration(static_cast<std::int64_t>(
                             rng.below(static_cast<std::uint64_t>((high - low).count()) + 1)));
        };
        if (a == b) return span(1us, std::max(options.local_latency, Duration(1us)));
        const auto it = extra.find(pair_of(a, b));
        return span(options.min_latency, options.max_latency) +
               (it == extra.end() ? Duration{0} : it->second);
    }
    bool cut(const std::string& a, const std::string& b) const {
        return partitions.contains(pair_of(a, b));
    }

    SimScheduler& scheduler;
    SimNetworkOptions options;
    Prng rng;
    SimNetworkCounters counters;
    std::set<HostPair> partitions;
    std::map<HostPair, Duration> extra;
    std::set<std::string> refusing;
    std::map<ListenKey, std::vector<std::shared_ptr<ListenState>>> listeners;
    std::vector<std::weak_ptr<Wire>> wires;  // in the order of their making
    std::uint16_t next_port = 20'000;
};

namespace {

using Core = SimNetwork::Core;

// One connection. Each direction is a queue of messages with an arrival time each; for each message
// one event is scheduled at the receiver, which takes the oldest message: order is kept whatever
// the events' order.
class Wire final : public PipeWire, public std::enable_shared_from_this<Wire> {
  public:
    struct Side {
        std::string host;
        std::uint64_t loop_id = 0;
        std::deque<PipeMessage> incoming;
        TimePoint last_arrival{};
        std::size_t held = 0;  // events that came due during a partition
    };

    Wire(std::shared_ptr<Core> core, std::string first_host, std::uint64_t first_loop,
         std::string second_host, std::uint64_t second_loop)
        : core_(std::move(core)) {
        sides_[0].host = std::move(first_host);
        sides_[0].loop_id = first_loop;
        sides_[1].host = std::move(second_host);
        sides_[1].loop_id = second_loop;
    }
    void set_end(std::size_t side, const std::shared_ptr<PipeEnd>& end) { ends_[side] = end; }

    void carry(bool from_first, PipeMessage message) override {
        ++core_->counters.messages;
        core_->counters.bytes += message.bytes.size();
        Side& to = sides_[from_first ? 1 : 0];
        to.incoming.push_back(std::move(message));
        to.last_arrival =
            std::max(to.last_arrival,
                     core_->scheduler.now() + core_->latency(sides_[0].host, sides_[1].host));
        schedule(from_first ? 1 : 0, to.last_arrival);
    }
    std::size_t piece_limit() override {
        const auto max = core_->options.max_piece;
        return core_->rng.chance(0.05) ? 1 : 1 + static_cast<std::size_t>(core_->rng.below(max));
    }
    bool between(const HostPair& hosts) const {
        return pair_of(sides_[0].host, sides_[1].host) == hosts;
    }

    void release_held() {
        for (std::size_t side = 0; side < 2; ++side) {
            for (auto n = std::exchange(sides_[side].held, 0); n > 0; --n) {
                schedule(side,
                         core_->scheduler.now() + core_->latency(sides_[0].host, sides_[1].host));
            }
        }
    }
    void reset() {
        ++core_->counters.resets;
        for (std::size_t side = 0; side < 2; ++side) {
            core_->scheduler.at(sides_[side].loop_id, core_->scheduler.now(),
                                [self = shared_from_this(), side] {
                                    self->sides_[side].incoming.clear();
                                    if (const auto end = self->ends_[side].lock())
                                        end->receive({.kind = PipeMessage::Kind::kReset});
                                });
        }
    }

  private:
    void schedule(std::size_t side, TimePoint when) {
        core_->scheduler.at(sides_[side].loop_id, when,
                            [self = shared_from_this(), side] { self->arrive(side); });
    }
    void arrive(std::size_t side) {
        Side& to = sides_[side];
        if (core_->cut(sides_[0].host, sides_[1].host)) {
            ++to.held;
            ++core_->counters.held;
            return;
        }
        if (to.incoming.empty()) return;  // a reset emptied it
        PipeMessage message = std::move(to.incoming.front());
        to.incoming.pop_front();
        const auto end = ends_[side].lock();
        if (end) {
            end->receive(std::move(message));
        } else if (message.kind == PipeMessage::Kind::kData) {
            carry(side == 0, {.kind = PipeMessage::Kind::kReset});  // nobody is there any more
        }
    }

    std::shared_ptr<Core> core_;
    std::array<Side, 2> sides_;
    std::array<std::weak_ptr<PipeEnd>, 2> ends_;
};

Task<Result<std::unique_ptr<Stream>>> accept_from(std::shared_ptr<ListenState> l) {
    while (!l->closed) {
        if (!l->queue.empty()) {
            auto end = std::move(l->queue.front());
            l->queue.pop_front();
            co_return make_pipe_stream(std::move(end));
        }
        if (co_await l->waiter.wait() == Wake::kCancelled) break;
    }
    co_return Error{Code::kCancelled, "the listener was closed"};
}

class SimListener final : public Listener {
  public:
    SimListener(std::shared_ptr<Core> core, ListenKey key, std::shared_ptr<ListenState> state)
        : core_(std::move(core)), key_(std::move(key)), state_(std::move(state)) {}
    ~SimListener() override { shut(); }
    Task<Result<std::unique_ptr<Stream>>> accept() override { return accept_from(state_); }
    Endpoint local() const override { return state_->local; }
    void close() override { shut(); }

  private:
    void shut() {
        if (state_->closed) return;
        state_->closed = true;
        auto& all = core_->listeners.at(key_);
        std::erase(all, state_);
        if (all.empty()) core_->listeners.erase(key_);
        for (const auto& pending : std::exchange(state_->queue, {})) pending->close();
        state_->waiter.wake_later(Wake::kCancelled, state_);
    }
    std::shared_ptr<Core> core_;
    ListenKey key_;
    std::shared_ptr<ListenState> state_;
};

// A connect as both sides see it.
struct Dial {
    explicit Dial(SimLoop& loop) : waiter(loop) {}
    Waiter waiter;
    enum class State : std::uint8_t { kAsking, kConnected, kRefused } state = State::kAsking;
    bool abandoned = false;
    std::shared_ptr<PipeEnd> end;
};

struct Caller {
    std::shared_ptr<Core> core;
    std::string host;
    SimLoop& loop;
};

// The connection request has reached the listener's loop.
void answer_dial(const Caller& from, const std::string& to_host,
                 const std::shared_ptr<ListenState>& listener, const std::shared_ptr<Dial>& dial) {
    Core& core = *from.core;
    if (listener->closed || dial->abandoned || dial->end) return;
    if (listener->queue.size() >= core.options.backlog || core.refusing.contains(to_host)) return;
    auto wire =
        std::make_shared<Wire>(from.core, from.host, from.loop.id(), to_host, listener->loop.id());
    const bool local = !listener->local.unix_path.empty();
    auto theirs = std::make_shared<PipeEnd>(listener->loop, wire, false, core.options.window,
                                            local ? listener->local.to_string() : from.host);
    dial->end = std::make_shared<PipeEnd>(from.loop, wire, true, core.options.window,
                                          listener->local.to_string());
    wire->set_end(0, dial->end);
    wire->set_end(1, theirs);
    std::erase_if(core.wires, [](const auto& w) { return w.expired(); });
    core.wires.push_back(wire);
    ++core.counters.connects;
    listener->queue.push_back(std::move(theirs));
    listener->waiter.wake_later(Wake::kEvent, listener);
    core.scheduler.at(from.loop.id(), core.scheduler.now() + core.latency(from.host, to_host),
                      [dial] {
                          if (dial->abandoned) return;
                          dial->state = Dial::State::kConnected;
                          dial->waiter.wake(Wake::kEvent);
                      });
}

void refuse_dial(const Caller& from, const std::string& to_host,
                 const std::shared_ptr<Dial>& dial) {
    Core& core = *from.core;
    ++core.counters.refused;
    const Duration round_trip = core.latency(from.host, to_host) + core.latency(from.host, to_host);
    core.scheduler.at(from.loop.id(), core.scheduler.now() + round_trip, [dial] {
        if (dial->abandoned) return;
        dial->state = Dial::State::kRefused;
        dial->waiter.wake(Wake::kEvent);
    });
}

void ask(const Caller& from, const std::string& to_host, const ListenKey& key,
         const std::shared_ptr<Dial>& dial) {
    Core& core = *from.core;
    if (core.cut(from.host, to_host) || dial->end) return;
    const auto it = core.listeners.find(key);
    if (it == core.listeners.end()) return refuse_dial(from, to_host, dial);
    const auto& listener = it->second[core.rng.below(it->second.size())];
    core.scheduler.at(
        listener->loop.id(), core.scheduler.now() + core.latency(from.host, to_host),
        [from, to_host, listener, dial] { answer_dial(from, to_host, listener, dial); });
}

Task<Result<std::unique_ptr<Stream>>> dial_to(Caller from, Endpoint to, TimePoint deadline) {
    if (to.unix_path.empty() && to.host.empty()) {
        co_return Error{Code::kInvalidArgument, "connect: neither a host nor a socket path"};
    }
    const bool self = !to.unix_path.empty() || to.host == "127.0.0.1" || to.host == "localhost";
    const std::string to_host = self ? from.host : to.host;
    const ListenKey key{to_host, to.port, to.unix_path};
    struct Guard {
        std::shared_ptr<Dial> dial;
        ~Guard() {
            dial->abandoned = true;
            if (dial->end) dial->end->close();
        }
    } guard{std::make_shared<Dial>(from.loop)};
    for (;;) {
        ask(from, to_host, key, guard.dial);
        const TimePoint again = from.loop.now() + kSynRetry;
        co_await guard.dial->waiter.wait(std::min(again, deadline));
        if (guard.dial->state == Dial::State::kConnected)
            co_return make_pipe_stream(std::exchange(guard.dial->end, {}));
        if (guard.dial->state == Dial::State::kRefused) {
            co_return Error{
                Code::kUnavailable,
                fmt::format("cannot connect to {}: Connection refused", to.to_string())};
        }
        if (from.loop.now() >= deadline) {
            co_return Error{Code::kDeadlineExceeded,
                            fmt::format("no connection to {} in time", to.to_string())};
        }
    }
}

}  // namespace

SimNetwork::SimNetwork(SimScheduler& scheduler, SimNetworkOptions options)
    : core_(std::make_shared<Core>(scheduler, options)) {}
SimNetwork::~SimNetwork() = default;

void SimNetwork::partition(const std::string& a, const std::string& b) {
    core_->partitions.insert(pair_of(a, b));
}

void SimNetwork::heal(const std::string& a, const std::string& b) {
    if (core_->partitions.erase(pair_of(a, b)) == 0) return;
    for (const auto& weak : core_->wires) {
        const auto wire = weak.lock();
        if (wire && wire->between(pair_of(a, b))) wire->release_held();
    }
}

void SimNetwork::heal_all() {
    const auto all = core_->partitions;
    for (const auto& [a, b] : all) heal(a, b);
}

void SimNetwork::reset(const std::string& a, const std::string& b) {
    for (const auto& weak : core_->wires) {
        const auto wire = weak.lock();
        if (wire && wire->between(pair_of(a, b))) wire->reset();
    }
}

void SimNetwork::slow(const std::string& a, const std::string& b, Duration extra) {
    core_->extra[pair_of(a, b)] = extra;
}

void SimNetwork::refuse_accepts(const std::string& host, bool refuse) {
    if (refuse) {
        core_->refusing.insert(host);
    } else {
        core_->refusing.erase(host);
    }
}

const SimNetworkCounters& SimNetwork::counters() const { return core_->counters; }

SimHost::SimHost(SimNetwork& network, std::string name, SimLoop& loop)
    : core_(network.core_), name_(std::move(name)), loop_(loop) {}

Task<Result<std::unique_ptr<Stream>>> SimHost::connect(const Endpoint& to, TimePoint deadline) {
    return dial_to({core_, name_, loop_}, to, deadline);
}

Result<std::unique_ptr<Listener>> SimHost::listen(const Endpoint& at, bool reuse_port) {
    if (at.unix_path.empty() && at.host.empty()) {
        return Error{Code::kInvalidArgument, "listen: neither a host nor a socket path"};
    }
    Endpoint local = at;
    if (at.unix_path.empty() && at.port == 0) local.port = core_->next_port++;
    const ListenKey key{name_, local.port, local.unix_path};
    auto& there = core_->listeners[key];
    const bool shared =
        std::ranges::all_of(there, [&](const auto& l) { return l->reuse_port && reuse_port; });
    if (!shared) {
        return Error{Code::kConflict,
                     fmt::format("{} is in use: choose another", local.to_string())};
    }
    auto state = std::make_shared<ListenState>(loop_, local);
    state->reuse_port = reuse_port;
    there.push_back(state);
    return std::make_unique<SimListener>(core_, key, std::move(state));
}

}  // namespace nereid::io
