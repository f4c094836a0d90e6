#include "sim/capacity/cluster.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sim/capacity/cluster_state.h"

namespace nereid::sim {

using router::Stage;

Cluster::Cluster(ClusterSpec spec, workload::Source& source)
    : state_(std::make_unique<State>(std::move(spec), source)) {}
Cluster::~Cluster() = default;

Result<RunResult> Cluster::run(const Progress& progress) { return state_->run(progress); }

Cluster::State::State(ClusterSpec s, workload::Source& src) : spec(std::move(s)), source(src) {
    if (source.block_tokens() > 0) block_tokens = source.block_tokens();
    const auto add = [&](const PoolSpec& pool, Stage stage) {
        for (std::uint32_t u = 0; u < pool.units; ++u) {
            UnitSpec unit = pool.unit;
            unit.stage = stage;
            auto host = std::make_unique<Host>(unit, spec.engine, jobs);
            host->stage = stage;
            host->in.resize(unit.ranks);
            host->out.resize(unit.ranks);
            host->restore.resize(unit.ranks);
            host->hit_tokens.resize(unit.ranks);
            host->miss_tokens.resize(unit.ranks);
            if (stage != Stage::kDecode) {
                std::array<std::uint64_t, kTiers> blocks{};
                for (std::size_t t = 0; t < kTiers; ++t)
                    blocks[t] = spec.cache.tokens[t] / block_tokens;
                for (std::uint32_t i = 0; i < unit.ranks; ++i) host->caches.emplace_back(blocks);
                if (spec.router.late_binding)
                    host->gate.emplace(unit.ranks,
                                       router::QuotaGate::Options{spec.router.quota_ms, 0});
            }
            if (spec.router.fit)
                host->fit.emplace(spec.engine.router_model(spec.network.bytes_per_ms));
            hosts.push_back(std::move(host));
        }
    };
    add(spec.prefill, Stage::kPrefill);
    add(spec.decode, Stage::kDecode);
    add(spec.unified, Stage::kUnified);
}

Result<RunResult> Cluster::State::run(const Progress& progress) {
    if (hosts.empty()) return err(Code::kConfig, "the scenario has no pool with units in it");
    if (spec.prefill.units > 0 && spec.decode.units == 0)
        return err(Code::kConfig, "a prefill pool needs a decode pool: set decode.units");
    TRY_VOID(make_gateways());
    for (std::uint32_t i = 0; i < spec.faults.size(); ++i) push(spec.faults[i].at, Kind::kFault, i);
    schedule_arrival();
    push(spec.warmup, Kind::kSample, 0);
    const Nanos last = spec.end + spec.drain;
    Nanos next_progress = 0;
    while (!queue.empty() && queue.next_time() <= last) {
        const auto entry = queue.pop();
        CHECK(entry.at >= now);
        now = entry.at;
        if (!measuring && now >= spec.warmup) begin_measuring();
        mix(static_cast<std::uint64_t>(now));
        mix((static_cast<std::uint64_t>(entry.payload.kind) << 32) | entry.payload.a);
        handle(entry.payload);
        if (now >= spec.end && jobs.in_flight() == 0) break;
        if (progress && now >= next_progress) {
            next_progress = now + kSecond;
            if (!progress(static_cast<double>(now) / 1e9, r.finished))
                return err(Code::kCancelled, "the simulation was stopped");
        }
    }
    r.unfinished = jobs.in_flight();
    return result();
}

void Cluster::State::handle(const Event& event) {
    const auto live_job = [&] { return jobs[event.a].life == event.life; };
    switch (event.kind) {
        case Kind::kArrival:
            on_arrival();
            break;
        case Kind::kDispatch:
            if (live_job()) dispatch(event.a);
            break;
        case Kind::kStepEnd:
            if (hosts[event.a]->step_event == event.life) on_step_end(event.a);
            break;
        case Kind::kWake:
            hosts[event.a]->wake_at = INT64_MAX;
            try_step(event.a);
            break;
        case Kind::kKvArrived:
            if (live_job()) begin_decode(event.a);
            break;
        case Kind::kReportSample:
            on_report_sample(event.a);
            break;
        case Kind::kReportArrive:
            apply_sample(gateways[event.a], samples.front());
            samples.pop_front();
            break;
        case Kind::kDigestSample:
            on_digest_sample(event.a);
            break;
        case Kind::kDigestArrive:
            gateways[digests.front().to].view->fold(
                digests.front().digest, TimePoint{Duration{digests.front().at}}, time());
            digests.pop_front();
            break;
        case Kind::kKvEvents:
            deliver(kv_events.front());
            kv_events.pop_front();
            break;
        case Kind::kMigrated:
            if (live_job()) begin_decode(event.a);
            break;
        case Kind::kFault:
            on_fault(event.a);
            break;
        case Kind::kFaultKnown:
            on_fault_known(spec.faults[event.a]);
            break;
        case Kind::kUnitBack:
            on_unit_back(spec.faults[event.a]);
            break;
        case Kind::kRetryQueue:
            on_retry_queue(event.a);
            break;
        case Kind::kSample:
            take_sample();
            break;
    }
}

void Cluster::State::schedule_arrival() {
    const Duration next = source.next_arrival();
    if (next == workload::Source::kNever || next.count() > spec.end) return;
    const Nanos at = std::max<Nanos>(now, next.count());
    if (at >= next_arrival_event) return;
    next_arrival_event = at;
    push(at, Kind::kArrival, 0);
}

void Cluster::State::on_arrival() {
    if (now < next_arrival_event) return;  // an earlier one was scheduled after this
    next_arrival_event = INT64_MAX;
    while (source.next_arrival() != workload::Source::kNever &&
           source.next_arrival().count() <= std::min(now, spec.end)) {
        const JobId id = jobs.take();
        Job& job = jobs[id];
        source.take(job.request);
        job.arrival = now;
        job.prompt = job.request.input_tokens;
        job.gateway = static_cast<std::uint32_t>(job.request.id % gateways.size());
        if (measured(job)) {
            ++r.arrived;
            offered_tokens += static_cast<double>(job.prompt) + job.request.output_tokens;
        }
        const double ms = spec.gateways.tokenise_us_per_token * job.prompt / 1000;
        if (ms > 0) {
            push(now + from_millis(ms), Kind::kDispatch, id, job.life);
        } else {
            dispatch(id);
        }
    }
    schedule_arrival();
}

Nanos Cluster::State::transfer(Link& from, Link& to, double bytes, Nanos may_begin) {
    const Nanos begin = std::max({may_begin, from.free_at, to.free_at});
    const Nanos end = begin + from_millis(bytes / spec.network.bytes_per_ms);
    from.free_at = to.free_at = end;
    return end + from_millis(spec.network.latency_ms);
}

void Cluster::State::try_step(std::uint32_t h) {
    Host& host = *hosts[h];
    if (!host.up || host.unit.stepping()) return;
    Nanos wake = INT64_MAX;
    const Nanos length = host.unit.begin(now, wake);
    if (length > 0) {
        host.step_end = now;
        end_step_at(h, now + scaled(length, stretch(neighbours_stepping(h))));
        ++host.steps;
        stretch_neighbours(h, true);
    } else if (wake < host.wake_at) {
        host.wake_at = wake;
        push(wake, Kind::kWake, h);
    }
}

void Cluster::State::end_step_at(std::uint32_t h, Nanos at) {
    Host& host = *hosts[h];
    host.busy += measuring ? at - host.step_end : 0;
    host.step_end = at;
    push(at, Kind::kStepEnd, h, ++host.step_event);
}

std::uint32_t Cluster::State::neighbours_stepping(std::uint32_t h) const {
    if (spec.neighbour_slowdown <= 1) return 0;
    std::uint32_t n = 0;
    for (std::uint32_t i = 0; i < hosts.size(); ++i)
        n += i != h && hosts[i]->unit.stepping() ? 1 : 0;
    return n;
}

// Unit `h` has begun a step, or ended it: what is left of the others' goes on at another pace.
void Cluster::State::stretch_neighbours(std::uint32_t h, bool begun) {
    const std::uint32_t others = neighbours_stepping(h);
    if (others == 0) return;
    const double longer = stretch(others) / stretch(others - 1);
    for (std::uint32_t i = 0; i < hosts.size(); ++i) {
        if (i == h || !hosts[i]->unit.stepping()) continue;
        end_step_at(i, now + scaled(hosts[i]->step_end - now, begun ? longer : 1 / longer));
    }
}

void Cluster::State::on_step_end(std::uint32_t h) {
    Host& host = *hosts[h];
    observe_step(h);
    const Unit::Outcome& outcome = host.unit.end();
    stretch_neighbours(h, false);
    for (const JobId id : outcome.prompts) prompt_done(h, id);
    for (const JobId id : outcome.ended) finish(id, End::kFinished);
    for (const JobId id : outcome.preempted) restart(id);
    move_leaving(h);
    const std::uint32_t every = spec.router.migrate_every;
    if (every > 0 && host.stage == Stage::kDecode && host.steps % every == 0) migrate(h);
    try_step(h);
}

void Cluster::State::prompt_done(std::uint32_t h, JobId id) {
    Job& job = jobs[id];
    computed_prompt(h, id);
    if (job.first_token < 0) job.first_token = now;
    job.generated += 1;
    release_prefill(id);
    if (job.generated >= job.request.output_tokens) return finish(id, End::kFinished);
    Host& host = *hosts[h];
    if (host.stage == Stage::kUnified) {
        job.decode_unit = h;
        job.decode_rank = job.prefill_rank;
        host.unit.add_decode(job.decode_rank, id);
        return;
    }
    Host& target = *hosts[job.decode_unit];
    if (!target.up) return restart(id);
    const double bytes = job.prompt * spec.engine.kv_bytes_per_token + spec.engine.state_bytes;
    const Nanos head_start =
        from_millis(spec.network.handoff_overlap * bytes / spec.network.bytes_per_ms);
    const Nanos there =
        transfer(host.out[job.prefill_rank], target.in[job.decode_rank], bytes, now - head_start);
    push(std::max(now, there), Kind::kKvArrived, id, job.life);
}

void Cluster::State::begin_decode(JobId id) {
    Job& job = jobs[id];
    Host& host = *hosts[job.decode_unit];
    if (!host.up) return restart(id);
    host.unit.add_decode(job.decode_rank, id);
    try_step(job.decode_unit);
}

// Back to dispatch: what was generated is part of the prompt now.
void Cluster::State::restart(JobId id) {
    Job& job = jobs[id];
    release_all(id);
    job.prompt = job.request.input_tokens + job.generated;
    job.cached = job.done = 0;
    job.prefill_unit = job.decode_unit = kNowhere;
    if (job.generated >= job.request.output_tokens) return finish(id, End::kFinished);
    ++job.life;
    push(now, Kind::kDispatch, id, job.life);
}

void Cluster::State::finish(JobId id, End how) {
    Job& job = jobs[id];
    release_all(id);
    if (measured(job)) {
        if (how == End::kRejected) ++r.rejected;
        if (how == End::kFailed) ++r.failed;
        if (how == End::kFinished) {
            ++r.finished;
            const TokenCount out = job.request.output_tokens;
            const bool prefilled = job.first_token >= 0;
            const double first = prefilled ? to_millis(job.first_token - job.arrival) : 0;
            const double gap = out > 1
                                   ? to_millis(now - (prefilled ? job.first_token : job.arrival)) /
                                         static_cast<double>(prefilled ? out - 1 : out)
                                   : 0;
            if (spec.record)
                r.records.push_back({job.request.id, to_millis(job.arrival), first, gap});
            if (prefilled) ttft.push_back(first);
            if (out > 1) itl.push_back(gap);
            e2e.push_back(to_millis(now - job.arrival));
            prompt_tokens += job.request.input_tokens;
            output_tokens += out;
            const bool late = first > spec.slo.ttft_of(job.request.input_tokens);
            const bool slow = gap > spec.slo.itl_ms;
            r.missed_ttft += late ? 1 : 0;
            r.missed_itl += slow ? 1 : 0;
            if (!late && !slow) {
                ++r.good;
                good_tokens += static_cast<double>(job.request.input_tokens) + out;
            }
        }
    }
    mix((static_cast<std::uint64_t>(how) << 56) ^ job.request.id);
    source.finished(job.request, Duration{now});
    const std::uint32_t gateway = job.gateway;
    jobs.give(id);
    wake_queue(gateway);
    schedule_arrival();
}

std::uint32_t Cluster::State::host_of(const Fault& fault) const {
    std::uint32_t seen = 0;
    for (std::uint32_t h = 0; h < hosts.size(); ++h)
        if (hosts[h]->stage == fault.stage && seen++ == fault.unit) return h;
    return kNowhere;
}

// Gateways notice by the engine's silence, a while later; until then what they send there is
// refused at once (a closed socket) and goes elsewhere.
void Cluster::State::on_fault(std::uint32_t index) {
    const Fault& fault = spec.faults[index];
    const std::uint32_t h = host_of(fault);
    if (h == kNowhere || !hosts[h]->up) return;
    Host& host = *hosts[h];
    host.up = false;
    ++host.life;
    ++host.step_event;
    for (TieredCache& cache : host.caches) cache.clear();
    if (host.gate)
        host.gate.emplace(host.unit.spec().ranks,
                          router::QuotaGate::Options{spec.router.quota_ms, 0});
    host.leaving.clear();
    std::vector<JobId> lost;
    const bool was_stepping = host.unit.stepping();
    host.unit.drain(lost);
    if (was_stepping) stretch_neighbours(h, false);
    for (const JobId id : lost) {
        ++r.lost_to_faults;
        Job& job = jobs[id];
        ++job.life;
        release_all(id);
        job.prompt = job.request.input_tokens + job.generated;
        job.cached = job.done = 0;
        job.prefill_unit = job.decode_unit = kNowhere;
        push(now + fault.detected_after, Kind::kDispatch, id, job.life);
    }
    push(now + fault.detected_after, Kind::kFaultKnown, index);
    push(now + std::max(fault.detected_after, fault.back_after), Kind::kUnitBack, index);
}

void Cluster::State::on_fault_known(const Fault& fault) {
    const std::uint32_t h = host_of(fault);
    for (Gateway& gateway : gateways) gateway.view->remove_worker(gateway.workers[h], time());
}

void Cluster::State::on_unit_back(const Fault& fault) {
    const std::uint32_t h = host_of(fault);
    hosts[h]->up = true;
    add_host_to_views(h);
    for (std::uint32_t g = 0; g < gateways.size(); ++g) wake_queue(g);
}

}  // namespace nereid::sim
