#include "kv/node/runner.h"

#include <algorithm>
#include <utility>

#include "kv/tier/copy_crc.h"

namespace nereid::kv {
namespace {

constexpr Duration kTick = 1s;

}  // namespace

NodeRunner::NodeRunner(io::Loop& loop, Node& node, SsdTier* ssd, Hooks hooks, NodeProbe* probe)
    : loop_(loop), node_(node), ssd_(ssd), hooks_(std::move(hooks)), probe_(probe) {
    if (ssd_ != nullptr) ssd_->set_listener(this);
}

NodeRunner::~NodeRunner() {
    if (ssd_ != nullptr) ssd_->set_listener(nullptr);
    if (timer_ != 0) loop_.cancel(timer_);
}

void NodeRunner::start() {
    next_tick_ = loop_.now() + kTick;
    loaded_ = ssd_ == nullptr;
    if (ssd_ != nullptr) {
        ++effects_;
        loop_.spawn(load());
    }
    rearm();
}

void NodeRunner::submit(Request request) { post(std::move(request)); }
void NodeRunner::client_gone(ClientId client) { post(ClientGone{client}); }

void NodeRunner::on_gone(std::span<const ScanEntry> entries, GoneCause cause) {
    post(SsdGone{{entries.begin(), entries.end()}, cause});
}
void NodeRunner::on_moved(ObjectKey key, Location from, Location to, ExpiryHour expiry) {
    post(SsdMoved{key, from, to, expiry});
}
void NodeRunner::on_writable(bool writable) { post(SsdWritable{writable}); }

void NodeRunner::post(Event event) {
    events_.push_back(std::move(event));
    pump();
}

// One event at a time, also when an action makes the next one.
void NodeRunner::pump() {
    if (pumping_) return;
    pumping_ = true;
    std::vector<Action> actions;
    while (!events_.empty()) {
        Event event = std::move(events_.front());
        events_.pop_front();
        actions.clear();
        const auto* request = std::get_if<Request>(&event);
        const bool lookup = request != nullptr && std::holds_alternative<Lookup>(request->command);
        const Now begin = now();
        node_.step(std::move(event), begin, actions);
        if (lookup && probe_ != nullptr) probe_->observe_lookup(loop_.now() - begin.mono);
        for (Action& a : actions) perform(a);
    }
    pumping_ = false;
    rearm();
}

void NodeRunner::perform(Action& action) {
    if (auto* reply = std::get_if<Reply>(&action)) {
        hooks_.reply(std::move(*reply));
    } else if (const auto* copy = std::get_if<CopyIn>(&action)) {
        const auto from =
            hooks_.staging(copy->client, copy->region, copy->offset, copy->into.size());
        events_.push_back(
            CopyDone{copy->job, from.ok() ? Result<std::uint32_t>(copy_crc32c(copy->into, *from))
                                          : Result<std::uint32_t>(from.error())});
    } else if (const auto* append_ssd = std::get_if<AppendSsd>(&action)) {
        ++effects_;
        loop_.spawn(append(*append_ssd));
    } else if (const auto* read_ssd = std::get_if<ReadSsd>(&action)) {
        ++effects_;
        loop_.spawn(read(*read_ssd));
    } else if (auto* clear = std::get_if<RememberClear>(&action)) {
        ++effects_;
        loop_.spawn(remember(std::move(*clear)));
    } else if (const auto* touch = std::get_if<TouchSsd>(&action)) {
        ssd_->touch(touch->location, loop_.wall_now());
    }
}

io::Task<void> NodeRunner::append(AppendSsd a) {
    Result<Location> done = co_await ssd_->append(std::move(a.info), a.payload);
    --effects_;
    post(AppendDone{a.job, std::move(done)});
}

io::Task<void> NodeRunner::read(ReadSsd r) {
    Result<RecordInfo> done = co_await ssd_->read(r.location, r.key, r.into);
    --effects_;
    post(ReadDone{r.job, std::move(done)});
}

io::Task<void> NodeRunner::remember(RememberClear r) {
    const Result<void> done = co_await ssd_->remember_clear(r.ns, r.clears);
    --effects_;
    if (!done.ok()) r.reply.answer = done.error();
    hooks_.reply(std::move(r.reply));
}

io::Task<void> NodeRunner::load() {
    while (!stopping_) {
        Result<ScanBatch> batch = co_await ssd_->scan_next();
        if (!batch.ok()) {
            load_error_ = batch.error();
            break;
        }
        const bool done = batch->done;
        scanned_ += batch->entries.size();
        if (!batch->entries.empty()) post(Scanned{std::move(batch->entries)});
        if (done) break;
        co_await loop_.yield();
    }
    loaded_ = true;
    --effects_;
}

io::Task<void> NodeRunner::tick_ssd() {
    co_await ssd_->tick(loop_.wall_now());
    ticking_ = false;
    --effects_;
}

void NodeRunner::rearm() {
    if (stopping_) return;
    const TimePoint at = std::min(node_.next_deadline(), next_tick_);
    if (timer_ != 0 && timer_at_ <= at) return;
    if (timer_ != 0) loop_.cancel(timer_);
    timer_at_ = at;
    timer_ = loop_.arm(at, [this] { on_timer(); });
}

void NodeRunner::on_timer() {
    timer_ = 0;
    timer_at_ = TimePoint::never();
    if (loop_.now() >= next_tick_) {
        next_tick_ = loop_.now() + kTick;
        if (ssd_ != nullptr && loaded_ && !ticking_) {
            ticking_ = true;
            ++effects_;
            loop_.spawn(tick_ssd());
        }
        if (probe_ != nullptr) {
            const SsdStats stats = ssd_ == nullptr ? SsdStats{} : ssd_->stats();
            probe_->publish(node_.counters(), node_.held(), ssd_ == nullptr ? nullptr : &stats,
                            node_.hit_curve());
        }
    }
    post(Tick{});
}

io::Task<void> NodeRunner::stop() {
    stopping_ = true;
    if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
    if (ssd_ != nullptr) co_await ssd_->quiesce();
    while (effects_ > 0) co_await loop_.sleep_for(1ms);
}

}  // namespace nereid::kv
