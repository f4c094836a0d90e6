// The gateways of a Cluster: views fed by reports, digests and KV events; routing; migration.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "sim/capacity/cluster_state.h"

namespace nereid::sim {

using router::Stage;

namespace {

constexpr Nanos kQueueRetry = 50 * kMillisecond;
constexpr std::uint32_t kMaxRefusals = 3;  // then the last worker asked takes it
constexpr TokenCount kLeastComputed = 64;  // of a prompt, whatever is cached

}  // namespace

Result<void> Cluster::State::make_gateways() {
    const std::uint32_t count = std::max(1u, spec.gateways.count);
    Prng seeds(spec.seed);
    for (std::uint32_t g = 0; g < count; ++g) {
        router::ViewOptions options;
        options.self = router::GatewayId{g + 1};
        options.cost = spec.engine.router_model(spec.network.bytes_per_ms);
        options.block_tokens = block_tokens;
        options.slow_start = spec.faults.empty() ? 0s : 10s;
        options.echo = spec.router.echo;
        Gateway gateway;
        gateway.prng = seeds.fork();
        gateway.view = std::make_unique<router::View>(options);
        if (spec.prefill.units + spec.unified.units == 0) {
            const std::string& name =
                spec.router.policy == "nereid" ? spec.router.options.decode : spec.router.policy;
            TRY(gateway.decode_only, router::make_stage_policy(name, Stage::kDecode));
        } else if (spec.router.policy == "nereid") {
            TRY(gateway.policy, router::make_router(spec.router.options));
        } else {
            TRY(gateway.policy, router::make_policy(spec.router.policy));
        }
        gateway.workers.resize(hosts.size());
        gateway.units.resize(hosts.size());
        gateways.push_back(std::move(gateway));
    }
    for (std::uint32_t h = 0; h < hosts.size(); ++h) add_host_to_views(h);
    // Gateways sample at different moments, as independent processes do.
    for (std::uint32_t g = 0; g < count; ++g) {
        const auto part = [&](Nanos interval) { return interval * g / count; };
        if (spec.gateways.report_interval > 0)
            push(part(spec.gateways.report_interval), Kind::kReportSample, g);
        if (spec.gateways.digest_interval > 0 && count > 1)
            push(part(spec.gateways.digest_interval), Kind::kDigestSample, g);
    }
    return {};
}

void Cluster::State::add_host_to_views(std::uint32_t h) {
    const Host& host = *hosts[h];
    for (Gateway& gateway : gateways) {
        router::WorkerSpec worker;
        worker.name = "u" + std::to_string(h);
        worker.epoch = host.life;
        worker.stage = host.stage;
        worker.ranks = host.unit.spec().ranks;
        worker.kv_capacity_tokens =
            host.stage == Stage::kPrefill
                ? 0
                : static_cast<TokenCount>(host.unit.spec().kv_capacity_tokens);
        worker.block_tokens = host.stage == Stage::kDecode ? 0 : block_tokens;
        if (host.life == 0) gateway.units[h] = gateway.view->add_unit(host.stage);
        worker.unit = gateway.units[h];
        const auto id = gateway.view->add_worker(worker, time());
        CHECK_MSG(id.ok(), id.ok() ? "" : id.error().message);
        gateway.workers[h] = *id;
        gateway.host_of_worker.resize(
            std::max<std::size_t>(gateway.host_of_worker.size(), id->value + 1));
        gateway.host_of_worker[id->value] = h;
    }
}

Result<router::Plan> Cluster::State::plan_for(Gateway& gateway,
                                              const router::RouteRequest& request) {
    if (gateway.policy != nullptr)
        return gateway.policy->choose(*gateway.view, request, time(), gateway.prng);
    TRY(const router::Pick pick, gateway.decode_only->pick(*gateway.view, Stage::kDecode, request,
                                                           {}, time(), gateway.prng));
    gateway.decode_only->committed(*gateway.view, request, pick, time());
    router::Plan plan;
    router::Charge charge;
    charge.slot = pick.slot;
    charge.stage = Stage::kDecode;
    charge.requests = 1;
    charge.kv_tokens = request.prompt_tokens;
    charge.reserve_tokens = request.reserve_output;
    plan.decode = router::Placement{gateway.view->id(pick.slot), charge};
    return plan;
}

void Cluster::State::dispatch(JobId id) {
    Job& job = jobs[id];
    Gateway& gateway = gateways[job.gateway];
    router::RouteRequest request;
    request.prompt_tokens = job.prompt;
    request.blocks =
        std::span(job.request.blocks).first(workload::whole_blocks(job.request, block_tokens));
    request.expected_output = spec.router.expected_output;
    request.reserve_output = spec.router.reserve_output;
    request.session = job.request.session;
    request.ttft_slo_ms = spec.slo.ttft_of(job.request.input_tokens);
    for (std::uint32_t refusals = 0;; ++refusals) {
        gateway.view->tick(time());
        const Result<router::Plan> plan = plan_for(gateway, request);
        if (!plan.ok()) {
            if (gateway.queue.size() >= spec.gateways.queue_max) return finish(id, End::kRejected);
            gateway.queue.push_back(id);
            if (!gateway.retry_pending) {
                gateway.retry_pending = true;
                push(now + kQueueRetry, Kind::kRetryQueue, job.gateway);
            }
            return;
        }
        const double waited = to_millis(now - job.arrival);
        if (spec.router.reject_late && job.attempts == 0 && plan->prefill &&
            waited + plan->predicted.ttft_ms > request.ttft_slo_ms)
            return finish(id, End::kRejected);
        job.attempts += refusals == 0 ? 1 : 0;
        if (place(id, gateway, *plan)) return;
        ++r.retried;
        if (refusals > kMaxRefusals) {  // every worker asked is dead or full
            gateway.queue.push_back(id);
            if (!gateway.retry_pending) {
                gateway.retry_pending = true;
                push(now + kQueueRetry, Kind::kRetryQueue, job.gateway);
            }
            return;
        }
    }
}

// Books the plan and offers it to its workers; false when one refused: marked busy, nothing booked.
bool Cluster::State::place(JobId id, Gateway& gateway, const router::Plan& plan) {
    Job& job = jobs[id];
    const auto host_of = [&](const router::Placement& p) {
        return gateway.host_of_worker[p.rank.worker.value];
    };
    const router::Placement* first = plan.prefill ? &*plan.prefill : &*plan.decode;
    CHECK(plan.prefill || plan.decode);
    for (const auto* p : {&plan.prefill, &plan.decode}) {
        if (p->has_value() && !hosts[host_of(**p)]->up) {
            gateway.view->mark_busy((*p)->charge.slot, time());
            return false;
        }
    }
    std::uint32_t rank = first->rank.rank;
    Host& host = *hosts[host_of(*first)];
    if (plan.prefill && host.gate) {
        const auto decision = host.gate->offer(rank, first->charge.prefill_ms, 0, job.attempts > 1);
        if (decision.verdict == router::QuotaGate::Verdict::kRefused) {
            ++r.refused;
            gateway.view->mark_busy(first->charge.slot, time());
            return false;
        }
        if (decision.verdict == router::QuotaGate::Verdict::kForwarded) ++r.forwarded;
        rank = decision.rank;
    }
    job.plan = plan;
    job.planned_prefill_ms = first->charge.prefill_ms;
    job.handles = gateway.view->apply(plan, time());
    if (gateway.policy != nullptr) {
        gateway.policy->committed(
            *gateway.view,
            {.prompt_tokens = job.prompt,
             .blocks = std::span(job.request.blocks)
                           .first(workload::whole_blocks(job.request, block_tokens)),
             .session = job.request.session},
            plan, time());
    }
    if (plan.prefill) {
        if (rank != first->rank.rank)
            gateway.view->move(job.handles.prefill, gateway.view->slot({first->rank.worker, rank}),
                               time());
        job.prefill_unit = host_of(*plan.prefill);
        job.prefill_rank = rank;
    }
    if (plan.decode) {
        job.decode_unit = host_of(*plan.decode);
        job.decode_rank = plan.decode->rank.rank;
    }
    const router::ChargeHandle& live = plan.decode ? job.handles.decode : job.handles.prefill;
    if (live.index() >= gateway.job_of_charge.size())
        gateway.job_of_charge.resize(live.index() + 1, kNowhere);
    gateway.job_of_charge[live.index()] = id;
    mix((static_cast<std::uint64_t>(job.prefill_unit) << 48) ^
        (static_cast<std::uint64_t>(job.prefill_rank) << 32) ^ (job.decode_unit << 16) ^
        job.decode_rank);
    if (plan.prefill) {
        send_to_prefill(id);
    } else {
        begin_decode(id);
    }
    return true;
}

void Cluster::State::send_to_prefill(JobId id) {
    Job& job = jobs[id];
    queue_wait.push_back(to_millis(now - job.arrival));
    restore_prefix(id);
    hosts[job.prefill_unit]->unit.add_prompt(job.prefill_rank, id);
    try_step(job.prefill_unit);
}

// What is truly there, whatever the plan believed; fetched and restored while the prompt waits.
void Cluster::State::restore_prefix(JobId id) {
    Job& job = jobs[id];
    Host& host = *hosts[job.prefill_unit];
    job.ready = now;
    const auto chain =
        std::span(job.request.blocks).first(workload::whole_blocks(job.request, block_tokens));
    const TieredCache::Hit hit = host.caches[job.prefill_rank].match(chain);
    std::uint32_t blocks = hit.blocks;
    for (std::size_t tier = 1; tier < kTiers; ++tier) {
        if (hit.by_tier[tier] == 0) continue;
        const double bytes =
            static_cast<double>(hit.by_tier[tier]) * block_tokens * spec.engine.kv_bytes_per_token;
        Link& link = host.restore[job.prefill_rank];
        link.free_at =
            std::max(link.free_at, now) + from_millis(bytes / spec.cache.bytes_per_ms[tier]);
        job.ready = std::max(job.ready, link.free_at);
    }
    const Gateway& gateway = gateways[job.gateway];
    for (std::uint32_t i = 0; i < job.plan.run_count; ++i) {
        const router::PrefixRun& run = job.plan.runs[i];
        if (run.source != router::PrefixSource::kRank) continue;
        const std::uint32_t from = gateway.host_of_worker[run.from.worker.value];
        Host& source_host = *hosts[from];
        if (!source_host.up) continue;
        const std::uint32_t depth =
            std::min(run.first + run.count, source_host.caches[run.from.rank].match(chain).blocks);
        if (depth <= blocks) continue;
        const double bytes =
            static_cast<double>(depth - blocks) * block_tokens * spec.engine.kv_bytes_per_token;
        job.ready = std::max(job.ready, transfer(source_host.out[run.from.rank],
                                                 host.in[job.prefill_rank], bytes, now));
        blocks = depth;
    }
    TokenCount cached = blocks * block_tokens;
    while (cached > 0 && cached + kLeastComputed > job.prompt) cached -= block_tokens;
    job.cached = job.done = cached;
    if (measured(job)) hit_tokens += cached;
    host.hit_tokens[job.prefill_rank] += cached;
    host.miss_tokens[job.prefill_rank] += job.prompt - cached;
}

void Cluster::State::computed_prompt(std::uint32_t h, JobId id) {
    Job& job = jobs[id];
    Host& host = *hosts[h];
    TieredCache& cache = host.caches[job.prefill_rank];
    if (cache.capacity() == 0) return;
    const auto chain =
        std::span(job.request.blocks).first(workload::whole_blocks(job.request, block_tokens));
    if (chain.empty()) return;
    KvEvents events{h, host.life, job.prefill_rank, {}, cache.match(chain).blocks, {}};
    scratch_stored.clear();
    cache.use(chain, scratch_stored, events.removed);
    if (scratch_stored.empty() && events.removed.empty()) return;
    events.chain.assign(chain.begin(), chain.end());
    if (spec.gateways.event_delay > 0) {
        kv_events.push_back(std::move(events));
        push(now + spec.gateways.event_delay, Kind::kKvEvents, 0);
    } else {
        deliver(events);
    }
}

void Cluster::State::deliver(const KvEvents& e) {
    if (hosts[e.host]->life != e.life) return;
    const std::span<const std::uint64_t> fresh = std::span(e.chain).subspan(e.first);
    for (Gateway& gateway : gateways) {
        const router::RankId rank{gateway.workers[e.host], e.rank};
        if (!e.removed.empty()) gateway.view->removed(rank, e.removed, time());
        if (!fresh.empty())
            gateway.view->stored(rank, e.first == 0 ? 0 : e.chain[e.first - 1], fresh, time());
    }
}

void Cluster::State::release_prefill(JobId id) {
    Job& job = jobs[id];
    Gateway& gateway = gateways[job.gateway];
    Host& host = *hosts[job.prefill_unit];
    if (host.gate) host.gate->finish(job.prefill_rank, job.planned_prefill_ms, 0);
    if (host.stage == Stage::kUnified) {
        // The one charge goes on as a decode charge; its prefill part is done.
        gateway.view->progress_prefill(job.handles.prefill, job.planned_prefill_ms, job.prompt,
                                       time());
        return;
    }
    gateway.view->release(job.handles.prefill, time());
    wake_queue(job.gateway);
}

void Cluster::State::release_all(JobId id) {
    Job& job = jobs[id];
    router::View& view = *gateways[job.gateway].view;
    for (router::ChargeHandle* handle :
         {&job.handles.encode, &job.handles.prefill, &job.handles.decode}) {
        if (!handle->active()) continue;
        if (handle->index() < gateways[job.gateway].job_of_charge.size() &&
            gateways[job.gateway].job_of_charge[handle->index()] == id)
            gateways[job.gateway].job_of_charge[handle->index()] = kNowhere;
        std::erase(gateways[job.gateway].moving, handle->index());
        view.release(*handle, time());
    }
}

void Cluster::State::wake_queue(std::uint32_t g) {
    Gateway& gateway = gateways[g];
    if (gateway.queue.empty() || gateway.retry_pending) return;
    gateway.retry_pending = true;
    push(now, Kind::kRetryQueue, g);
}

void Cluster::State::on_retry_queue(std::uint32_t g) {
    Gateway& gateway = gateways[g];
    gateway.retry_pending = false;
    // Each is tried once; the first that is queued again ends the round.
    for (std::size_t n = gateway.queue.size(); n > 0; --n) {
        const JobId id = gateway.queue.front();
        gateway.queue.pop_front();
        const std::size_t before = gateway.queue.size();
        dispatch(id);
        if (gateway.queue.size() > before) {
            if (gateway.queue.back() == id) {
                gateway.queue.pop_back();
                gateway.queue.push_front(id);
            }
            break;
        }
    }
}

Cluster::State::Sample Cluster::State::sample_loads(const Gateway& gateway) const {
    Sample sample;
    sample.at = now;
    for (std::uint32_t h = 0; h < hosts.size(); ++h) {
        const Host& host = *hosts[h];
        if (!host.up) continue;
        const UnitSpec& unit = host.unit.spec();
        for (std::uint32_t i = 0; i < unit.ranks; ++i) {
            model::Load load;
            load.running = static_cast<std::uint32_t>(host.unit.decode_requests(i));
            load.waiting = static_cast<std::uint32_t>(host.unit.waiting(i));
            load.waiting_uncached_tokens =
                static_cast<TokenCount>(std::max(0.0, host.unit.queued_prefill_tokens(i)));
            load.kv_used_tokens = static_cast<TokenCount>(host.unit.decode_kv(i));
            load.kv_total_tokens = static_cast<TokenCount>(unit.kv_capacity_tokens);
            if (host.stage != Stage::kPrefill)
                load.last_step =
                    Duration{from_millis(host.unit.last_step_ms() / spec.engine.tokens_per_step)};
            sample.loads.emplace_back(router::RankId{gateway.workers[h], i}, load);
        }
    }
    return sample;
}

void Cluster::State::on_report_sample(std::uint32_t g) {
    if (now < spec.end + spec.drain)
        push(now + spec.gateways.report_interval, Kind::kReportSample, g);
    Sample sample = sample_loads(gateways[g]);
    if (spec.gateways.report_delay == 0) return apply_sample(gateways[g], sample);
    samples.push_back(std::move(sample));
    push(now + spec.gateways.report_delay, Kind::kReportArrive, g);
}

void Cluster::State::apply_sample(Gateway& gateway, const Sample& sample) {
    const TimePoint at{Duration{sample.at}};
    for (const auto& [rank, load] : sample.loads) gateway.view->report(rank, load, at, time());
    if (!spec.router.fit) return;
    // The fit belongs to the pool: the first unit of a stage speaks for it.
    for (const Stage stage : {Stage::kPrefill, Stage::kDecode, Stage::kUnified}) {
        for (const auto& host : hosts) {
            if (host->stage != stage || !host->fit) continue;
            gateway.view->set_cost(stage, host->fit->model(), time());
            break;
        }
    }
}

void Cluster::State::on_digest_sample(std::uint32_t g) {
    if (now < spec.end + spec.drain)
        push(now + spec.gateways.digest_interval, Kind::kDigestSample, g);
    const router::Digest digest = gateways[g].view->digest(time());
    for (std::uint32_t other = 0; other < gateways.size(); ++other) {
        if (other == g) continue;
        if (spec.gateways.digest_delay == 0) {
            gateways[other].view->fold(digest, time(), time());
        } else {
            digests.push_back({now, digest, other});
            push(now + spec.gateways.digest_delay, Kind::kDigestArrive, other);
        }
    }
}

// What the engine reports of a step: the heaviest rank's batch and the step's time.
void Cluster::State::observe_step(std::uint32_t h) {
    Host& host = *hosts[h];
    if (!host.fit || host.stage != Stage::kDecode) return;
    std::uint32_t heaviest = 0;
    for (std::uint32_t i = 1; i < host.unit.spec().ranks; ++i)
        if (host.unit.last_rank_ms(i) > host.unit.last_rank_ms(heaviest)) heaviest = i;
    host.fit->observe_decode(host.unit.decode_requests(heaviest), host.unit.decode_kv(heaviest),
                             host.unit.last_step_ms());
}

// Asks the planner for moves within this unit; the gateway whose turn it is plans its own requests.
void Cluster::State::migrate(std::uint32_t h) {
    Host& host = *hosts[h];
    const std::uint64_t turn = host.steps / spec.router.migrate_every;
    const auto g = static_cast<std::uint32_t>(turn % gateways.size());
    Gateway& gateway = gateways[g];
    gateway.view->tick(time());
    const auto moves =
        router::plan_migrations(*gateway.view, spec.router.migration, gateway.moving);
    for (const router::Migration& move : moves) {
        if (move.unit != gateway.units[h]) continue;
        if (move.charge_index >= gateway.job_of_charge.size()) continue;
        const JobId id = gateway.job_of_charge[move.charge_index];
        if (id == kNowhere) continue;
        Job& job = jobs[id];
        const router::RankId to = gateway.view->id(move.to);
        if (job.decode_unit != h || host.unit.kv_of(job.decode_rank, id) <= 0) continue;
        if (!gateway.view->move(job.handles.decode, move.to, time())) continue;
        const double bytes = host.unit.kv_of(job.decode_rank, id) * spec.engine.kv_bytes_per_token +
                             spec.engine.state_bytes;
        const Nanos copied = transfer(host.out[job.decode_rank], host.in[to.rank], bytes, now);
        job.kv_sent = copied;
        job.plan.decode->rank = to;
        gateway.moving.push_back(move.charge_index);
        host.leaving.emplace_back(id, job.life);
        r.migrations += measuring ? 1 : 0;
        r.migrated_bytes += measuring ? bytes : 0;
    }
}

// A request whose KV has been copied stops at the end of a step and goes on at its new rank after
// the pause (the last piece and the start there).
void Cluster::State::move_leaving(std::uint32_t h) {
    Host& host = *hosts[h];
    for (std::size_t i = 0; i < host.leaving.size();) {
        const auto [id, life] = host.leaving[i];
        Job& job = jobs[id];
        const bool here = job.life == life && job.decode_unit == h && job.plan.decode &&
                          host.unit.kv_of(job.decode_rank, id) > 0;
        if (here && job.kv_sent > now) {
            ++i;
            continue;
        }
        host.leaving[i] = host.leaving.back();
        host.leaving.pop_back();
        if (!here) continue;
        Gateway& gateway = gateways[job.gateway];
        std::erase(gateway.moving, job.handles.decode.index());
        const double kv = host.unit.kv_of(job.decode_rank, id);
        if (!host.unit.remove(job.decode_rank, id)) continue;
        job.prompt = static_cast<TokenCount>(std::lround(kv));
        job.decode_rank = job.plan.decode->rank.rank;
        push(now + from_millis(spec.router.migration.pause_fixed_ms), Kind::kMigrated, id,
             job.life);
    }
}

}  // namespace nereid::sim
