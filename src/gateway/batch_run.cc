#include "gateway/batch_run.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "gateway/stored_response.h"
#include "io/root_task.h"

namespace nereid::gateway {
namespace {

constexpr std::size_t kLanes = 4;
constexpr char kLineKind[] = "batch_line";
constexpr std::uint32_t kLinesPerRead = 1000;

store::Key line_key(const Exchange& x, const std::string& batch, std::size_t index) {
    return response_key(x, kLineKind, fmt::format("{}/{}", batch, index));
}

struct Run {
    Run(Exchange& exchange, ShardTools t, std::vector<BatchLine> l, std::vector<BatchResult> r)
        : x(exchange), tools(t), lines(std::move(l)), results(std::move(r)), done(x.loop()) {
        results.resize(lines.size());
    }
    Exchange& x;
    ShardTools tools;
    std::vector<BatchLine> lines;
    std::vector<BatchResult> results;
    OnLine on_result;
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
        if (run->results[i].status != 0) continue;
        BatchResult result = co_await run_once(*run, run->lines[i]);
        while (turned_away(result.status) && !run->x.core().admission.draining() &&
               !run->x.reply().disconnected()) {
            co_await run->x.loop().sleep_for(run->x.options().retry_after);
            result = co_await run_once(*run, run->lines[i]);
        }
        run->results[i] = std::move(result);
        if (run->on_result) run->on_result(i, run->results[i]);
    }
    if (--run->lanes == 0) run->done.notify();
}

}  // namespace

store::Record line_record(const Exchange& x, const std::string& batch, std::size_t index,
                          const BatchResult& result) {
    store::Record r{.key = line_key(x, batch, index), .parent = batch};
    r.expires = expiry(x);
    JsonWriter w(r.body);
    w.begin_object().member("status", result.status).member("request_id", result.request_id);
    w.member("body", result.body).end_object();
    return r;
}

io::Task<std::vector<BatchResult>> kept_lines(Exchange& x, std::string batch, std::size_t count) {
    std::vector<BatchResult> out(count);
    store::ListQuery query{.kind = kLineKind, .tenant = x.record.key, .parent = batch, .after = {}};
    query.limit = kLinesPerRead;
    for (;;) {
        const auto page = co_await x.core().records->list(x.loop(), query);
        if (!page.ok()) co_return out;
        for (const store::Record& r : *page) {
            std::size_t index = count;
            const std::string_view number = std::string_view(r.key.id).substr(batch.size() + 1);
            std::from_chars(number.data(), number.data() + number.size(), index);
            const auto body = Json::parse(r.body);
            if (index >= count || !body.ok()) continue;
            out[index] = {.status = static_cast<int>(body->find("status")->as_int().value_or(0)),
                          .request_id = body->find("request_id")->as_string(),
                          .body = body->find("body")->as_string()};
        }
        if (page->size() < kLinesPerRead) co_return out;
        query.after_order = page->back().order;
    }
}

void forget_lines(const Exchange& x, const std::string& batch, std::size_t count,
                  std::vector<store::Change>& changes) {
    for (std::size_t i = 0; i < count; ++i) {
        changes.push_back(
            {.op = store::Change::Op::kRemove, .record = {.key = line_key(x, batch, i)}});
    }
}

io::Task<std::vector<BatchResult>> run_batch(Exchange& x, ShardTools tools,
                                             std::vector<BatchLine> lines,
                                             std::vector<BatchResult> done, OnLine on_result) {
    const auto run = std::make_shared<Run>(x, tools, std::move(lines), std::move(done));
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
