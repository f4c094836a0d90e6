#include "gateway/routing/routed_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/block_key.h"

namespace nereid::gateway {
namespace {

using pools::Update;
using router::Outcome;

// Prefixes are named in blocks of this size, whatever the engine's own: nothing but our own
// placements is compared with them.
constexpr TokenCount kDefaultBlock = 64;

router::BlockHash short_name(const model::BlockKey& key) {
    router::BlockHash h = 0;
    std::memcpy(&h, key.bytes.data(), sizeof h);
    return h;
}

Outcome outcome_of(const model::Finished& f) {
    if (f.reason != model::EndReason::kFailed) return Outcome::kSuccess;
    return f.error ? router::classify_error(f.error->code) : Outcome::kFault;
}

bool takes_work(const pools::WorkerStatus& status) {
    return status.state == pools::WorkerState::kReady;
}

}  // namespace

struct RoutedWorkers::Peers {
    struct Entry {
        io::Loop* loop = nullptr;
        std::weak_ptr<Handle*> handle;
    };
    std::vector<Entry> all;
};

class RoutedWorkers::Handle final : public pools::WorkerHandle {
  public:
    Handle(const RoutedWorkers& owner, io::Loop& loop, std::size_t number)
        : loop_(loop),
          peers_(owner.peers_),
          number_(number),
          self_(std::make_shared<Handle*>(this)),
          name_(owner.model_),
          fleet_({.routing = owner.options_,
                  .model = owner.model_,
                  .shard = number,
                  .block_tokens = kDefaultBlock,
                  .seed = number + 1,
                  .probe = &owner.probe_}) {
        for (const MakeHandle& make : owner.make_) add(make(loop));
    }
    void add(std::unique_ptr<pools::WorkerHandle> engine) {
        fleet_.add(engine->name(), loop_.now());
        engines_.push_back({.handle = std::move(engine)});
    }
    void begin_cost(const router::CostModel& cost) { fleet_.begin_cost(cost, loop_.now()); }
    std::weak_ptr<Handle*> weak() const { return self_; }

    std::string_view name() const override { return name_; }

    // The state of the best of them, the sum of their work.
    const pools::WorkerStatus& status() const override {
        const pools::WorkerStatus* best = nullptr;
        for (const Engine& e : engines_) {
            const pools::WorkerStatus& s = e.handle->status();
            if (best == nullptr || rank(s.state) < rank(best->state) || (!best->info && s.info)) {
                best = &s;
            }
        }
        status_ = *best;
        status_.load = {};
        status_.restarts = status_.steps = 0;
        status_.in_flight = 0;
        for (const Engine& e : engines_) {
            const pools::WorkerStatus& s = e.handle->status();
            status_.restarts += s.restarts;
            status_.steps += s.steps;
            status_.in_flight += s.in_flight;
            if (s.state == pools::WorkerState::kStopped) continue;  // it holds nothing any more
            status_.load.running += s.load.running;
            status_.load.waiting += s.load.waiting;
            status_.load.waiting_uncached_tokens += s.load.waiting_uncached_tokens;
            status_.load.kv_used_tokens += s.load.kv_used_tokens;
            status_.load.kv_total_tokens += s.load.kv_total_tokens;
            status_.load.prefix_store_bytes += s.load.prefix_store_bytes;
            status_.load.prefix_hit_tokens += s.load.prefix_hit_tokens;
            status_.load.prefix_miss_tokens += s.load.prefix_miss_tokens;
            status_.load.preempted += s.load.preempted;
        }
        return status_;
    }

    std::unique_ptr<pools::Session> submit(model::AddRequest request,
                                           pools::UpdateFn on_update) override;

  private:
    class RoutedSession;
    struct Engine {
        std::unique_ptr<pools::WorkerHandle> handle;
        std::uint64_t steps = 0;  // of its last report
    };

    static int rank(pools::WorkerState state) {
        switch (state) {
            case pools::WorkerState::kReady:
                return 0;
            case pools::WorkerState::kStarting:
                return 1;
            case pools::WorkerState::kBackoff:
                return 2;
            case pools::WorkerState::kDraining:
                return 3;
            case pools::WorkerState::kFailed:
                return 4;
            case pools::WorkerState::kStopped:
                return 5;
        }
        return 6;
    }

    // Reports, and who takes no work now. When none does, requests go to whoever will be back (they
    // wait in its pool).
    std::vector<router::WorkerId> refresh() {
        const TimePoint now = loop_.now();
        std::vector<router::WorkerId> out;
        for (std::size_t i = 0; i < engines_.size(); ++i) {
            const pools::WorkerStatus& s = engines_[i].handle->status();
            if (!takes_work(s)) out.push_back({i});
            leave(i, s.state, now);
            if (s.steps != engines_[i].steps) {
                engines_[i].steps = s.steps;
                fleet_.report(i, s.load, now);
            }
        }
        if (out.size() < engines_.size()) return out;
        out.clear();
        for (std::size_t i = 0; i < engines_.size(); ++i) {
            if (rank(engines_[i].handle->status().state) > 2) out.push_back({i});
        }
        if (out.size() == engines_.size()) out.clear();
        return out;
    }

    void leave(std::size_t i, pools::WorkerState state, TimePoint now) {
        const bool stopped = state == pools::WorkerState::kStopped;
        if ((stopped || state == pools::WorkerState::kDraining) && fleet_.live(i)) {
            fleet_.drain(i, now);
        }
        if (stopped && fleet_.in_flight(i) == 0) fleet_.remove(i, now);
    }

    Result<Fleet::Try> choose(const model::AddRequest& request,
                              std::span<const router::BlockHash> blocks,
                              std::optional<std::size_t> not_this) {
        auto excluded = refresh();
        if (not_this) excluded.push_back({*not_this});
        auto chosen =
            fleet_.choose({.prompt_tokens = static_cast<TokenCount>(request.prompt.size()),
                           .blocks = blocks,
                           .expected_output = std::min<TokenCount>(request.max_tokens, 256),
                           .excluded = excluded},
                          loop_.now());
        broadcast();
        return chosen;
    }

    std::vector<router::BlockHash> blocks_of(const model::AddRequest& request) const {
        std::vector<router::BlockHash> out;
        if (engines_.size() == 1) return out;  // there is nothing to choose by it
        for (const model::BlockKey& key :
             model::block_chain(request.kv_namespace, request.prompt, kDefaultBlock, request.images,
                                request.adapter)) {
            out.push_back(short_name(key));
        }
        return out;
    }

    void broadcast() {
        if (peers_->all.size() < 2) return;
        const auto digest = fleet_.digest(loop_.now());
        if (!digest) return;
        for (std::size_t i = 0; i < peers_->all.size(); ++i) {
            if (i == number_) continue;
            peers_->all[i].loop->post([weak = peers_->all[i].handle, digest = *digest] {
                if (const auto other = weak.lock()) {
                    (*other)->fleet_.fold(digest, (*other)->loop_.now());
                }
            });
        }
    }

    io::Loop& loop_;
    std::shared_ptr<Peers> peers_;
    std::size_t number_;
    std::shared_ptr<Handle*> self_;
    std::string name_;
    Fleet fleet_;
    std::vector<Engine> engines_;
    mutable pools::WorkerStatus status_;
};

// A request at one engine, and once more at another.
class RoutedWorkers::Handle::RoutedSession final : public pools::Session {
  public:
    RoutedSession(Handle& handle, model::AddRequest request, pools::UpdateFn on_update)
        : handle_(handle),
          request_(std::move(request)),
          blocks_(handle.blocks_of(request_)),
          on_update_(std::move(on_update)),
          self_(std::make_shared<RoutedSession*>(this)) {
        handle_.fleet_.request();
        begin(std::nullopt, std::nullopt);
    }
    RoutedSession(const RoutedSession&) = delete;
    RoutedSession& operator=(const RoutedSession&) = delete;
    ~RoutedSession() override {
        *self_ = nullptr;
        try_.end(Outcome::kClient, handle_.loop_.now());
    }

  private:
    // failure: of the first try, told if there is nobody for a second.
    void begin(std::optional<std::size_t> not_this, std::optional<Error> failure) {
        auto chosen = handle_.choose(request_, blocks_, not_this);
        if (!chosen.ok()) {
            // As any refusal: not from inside submit().
            Error error = failure ? std::move(*failure) : std::move(chosen.error());
            handle_.loop_.post([weak = std::weak_ptr(self_), error = std::move(error)]() mutable {
                const auto self = weak.lock();
                if (self == nullptr || *self == nullptr) return;
                Update u;
                u.error = std::move(error);
                (*self)->on_update_(std::move(u));
            });
            return;
        }
        try_ = *std::move(chosen);
        const bool last = not_this.has_value();
        model::AddRequest copy = last ? std::move(request_) : request_;
        session_ = handle_.engines_[try_.backend()].handle->submit(
            std::move(copy), [weak = std::weak_ptr(self_), last](Update&& u) {
                const auto self = weak.lock();
                if (self != nullptr && *self != nullptr) (*self)->update(std::move(u), last);
            });
    }

    void update(Update&& u, bool last) {
        const TimePoint now = handle_.loop_.now();
        try_.output(static_cast<std::uint32_t>(u.tokens.size()), now);
        const Error* error = u.error ? &*u.error : nullptr;
        if (error == nullptr && u.finished && u.finished->reason == model::EndReason::kFailed &&
            u.finished->error) {
            error = &*u.finished->error;
        }
        if (u.error) {
            try_.end(router::classify_error(u.error->code), now);
        } else if (u.finished) {
            try_.end(outcome_of(*u.finished), now);
        }
        if (error != nullptr && !last && !said_ && u.tokens.empty() &&
            handle_.fleet_.may_retry(*error)) {
            // The engine's session is not destroyed on its own stack.
            handle_.loop_.post(
                [weak = std::weak_ptr(self_), index = try_.backend(), failure = *error]() mutable {
                    const auto self = weak.lock();
                    if (self == nullptr || *self == nullptr) return;
                    (*self)->session_.reset();
                    (*self)->begin(index, std::move(failure));
                });
            return;
        }
        // That it started says nothing that a second start would contradict.
        said_ = said_ || !u.tokens.empty() || u.embedding || u.prompt_logprobs;
        on_update_(std::move(u));  // may destroy this
    }

    Handle& handle_;
    model::AddRequest request_;
    std::vector<router::BlockHash> blocks_;
    pools::UpdateFn on_update_;
    std::shared_ptr<RoutedSession*> self_;
    bool said_ = false;
    Fleet::Try try_;
    std::unique_ptr<pools::Session> session_;
};

std::unique_ptr<pools::Session> RoutedWorkers::Handle::submit(model::AddRequest request,
                                                              pools::UpdateFn on_update) {
    return std::make_unique<RoutedSession>(*this, std::move(request), std::move(on_update));
}

RoutedWorkers::RoutedWorkers(RoutingOptions options, std::string model,
                             std::vector<MakeHandle> make, RoutingProbe& probe)
    : options_(std::move(options)),
      model_(std::move(model)),
      make_(std::move(make)),
      probe_(probe),
      peers_(std::make_shared<Peers>()) {}

std::unique_ptr<pools::WorkerHandle> RoutedWorkers::handle_for(io::Loop& loop) {
    auto handle = std::make_unique<Handle>(*this, loop, peers_->all.size());
    peers_->all.push_back({&loop, handle->weak()});
    return handle;
}

void RoutedWorkers::add(const MakeHandle& make) {
    make_.push_back(make);
    for (const Peers::Entry& entry : peers_->all) {
        entry.loop->post([weak = entry.handle, engine = make(*entry.loop)]() mutable {
            if (const auto handle = weak.lock()) (*handle)->add(std::move(engine));
        });
    }
}

void RoutedWorkers::begin_cost(const router::CostModel& cost) {
    for (const Peers::Entry& entry : peers_->all) {
        entry.loop->post([weak = entry.handle, cost] {
            if (const auto handle = weak.lock()) (*handle)->begin_cost(cost);
        });
    }
}

}  // namespace nereid::gateway
