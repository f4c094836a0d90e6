// Measuring, and what is made of it.

#include <algorithm>

#include "sim/capacity/cluster_state.h"

namespace nereid::sim {

using router::Stage;

namespace {

constexpr std::size_t kSamplesKept = 20'000;  // of TTFT and ITL in a result, thinned evenly
constexpr std::size_t kColumns = 240;         // of the heat maps

std::vector<double> thinned(const std::vector<double>& values) {
    if (values.size() <= kSamplesKept) return values;
    std::vector<double> out;
    const double step = static_cast<double>(values.size()) / kSamplesKept;
    for (std::size_t i = 0; i < kSamplesKept; ++i)
        out.push_back(values[static_cast<std::size_t>(static_cast<double>(i) * step)]);
    return out;
}

Json summary_json(const report::Summary& s) { return report::to_json(s); }

Json pool_json(const PoolResult& p) {
    Json json;
    json.set("units", p.units);
    json.set("ranks", p.ranks);
    json.set("steps", p.steps);
    json.set("efficiency", p.efficiency);
    json.set("busy", p.busy);
    json.set("useful", p.useful);
    json.set("barrier_idle", p.barrier_idle);
    json.set("kv_balance", p.kv_balance);
    json.set("step_ms", p.step_ms);
    json.set("requests_per_rank", p.requests_per_rank);
    json.set("kv_per_rank", p.kv_per_rank);
    json.set("tokens_per_second", p.tokens_per_second);
    json.set("preempted", p.preempted);
    return json;
}

std::string hex(std::uint64_t v) {
    std::string s(16, '0');
    for (std::size_t i = 0; i < 16; ++i) s[15 - i] = "0123456789abcdef"[(v >> (4 * i)) & 15];
    return s;
}

}  // namespace

void Cluster::State::begin_measuring() {
    measuring = true;
    measure_from = now;
    for (auto& host : hosts) {
        host->unit.begin_measuring();
        host->busy = 0;
    }
}

// One column of the time series.
void Cluster::State::take_sample() {
    const Nanos interval =
        std::max<Nanos>(1, (spec.end - spec.warmup) / static_cast<Nanos>(kColumns));
    if (now + interval <= spec.end) push(now + interval, Kind::kSample, 0);
    r.sample_seconds = static_cast<double>(interval) / 1e9;
    const double second = static_cast<double>(now) / 1e9;
    if (r.lines.empty()) {
        for (const char* name :
             {"prefill efficiency", "decode efficiency", "prefill queue, k tokens",
              "decode requests per rank", "decode step, ms"})
            r.lines.push_back({name, {}});
        last_track.resize(2);
    }
    for (std::size_t side = 0; side < 2; ++side) {
        const Stage stage = side == 0 ? Stage::kPrefill : Stage::kDecode;
        Track total;
        for (const auto& host : hosts) {
            if (host->stage != stage && host->stage != Stage::kUnified) continue;
            total.actual += host->unit.totals().actual_ms;
            total.balanced += host->unit.totals().balanced_ms;
            total.steps += host->unit.totals().steps;
        }
        const double actual = total.actual - last_track[side].actual;
        if (actual > 0 && last_track[side].actual > 0) {
            const double balanced = total.balanced - last_track[side].balanced;
            r.lines[side].points.emplace_back(second, balanced / actual);
            const auto steps = static_cast<double>(total.steps - last_track[side].steps);
            if (side == 1 && steps > 0) r.lines[4].points.emplace_back(second, actual / steps);
        }
        last_track[side] = total;
    }
    double queued = 0, requests = 0, ranks = 0;
    std::size_t kv_row = 0, queue_row = 0;
    for (const auto& host : hosts) {
        for (std::uint32_t i = 0; i < host->unit.spec().ranks; ++i) {
            if (host->stage != Stage::kDecode) {
                queued += host->unit.queued_prefill_tokens(i);
                if (queue_row == r.queue_by_rank.size()) r.queue_by_rank.emplace_back();
                if (queue_row < 512)
                    r.queue_by_rank[queue_row++].push_back(host->unit.queued_prefill_tokens(i));
            }
            if (host->stage != Stage::kPrefill) {
                requests += host->unit.decode_requests(i);
                ranks += 1;
                if (kv_row == r.kv_by_rank.size()) r.kv_by_rank.emplace_back();
                if (kv_row < 512) r.kv_by_rank[kv_row++].push_back(host->unit.decode_kv(i));
            }
        }
    }
    r.lines[2].points.emplace_back(second, queued / 1000);
    if (ranks > 0) r.lines[3].points.emplace_back(second, requests / ranks);
}

PoolResult Cluster::State::pool_result(Stage stage) const {
    PoolResult p;
    UnitTotals sum;
    double busy = 0;
    for (const auto& host : hosts) {
        if (host->stage != stage) continue;
        const UnitTotals& t = host->unit.totals();
        ++p.units;
        p.ranks += host->unit.spec().ranks;
        sum.steps += t.steps;
        sum.actual_ms += t.actual_ms;
        sum.balanced_ms += t.balanced_ms;
        sum.rank_work_ms += t.rank_work_ms;
        sum.idle_ms += t.idle_ms;
        sum.kv_mean += t.kv_mean;
        sum.kv_max += t.kv_max;
        sum.request_steps += t.request_steps;
        sum.kv_steps += t.kv_steps;
        sum.prefill_tokens += t.prefill_tokens;
        sum.decode_tokens += t.decode_tokens;
        sum.preempted += t.preempted;
        busy += to_millis(host->busy);
    }
    if (p.units == 0 || sum.steps == 0) return p;
    const double window = std::max(1.0, to_millis(now - measure_from));
    const double ranks_per_unit = static_cast<double>(p.ranks) / p.units;
    const auto steps = static_cast<double>(sum.steps);
    p.steps = sum.steps;
    p.efficiency = sum.balanced_ms / sum.actual_ms;
    p.busy = busy / window / p.units;
    p.useful = sum.rank_work_ms / window / p.ranks;
    p.barrier_idle = sum.idle_ms / (sum.actual_ms * ranks_per_unit);
    p.kv_balance = sum.kv_max > 0 ? sum.kv_mean / sum.kv_max : 1;
    p.step_ms = sum.actual_ms / steps;
    p.requests_per_rank = sum.request_steps / steps / ranks_per_unit;
    p.kv_per_rank = sum.kv_steps / steps / ranks_per_unit;
    p.tokens_per_second =
        (stage == Stage::kPrefill ? sum.prefill_tokens : sum.decode_tokens) / window * 1000;
    p.preempted = sum.preempted;
    return p;
}

RunResult Cluster::State::result() const {
    RunResult out = r;
    out.policy = spec.router.policy;
    const double window =
        std::max(1e-9, static_cast<double>(std::min(now, spec.end) - spec.warmup) / 1e9);
    out.simulated_seconds = static_cast<double>(now) / 1e9;
    out.offered_per_second = static_cast<double>(r.arrived) / window;
    out.goodput_per_second = static_cast<double>(r.good) / window;
    out.offered_tokens_per_second = offered_tokens / window;
    out.good_tokens_per_second = good_tokens / window;
    out.attainment =
        r.arrived > 0 ? static_cast<double>(r.good) / static_cast<double>(r.arrived) : 0;
    out.prompt_tokens_per_second = prompt_tokens / window;
    out.output_tokens_per_second = output_tokens / window;
    out.ttft_ms = report::summarize(ttft);
    out.itl_ms = report::summarize(itl);
    out.e2e_ms = report::summarize(e2e);
    out.queue_ms = report::summarize(queue_wait);
    out.ttft_samples = thinned(ttft);
    out.itl_samples = thinned(itl);
    out.prefill = pool_result(Stage::kPrefill);
    out.decode = pool_result(Stage::kDecode);
    out.unified = pool_result(Stage::kUnified);
    out.hit_share = prompt_tokens > 0 ? hit_tokens / prompt_tokens : 0;
    if (out.decode.steps > 0)
        out.migrations_per_step =
            static_cast<double>(r.migrations) / static_cast<double>(out.decode.steps);
    for (const auto& host : hosts)
        if (host->stage == Stage::kDecode && host->fit && out.cost_fit_error == 0)
            out.cost_fit_error =
                host->fit->model().decode.per_kv_token_ms / spec.engine.decode_kv_token_ms - 1;
    out.events = queue.pushed();
    out.hash = hash;
    return out;
}

Json to_json(const RunResult& r) {
    Json json;
    json.set("policy", r.policy);
    json.set("arrived", r.arrived);
    json.set("finished", r.finished);
    json.set("rejected", r.rejected);
    json.set("failed", r.failed);
    json.set("unfinished", r.unfinished);
    json.set("good", r.good);
    json.set("missed_ttft", r.missed_ttft);
    json.set("missed_itl", r.missed_itl);
    json.set("attainment", r.attainment);
    json.set("offered_per_second", r.offered_per_second);
    json.set("goodput_per_second", r.goodput_per_second);
    json.set("offered_tokens_per_second", r.offered_tokens_per_second);
    json.set("good_tokens_per_second", r.good_tokens_per_second);
    json.set("ttft_ms", summary_json(r.ttft_ms));
    json.set("itl_ms", summary_json(r.itl_ms));
    json.set("e2e_ms", summary_json(r.e2e_ms));
    json.set("prompt_tokens_per_second", r.prompt_tokens_per_second);
    json.set("output_tokens_per_second", r.output_tokens_per_second);
    json.set("hit_share", r.hit_share);
    if (r.prefill.units > 0) json.set("prefill", pool_json(r.prefill));
    if (r.decode.units > 0) json.set("decode", pool_json(r.decode));
    if (r.unified.units > 0) json.set("unified", pool_json(r.unified));
    json.set("migrations", r.migrations);
    json.set("migrations_per_step", r.migrations_per_step);
    json.set("migrated_bytes", r.migrated_bytes);
    json.set("refused", r.refused);
    json.set("forwarded", r.forwarded);
    json.set("retried", r.retried);
    json.set("lost_to_faults", r.lost_to_faults);
    json.set("kv_cost_fit_error", r.cost_fit_error);
    json.set("events", r.events);
    json.set("simulated_seconds", r.simulated_seconds);
    json.set("hash", hex(r.hash));
    if (!r.records.empty()) {
        Json list = Json::Array{};
        for (const RunResult::Record& x : r.records) {
            Json line;
            line.set("id", x.id);
            line.set("arrival_ms", x.arrival_ms);
            line.set("ttft_ms", x.ttft_ms);
            line.set("itl_ms", x.itl_ms);
            list.as_array().push_back(std::move(line));
        }
        json.set("requests", std::move(list));
    }
    return json;
}

}  // namespace nereid::sim
