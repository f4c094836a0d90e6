#include "pools/cache/kv_link.h"

#include <nereid_kv.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "io/real_loop.h"
#include "kv/layout.h"
#include "kv/tier/copy_crc.h"

namespace nereid::pools {
namespace {

using engine::llama::BlockBytes;
using Fetch = engine::llama::BlockTier::Fetch;
using Fetched = engine::llama::BlockTier::Fetched;

constexpr std::size_t kGetBlocks = 16;  // leased at once, twice: small arenas, too
constexpr std::size_t kSaveBlocks = 8;  // of one reserve
constexpr std::uint32_t kLeaseMs = 10'000;
constexpr Duration kReportEvery = 500ms;

struct Save {
    model::Namespace ns;
    model::BlockKey key;
    std::uint32_t index = 0;
    BlockBytes bytes;
};

nereid_kv_key key_of(const model::BlockKey& key) {
    nereid_kv_key out;
    std::memcpy(out.bytes, key.bytes.data(), sizeof out.bytes);
    return out;
}

nereid_kv_object object_of(const model::BlockKey& key, std::uint32_t index) {
    return {.key = key_of(key), .block = index, .kind = 0, .reserved = {}};
}

int ms_of(Duration d) {
    return static_cast<int>(std::max<std::int64_t>(0, d / std::chrono::milliseconds(1)));
}

}  // namespace

// What the engine's thread knows. Shared, so that an answer that comes after the end finds nobody.
struct KvLink::Front {
    explicit Front(io::Loop& l) : loop(l) {}
    io::Loop& loop;
    std::map<RequestId, io::Loop::TimerId> pending;  // by deadline
    std::vector<Fetched> ready;
    std::function<void()> wake;

    void arrived(Fetched fetched) {
        const auto it = pending.find(fetched.id);
        if (it == pending.end()) return;  // cancelled, or too late
        loop.cancel(it->second);
        pending.erase(it);
        ready.push_back(std::move(fetched));
        if (wake) wake();
    }
};

// The thread that speaks with the node. Every member function but the first group runs on it.
class KvLink::Back {
  public:
    Back(KvLinkOptions options, std::weak_ptr<Front> front, io::Loop& loop)
        : options_(std::move(options)), front_(std::move(front)), engine_loop_(loop) {}
    ~Back() {
        {
            const std::lock_guard lock(mutex_);
            fetches_.clear();
            give_up_at_ = loop().now() + options_.flush;
            stopping_ = true;
        }
        threads_.reset();  // its last turn ends by give_up_at_
        nereid_kv_close(kv_);
    }
    Back(const Back&) = delete;
    Back& operator=(const Back&) = delete;

    // any thread
    void open(const model::KvLayout& layout) { layout_ = layout; }  // before the first job
    bool down() const { return engine_loop_.now().since_origin.count() < down_until_; }
    void put(Fetch fetch, TimePoint deadline);
    void put(Save save);
    void cancel(RequestId id);
    void skip() {
        const std::lock_guard lock(mutex_);
        ++counters_.skipped;
    }
    void timed_out() {
        const std::lock_guard lock(mutex_);
        ++counters_.fetch_timeouts;
    }
    KvLinkCounters counters() const {
        const std::lock_guard lock(mutex_);
        return counters_;
    }
    bool idle() const {
        const std::lock_guard lock(mutex_);
        return !running_ && fetches_.empty() && saves_.empty();
    }

  private:
    struct Job {
        Fetch fetch;
        TimePoint deadline;
    };
    io::RealLoop& loop() const { return loop_; }
    void schedule();  // holding the lock
    void work();
    std::optional<Job> next_fetch();
    std::vector<Save> next_saves();
    void count(std::uint64_t KvLinkCounters::* field, std::uint64_t n = 1) {
        const std::lock_guard lock(mutex_);
        counters_.*field += n;
    }
    bool unwanted(const Job& job) const {
        const std::lock_guard lock(mutex_);
        return stopping_ || cancelled_ || loop().now() >= job.deadline;
    }

    bool connect();
    void trouble();
    bool wait(std::uint64_t tag, Duration limit, nereid_kv_completion& out);
    std::optional<std::uint32_t> number_of(const model::Namespace& ns);
    std::vector<BlockBytes> run(const Job& job);
    std::optional<std::uint64_t> ask(const Job& job, std::uint32_t ns, std::size_t at,
                                     std::size_t end);
    bool copy(const nereid_kv_completion& got, std::vector<BlockBytes>& out);
    void run(const std::vector<Save>& saves);
    void commit(const std::vector<Save>& saves, const nereid_kv_completion& reserved);
    void report();

    const KvLinkOptions options_;
    const std::weak_ptr<Front> front_;
    io::Loop& engine_loop_;
    model::KvLayout layout_;

    mutable std::mutex mutex_;  // for these
    std::deque<Job> fetches_;
    std::deque<Save> saves_;
    ByteCount save_bytes_ = 0;
    bool running_ = false;
    bool stopping_ = false;
    bool cancelled_ = false;  // the fetch under way
    std::optional<RequestId> current_;
    TimePoint give_up_at_;
    KvLinkCounters counters_;

    std::atomic<std::int64_t> down_until_{0};
    nereid_kv* kv_ = nullptr;
    std::map<Digest256, std::uint32_t> numbers_;  // of namespaces, on this connection
    Duration retry_{0};
    KvLinkCounters reported_;
    TimePoint next_report_;
    bool report_due_ = false;
    std::unique_ptr<io::LoopThreads> threads_ = std::make_unique<io::LoopThreads>(1);
    io::RealLoop& loop_ =
        threads_->loop(0);  // used by its last turn, when threads_ is null already
};

// ---------------------------------------------------------------- queues

void KvLink::Back::schedule() {
    if (std::exchange(running_, true)) return;
    loop().post([this] { work(); });
}

void KvLink::Back::put(Fetch fetch, TimePoint deadline) {
    const std::lock_guard lock(mutex_);
    fetches_.push_back({std::move(fetch), deadline});
    schedule();
}

void KvLink::Back::put(Save save) {
    const bool dead = down();
    const std::lock_guard lock(mutex_);
    if (dead || save_bytes_ + save.bytes->size() > options_.queue_bytes) {
        ++counters_.save_dropped;
        return;
    }
    save_bytes_ += save.bytes->size();
    saves_.push_back(std::move(save));
    schedule();
}

void KvLink::Back::cancel(RequestId id) {
    const std::lock_guard lock(mutex_);
    if (current_ == id) cancelled_ = true;
    std::erase_if(fetches_, [id](const Job& job) { return job.fetch.id == id; });
}

std::optional<KvLink::Back::Job> KvLink::Back::next_fetch() {
    const std::lock_guard lock(mutex_);
    if (fetches_.empty()) return std::nullopt;
    Job job = std::move(fetches_.front());
    fetches_.pop_front();
    current_ = job.fetch.id;
    cancelled_ = false;
    return job;
}

// Some that follow one another in one namespace. Empty: there are none, or it is time to end.
std::vector<Save> KvLink::Back::next_saves() {
    const std::lock_guard lock(mutex_);
    std::vector<Save> out;
    if (stopping_ && loop().now() >= give_up_at_) return out;
    while (!saves_.empty() && out.size() < kSaveBlocks &&
           (out.empty() || saves_.front().ns == out.front().ns)) {
        out.push_back(std::move(saves_.front()));
        saves_.pop_front();
    }
    return out;
}

void KvLink::Back::work() {
    for (;;) {
        if (auto job = next_fetch()) {
            Fetched fetched{.id = job->fetch.id, .from = job->fetch.from, .blocks = {}};
            if (!unwanted(*job)) fetched.blocks = run(*job);
            count(&KvLinkCounters::fetched_blocks, fetched.blocks.size());
            engine_loop_.post([front = front_, f = std::move(fetched)]() mutable {
                if (const auto alive = front.lock()) alive->arrived(std::move(f));
            });
            continue;
        }
        std::vector<Save> saves = next_saves();
        if (!saves.empty()) {
            run(saves);
            const std::lock_guard lock(mutex_);
            for (const Save& s : saves) save_bytes_ -= s.bytes->size();
            continue;
        }
        report();
        const std::lock_guard lock(mutex_);
        current_.reset();
        if (fetches_.empty() && (saves_.empty() || stopping_)) {
            running_ = false;
            return;
        }
    }
}

// ---------------------------------------------------------------- the node

bool KvLink::Back::connect() {
    if (kv_ != nullptr) return true;
    if (down()) return false;
    if (nereid_kv_connect(options_.socket.c_str(), options_.name.c_str(), options_.staging_bytes,
                          static_cast<std::uint32_t>(ms_of(options_.answer_deadline)),
                          &kv_) == NEREID_KV_OK)
        return true;
    kv_ = nullptr;
    trouble();
    return false;
}

// Whatever went wrong: a new connection, later. Closing frees what we hold at the node.
void KvLink::Back::trouble() {
    nereid_kv_close(std::exchange(kv_, nullptr));
    numbers_.clear();
    retry_ = retry_ == Duration{0} ? options_.retry : std::min(2 * retry_, options_.retry_max);
    down_until_ = (loop().now() + retry_).since_origin.count();
    count(&KvLinkCounters::troubles);
}

// False: the node did not answer in time, or with an error; in the first case it is given up.
bool KvLink::Back::wait(std::uint64_t tag, Duration limit, nereid_kv_completion& out) {
    if (nereid_kv_wait(kv_, tag, ms_of(limit), &out) != NEREID_KV_OK) {
        trouble();
        return false;
    }
    retry_ = Duration{0};
    return out.status == NEREID_KV_OK;
}

std::optional<std::uint32_t> KvLink::Back::number_of(const model::Namespace& ns) {
    if (!connect()) return std::nullopt;
    if (const auto it = numbers_.find(ns.digest); it != numbers_.end()) return it->second;
    const kv::Geometry g = kv::layout_of_engine(layout_).geometry;
    nereid_kv_namespace open{};
    std::memcpy(open.digest, ns.digest.data(), sizeof open.digest);
    std::memcpy(&open.tenant, ns.digest.data(), sizeof open.tenant);  // its share of DRAM
    open.history_bytes = g.history_bytes;
    open.state_bytes = g.state_bytes;
    open.block_tokens = g.block_tokens;
    open.keep_tokens = g.keep_tokens;
    open.replay = static_cast<std::uint32_t>(g.replay);
    std::uint64_t tag = 0;
    if (nereid_kv_submit_open(kv_, &open, &tag) != NEREID_KV_OK) {
        trouble();
        return std::nullopt;
    }
    nereid_kv_completion c;
    if (!wait(tag, options_.answer_deadline, c)) return std::nullopt;
    numbers_[ns.digest] = c.ns;
    return c.ns;
}

// ---------------------------------------------------------------- fetch

std::optional<std::uint64_t> KvLink::Back::ask(const Job& job, std::uint32_t ns, std::size_t at,
                                               std::size_t end) {
    std::vector<nereid_kv_object> objects;
    for (std::size_t i = at; i < end; ++i) {
        const auto index = job.fetch.from + static_cast<std::uint32_t>(i);
        objects.push_back(object_of(job.fetch.chain[index], index));
    }
    std::uint64_t tag = 0;
    const int left = ms_of(job.deadline - loop().now());
    if (nereid_kv_submit_get(kv_, ns, objects.data(), objects.size(), kLeaseMs,
                             static_cast<std::uint32_t>(left), NEREID_KV_JOIN_WRITES,
                             &tag) != NEREID_KV_OK) {
        trouble();
        return std::nullopt;
    }
    return tag;
}

// Out of the arena, checked on the way. False at the first that is not good.
bool KvLink::Back::copy(const nereid_kv_completion& got, std::vector<BlockBytes>& out) {
    for (std::uint32_t i = 0; i < got.contiguous && i < got.place_count; ++i) {
        const nereid_kv_place& place = got.places[i];
        auto bytes = std::make_shared<std::string>();
        int copied = NEREID_KV_CORRUPT;
        bytes->resize_and_overwrite(place.length, [&](char* to, std::size_t length) {
            const nereid_kv_piece piece{
                .to = to, .at = 0, .length = length, .layer = 0, .reserved = 0};
            copied = nereid_kv_copy(kv_, &place, &piece, 1, nullptr, nullptr);
            return length;
        });
        if (copied != NEREID_KV_OK) {
            count(&KvLinkCounters::fetch_failed);
            return false;
        }
        out.push_back(std::move(bytes));
    }
    return got.contiguous == got.count && got.count > 0;
}

std::vector<BlockBytes> KvLink::Back::run(const Job& job) {
    std::vector<BlockBytes> out;
    const auto ns = number_of(job.fetch.ns);
    if (!ns) return out;
    std::vector<nereid_kv_key> keys;
    for (std::size_t i = job.fetch.from; i < job.fetch.chain.size(); ++i)
        keys.push_back(key_of(job.fetch.chain[i]));
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    if (nereid_kv_submit_lookup(kv_, *ns, job.fetch.from, keys.data(), keys.size(), 0, &tag) !=
        NEREID_KV_OK) {
        trouble();
        return out;
    }
    if (!wait(tag, std::min(options_.answer_deadline, job.deadline - loop().now()), c)) return out;
    const std::size_t blocks = std::min<std::size_t>(c.blocks, keys.size());
    // One batch is read by the node while the one before is copied here; both together are at most
    // a quarter of its memory.
    const std::size_t each = std::clamp<std::size_t>(
        nereid_kv_arena_bytes(kv_) / 8 / layout_.block_bytes, 1, kGetBlocks);
    std::deque<std::uint64_t> asked;
    std::size_t next = 0;
    bool good = true;
    while (good || !asked.empty()) {
        while (good && asked.size() < 2 && next < blocks) {
            const std::size_t end = std::min(next + each, blocks);
            const auto more = ask(job, *ns, next, end);
            if (!more) return out;
            asked.push_back(*more);
            next = end;
        }
        if (asked.empty()) break;
        const std::uint64_t one = asked.front();
        asked.pop_front();
        // The node answers by its own deadline, which is the job's; a little later we are.
        if (!wait(one, job.deadline - loop().now() + 50ms, c)) {
            if (kv_ == nullptr) return out;
            good = false;
            continue;
        }
        const std::uint64_t lease = c.lease;
        good = good && !unwanted(job) && copy(c, out);
        if (lease != 0) nereid_kv_submit_release(kv_, lease, nullptr);
    }
    return out;
}

// ---------------------------------------------------------------- save

void KvLink::Back::run(const std::vector<Save>& saves) {
    const auto ns = number_of(saves.front().ns);
    if (!ns) return count(&KvLinkCounters::save_dropped, saves.size());
    std::vector<nereid_kv_object> objects;
    for (const Save& s : saves) objects.push_back(object_of(s.key, s.index));
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    const bool asked = nereid_kv_submit_reserve(kv_, *ns, objects.data(), objects.size(), kLeaseMs,
                                                0, 0, &tag) == NEREID_KV_OK;
    if (!asked) trouble();
    if (!asked || !wait(tag, options_.answer_deadline, c) || c.count != saves.size())
        return count(&KvLinkCounters::save_failed, saves.size());
    commit(saves, c);
}

// Copies what was granted room to the staging region, and waits until the node has it.
void KvLink::Back::commit(const std::vector<Save>& saves, const nereid_kv_completion& reserved) {
    std::vector<nereid_kv_commit_item> items;
    std::vector<std::uint64_t> homeless;
    for (std::size_t i = 0; i < saves.size(); ++i) {
        const std::string& bytes = *saves[i].bytes;
        if (reserved.object_status[i] != NEREID_KV_OBJECT_OK) {
            if (reserved.object_status[i] == NEREID_KV_OBJECT_NO_SPACE)
                count(&KvLinkCounters::save_failed);
            continue;  // there already, or another writes it
        }
        nereid_kv_commit_item item{.reservation = reserved.reservations[i],
                                   .offset = 0,
                                   .length = static_cast<std::uint32_t>(bytes.size()),
                                   .crc = 0};
        auto* to = static_cast<std::uint8_t*>(nereid_kv_stage(kv_, item.length, &item.offset));
        if (to == nullptr) {
            homeless.push_back(item.reservation);
            continue;
        }
        item.crc = kv::copy_crc32c({to, bytes.size()}, as_bytes(bytes));
        items.push_back(item);
    }
    if (!homeless.empty()) {
        count(&KvLinkCounters::save_failed, homeless.size());
        nereid_kv_submit_abort(kv_, homeless.data(), homeless.size(), nullptr);
    }
    if (items.empty()) return;
    std::uint64_t tag = 0;
    nereid_kv_completion c;
    const bool asked =
        nereid_kv_submit_commit(kv_, items.data(), items.size(), &tag) == NEREID_KV_OK;
    if (!asked) trouble();
    if (!asked || !wait(tag, options_.answer_deadline, c))
        return count(&KvLinkCounters::save_failed, items.size());
    for (std::uint32_t i = 0; i < c.count; ++i) {
        count(c.object_status[i] == NEREID_KV_OBJECT_OK ? &KvLinkCounters::saved_blocks
                                                        : &KvLinkCounters::save_failed);
    }
    for (const auto& item : items) nereid_kv_unstage(kv_, item.offset);
}

// Tells the node what only we know, so that it is in its metrics.
void KvLink::Back::report() {
    const KvLinkCounters now = counters();
    if (kv_ == nullptr || now == reported_) return;
    if (loop().now() < next_report_) {  // not before, but then also if nothing more happens
        if (!std::exchange(report_due_, true)) {
            loop().arm(next_report_, [this] {
                report_due_ = false;
                report();
            });
        }
        return;
    }
    nereid_kv_client_counts delta{
        .saved = now.saved_blocks - reported_.saved_blocks,
        .save_dropped = now.save_dropped - reported_.save_dropped,
        .save_failed = now.save_failed - reported_.save_failed,
        .fetched = now.fetched_blocks - reported_.fetched_blocks,
        .fetch_timeouts = now.fetch_timeouts - reported_.fetch_timeouts,
        .fetch_failed = now.fetch_failed - reported_.fetch_failed,
        .skipped = now.skipped - reported_.skipped,
        .troubles = now.troubles - reported_.troubles,
    };
    if (nereid_kv_report(kv_, &delta) != NEREID_KV_OK) return trouble();
    reported_ = now;
    next_report_ = loop().now() + kReportEvery;
}

// ---------------------------------------------------------------- the engine's side

KvLink::KvLink(io::Loop& loop, KvLinkOptions options)
    : fetch_deadline_(options.fetch_deadline),
      front_(std::make_shared<Front>(loop)),
      back_(std::make_unique<Back>(std::move(options), front_, loop)) {}

KvLink::~KvLink() {
    for (const auto& [id, timer] : front_->pending) front_->loop.cancel(timer);
    front_->pending.clear();
}

void KvLink::open(const model::KvLayout& layout) { back_->open(layout); }

bool KvLink::fetch(Fetch fetch) {
    if (back_->down()) {
        back_->skip();
        return false;
    }
    const RequestId id = fetch.id;
    const TimePoint deadline = front_->loop.now() + fetch_deadline_;
    const auto timer = front_->loop.arm(deadline, [this, id] {
        front_->pending.erase(id);
        back_->cancel(id);
        back_->timed_out();
        front_->ready.push_back({.id = id, .from = 0, .blocks = {}});
        if (front_->wake) front_->wake();
    });
    front_->pending.emplace(id, timer);
    back_->put(std::move(fetch), deadline);
    return true;
}

void KvLink::cancel(RequestId id) {
    std::erase_if(front_->ready, [id](const Fetched& f) { return f.id == id; });
    const auto it = front_->pending.find(id);
    if (it == front_->pending.end()) return;
    front_->loop.cancel(it->second);
    front_->pending.erase(it);
    back_->cancel(id);
}

bool KvLink::has_fetched() const { return !front_->ready.empty(); }

std::vector<Fetched> KvLink::take() { return std::exchange(front_->ready, {}); }

void KvLink::save(const model::Namespace& ns, const model::BlockKey& key, std::uint32_t index,
                  BlockBytes bytes) {
    back_->put(Save{.ns = ns, .key = key, .index = index, .bytes = std::move(bytes)});
}

void KvLink::set_waker(std::function<void()> wake) { front_->wake = std::move(wake); }

KvLinkCounters KvLink::counters() const { return back_->counters(); }
bool KvLink::idle() const { return back_->idle(); }

}  // namespace nereid::pools
