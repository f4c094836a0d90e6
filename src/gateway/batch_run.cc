#include "gateway/batch_run.h"

#include <algorithm>
#include <set>
#include <utility>

#include "io/root_task.h"

namespace nereid::gateway {
namespace {

constexpr std::size_t kLanes = 4;

struct Run {
    Run(Exchange& exchange, ShardTools t, std::vector<BatchLine> l)
        : x(exchange), tools(t), lines(std::move(l)), results(lines.size()), done(x.loop()) {}
    Exchange& x;
    ShardTools tools;
    std::vector<BatchLine> lines;
    std::vector<BatchResult> results;
    std::function<void(const BatchResult&)> on_result;
    std::set<std::shared_ptr<Job>> active;
    std::size_t next = 0;
    std::size_t lanes = 0;
    io::Signal done;
};

bool turned_away(int status) { return status == 429 || status == 503 || status == 529; }

// One try of one line.
io::Task<BatchResult> run_once(Run& run, const BatchLine& line) {
    io::HttpRequest http;
    http.method = "POST";
    http.path = http.target = line.path;
    http.body = line.body;
    http.headers.add("content-type", "application/json");
    const RouteMatch match = match_route("POST", line.path);
    BatchResult out{.status = 0, .request_id = make_id("req", run.tools.prng), .body = {}};
    const auto* dispatch = &run.tools.dispatch;
    const auto job = run.tools.jobs.start(
        run.x, match.route, std::move(http), out.request_id,
        [dispatch, match](Exchange& inner) { return (*dispatch)(inner, match); });
    run.active.insert(job);
    for (;;) {
        const Recording::View view = job->recording()->from(0);
        if (view.ended) {
            run.active.erase(job);
            out.status = view.whole ? view.head.status : 0;
            out.body = view.bytes;
            co_return out;
        }
        co_await job->recording()->changed(run.x.loop(), view.version);
    }
}

io::Task<void> lane(std::shared_ptr<Run> run) {
    while (run->next < run->lines.size() && !run->x.reply().disconnected()) {
        const std::size_t i = run->next++;
        BatchResult result = co_await run_once(*run, run->lines[i]);
        while (turned_away(result.status) && !run->x.core().admission.draining() &&
               !run->x.reply().disconnected()) {
            co_await run->x.loop().sleep_for(run->x.options().retry_after);
            result = co_await run_once(*run, run->lines[i]);
        }
        run->results[i] = std::move(result);
        if (run->on_result) run->on_result(run->results[i]);
    }
    if (--run->lanes == 0) run->done.notify();
}

}  // namespace

io::Task<std::vector<BatchResult>> run_batch(Exchange& x, ShardTools tools,
                                             std::vector<BatchLine> lines,
                                             std::function<void(const BatchResult&)> on_result) {
    const auto run = std::make_shared<Run>(x, tools, std::move(lines));
    run->on_result = std::move(on_result);
    run->lanes = std::min(kLanes, run->lines.size());
    if (run->lanes == 0) co_return std::move(run->results);
    x.reply().on_disconnect([weak = std::weak_ptr<Run>(run)] {
        const auto alive = weak.lock();
        if (!alive) return;
        for (const auto& job : alive->active) job->cancel();
    });
    const std::size_t lanes = run->lanes;
    for (std::size_t i = 0; i < lanes; ++i) tools.jobs.spawn(lane(run));
    co_await run->done.wait();
    co_return std::move(run->results);
}

}  // namespace nereid::gateway
