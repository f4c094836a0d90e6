#include "gateway/jobs.h"

#include <utility>

#include "gateway/generate.h"

namespace nereid::gateway {
namespace {

// Those of the connection that follows, and what a second reader must not take for the first's.
bool is_own_header(std::string_view name) {
    return name == "x-request-id" || name == "request-id" || name == "server-timing" ||
           name == "connection" || name == "openai-processing-ms" || name == "openai-version" ||
           name == "content-type" || name.starts_with("x-ratelimit-") ||
           name.starts_with("anthropic-ratelimit-");
}

io::Headers headers_of(const Exchange& x, const io::Headers& recorded) {
    io::Headers out = x.headers(recorded.get("content-type"));
    for (const auto& [name, value] : recorded.list()) {
        if (!is_own_header(name)) out.add(name, value);
    }
    return out;
}

io::Task<void> follow_to_end(Exchange& x, std::shared_ptr<Recording> recording,
                             std::uint64_t skip) {
    FrameSkipper skipper(skip);
    std::size_t offset = 0;
    bool started = false;
    for (;;) {
        const Recording::View view = recording->from(offset);
        const bool ready = view.ended || (view.head.streamed && view.head.status != 0);
        if (!ready || (started && view.bytes.empty() && !view.ended)) {
            co_await recording->changed(x.loop(), view.version);
            continue;
        }
        if (!started && view.head.status == 0) {
            co_await x.fail({Code::kWorkerLost, "The request ended before it was answered."});
            co_return;
        }
        if (!view.head.streamed) {
            co_return co_await x.send(view.head.status, headers_of(x, view.head.headers),
                                      view.bytes);
        }
        offset += view.bytes.size();
        const std::string_view wanted = skipper.take(view.bytes);
        Result<void> sent;
        if (!started) {
            started = true;
            x.record.status = view.head.status;
            const io::Headers headers = headers_of(x, view.head.headers);
            sent = co_await x.reply().start(view.head.status, headers, wanted);
            if (sent.ok() && view.ended && view.whole) sent = co_await x.reply().finish();
        } else if (view.ended && view.whole) {
            sent = co_await x.reply().finish(wanted);
        } else {
            sent = co_await x.reply().chunk(wanted);
        }
        if (view.ended && !view.whole) co_return x.reply().abort();
        if (!sent.ok()) {
            x.write_failed(sent.error());
            co_return;
        }
        if (view.ended) co_return;
    }
}

struct Follower {
    explicit Follower(std::shared_ptr<Job> j) : job(std::move(j)) { ++job->followers; }
    ~Follower() { --job->followers; }
    Follower(const Follower&) = delete;
    Follower& operator=(const Follower&) = delete;
    std::shared_ptr<Job> job;
};

}  // namespace

void Job::cancel() {
    loop_.post([reply = reply_] {
        if (const auto alive = reply.lock()) alive->cancel();
    });
}

bool JobTable::add(const std::string& name, std::shared_ptr<Job> job, bool noted) {
    const std::lock_guard lock(mutex_);
    return jobs_.try_emplace(name, Entry{std::move(job), noted}).second;
}

std::shared_ptr<Job> JobTable::find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto at = jobs_.find(name);
    return at == jobs_.end() ? nullptr : at->second.job;
}

void JobTable::remove(const std::string& name, const Recording* recording) {
    const std::lock_guard lock(mutex_);
    const auto at = jobs_.find(name);
    if (at == jobs_.end()) return;
    if (recording == nullptr || at->second.job->recording().get() == recording) jobs_.erase(at);
}

std::vector<std::pair<std::string, std::shared_ptr<Job>>> JobTable::noted() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<std::string, std::shared_ptr<Job>>> out;
    for (const auto& [name, entry] : jobs_) {
        if (entry.noted) out.emplace_back(name, entry.job);
    }
    return out;
}

Jobs::~Jobs() {
    // Tasks may end others and start none: what is left goes in any order.
    while (!running_.empty()) running_.extract(running_.begin());
}

std::shared_ptr<Job> Jobs::start(const Exchange& parent, Route route, io::HttpRequest request,
                                 std::string id, Work work, std::function<void()> then) {
    return start(parent.shared_settings(), parent.key(), route, std::move(request), std::move(id),
                 std::move(work), std::move(then));
}

std::shared_ptr<Job> Jobs::start(std::shared_ptr<const Settings> settings, const ApiKey* key,
                                 Route route, io::HttpRequest request, std::string id, Work work,
                                 std::function<void()> then) {
    auto recording = std::make_shared<Recording>();
    auto reply = std::make_shared<RecordingReply>(loop_, recording);
    auto job = std::make_shared<Job>(loop_, std::move(recording));
    job->reply_ = reply;
    request.received = loop_.now();
    spawn(run(std::move(settings), key, route, std::move(request), std::move(id), std::move(reply),
              std::move(work), std::move(then)));
    return job;
}

io::Task<void> Jobs::run(std::shared_ptr<const Settings> settings, const ApiKey* key, Route route,
                         io::HttpRequest request, std::string id,
                         std::shared_ptr<RecordingReply> reply, Work work,
                         std::function<void()> then) {
    // Not on the stack of whoever started it: he has not yet noted the job.
    co_await loop_.yield();
    {
        Exchange x(core_, loop_, std::move(settings), request, *reply, std::move(id));
        x.adopt_key(key);
        x.record.route = route;
        co_await work(x);
    }
    reply.reset();  // ends a recording that nobody ended
    if (then) then();
}

void Jobs::spawn(io::Task<void> task) {
    const std::uint64_t number = ++last_;
    auto& running = running_[number];
    running = std::make_unique<Running>();
    running->task.start(tracked(number, std::move(task)));
}

io::Task<void> Jobs::tracked(std::uint64_t number, io::Task<void> task) {
    co_await std::move(task);
    loop_.post([self = std::weak_ptr<Jobs*>(self_), number] {
        if (const auto alive = self.lock()) (*alive)->running_.erase(number);
    });
}

io::Task<void> follow(Exchange& x, std::shared_ptr<Job> job, std::uint64_t skip) {
    const Follower follower(job);
    co_await run_until_gone(x, follow_to_end(x, job->recording(), skip));
}

}  // namespace nereid::gateway
