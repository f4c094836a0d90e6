#include "sim/capacity/unit.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace nereid::sim {

Unit::Unit(const UnitSpec& spec, const EngineModel& model, JobPool& jobs)
    : spec_(spec),
      model_(model),
      jobs_(jobs),
      ranks_(spec.ranks),
      count_(spec.ranks, 0),
      kv_(spec.ranks, 0),
      work_(spec.ranks, 0),
      chunk_ms_(spec.ranks, 0) {
    CHECK(spec.ranks >= 1);
}

void Unit::add_prompt(std::uint32_t rank, JobId job) {
    const Job& j = jobs_[job];
    ranks_[rank].prompts.push_back(job);
    ranks_[rank].queued_tokens += j.prompt - j.done;
}

void Unit::add_decode(std::uint32_t rank, JobId job) { ranks_[rank].waiting.push_back(job); }

double Unit::kv_of(std::uint32_t rank, JobId job) const {
    for (const Running& x : ranks_[rank].running)
        if (x.job == job) return x.kv_base + model_.tokens_per_step * static_cast<double>(step_);
    return 0;
}

bool Unit::room_for(std::uint32_t r, double kv) const {
    const bool seats = spec_.max_running == 0 || ranks_[r].running.size() < spec_.max_running;
    // An empty rank takes whatever comes: a request larger than the cache fails elsewhere.
    return seats && (spec_.kv_capacity_tokens <= 0 || ranks_[r].running.empty() ||
                     kv_[r] + ranks_[r].promised_kv + kv <= spec_.kv_capacity_tokens);
}

void Unit::admit(std::uint32_t r) {
    Rank& rank = ranks_[r];
    while (!rank.waiting.empty()) {
        const JobId id = rank.waiting.front();
        Job& job = jobs_[id];
        const double kv = job.prompt;
        if (!room_for(r, kv)) return;
        rank.waiting.pop_front();
        const double left = static_cast<double>(job.request.output_tokens - job.generated);
        const auto steps = static_cast<std::int64_t>(std::ceil(left / model_.tokens_per_step));
        const std::int64_t end_step = step_ + std::max<std::int64_t>(1, steps);
        rank.running.push_back(
            {id, end_step, kv - model_.tokens_per_step * static_cast<double>(step_)});
        rank.next_end = std::min(rank.next_end, end_step);
        count_[r] += 1;
        kv_[r] += kv;
    }
}

void Unit::erase_running(std::uint32_t r, std::size_t i) {
    Rank& rank = ranks_[r];
    const Running& x = rank.running[i];
    const double produced =
        static_cast<double>(jobs_[x.job].request.output_tokens) -
        static_cast<double>(std::max<std::int64_t>(0, x.end_step - step_)) * model_.tokens_per_step;
    jobs_[x.job].generated = static_cast<TokenCount>(std::max(1.0, produced));
    kv_[r] -= x.kv_base + model_.tokens_per_step * static_cast<double>(step_);
    count_[r] -= 1;
    rank.running[i] = rank.running.back();
    rank.running.pop_back();
    if (rank.running.empty()) kv_[r] = 0;  // no residue of rounding
}

bool Unit::remove(std::uint32_t r, JobId job) {
    Rank& rank = ranks_[r];
    for (std::size_t i = 0; i < rank.running.size(); ++i) {
        if (rank.running[i].job != job) continue;
        erase_running(r, i);
        return true;
    }
    if (const auto it = std::ranges::find(rank.waiting, job); it != rank.waiting.end()) {
        rank.waiting.erase(it);
        return true;
    }
    const auto it = std::ranges::find(rank.prompts, job);
    if (it == rank.prompts.end()) return false;
    rank.queued_tokens -= jobs_[job].prompt - jobs_[job].done;
    std::erase_if(rank.chunks, [&](const Chunk& c) { return c.job == job; });
    rank.prompts.erase(it);
    return true;
}

void Unit::drain(std::vector<JobId>& out) {
    for (std::uint32_t r = 0; r < spec_.ranks; ++r) {
        Rank& rank = ranks_[r];
        while (!rank.running.empty()) {
            out.push_back(rank.running.front().job);
            erase_running(r, 0);
        }
        out.insert(out.end(), rank.waiting.begin(), rank.waiting.end());
        out.insert(out.end(), rank.prompts.begin(), rank.prompts.end());
        rank = Rank{};
        count_[r] = kv_[r] = 0;
    }
    stepping_ = false;
    since_decode_ms_ = 0;
}

bool Unit::take_prompts_now() const {
    if (spec_.stage == router::Stage::kPrefill) return true;
    if (spec_.stage == router::Stage::kDecode) return false;
    const bool gap = spec_.decode_gap_ms > 0;
    if (spec_.vote_any == 0 && !gap) return true;
    const auto has_prompt = [](const Rank& r) { return !r.prompts.empty(); };
    if (std::ranges::none_of(ranks_, [this](const Rank& r) { return decodes(r); })) return true;
    if (gap) {
        return std::ranges::any_of(ranks_, [&](const Rank& r) {
            if (r.prompts.empty()) return false;
            const Job& job = jobs_[r.prompts.front()];
            const TokenCount least = std::min(job.prompt - job.done, kChunkGrain);
            return since_decode_ms_ == 0 ||
                   model_.chunk_ms(job.done, job.done + least, job.prompt) <= gap_left_ms(r);
        });
    }
    if (decodes_since_prefill_ >= spec_.vote_any) return std::ranges::any_of(ranks_, has_prompt);
    return decodes_since_prefill_ >= spec_.vote_all && std::ranges::all_of(ranks_, has_prompt);
}

double Unit::gap_left_ms(const Rank& r) const {
    const bool burst = r.prompts.size() > r.running.size() + r.waiting.size();
    return spec_.decode_gap_ms * (burst ? spec_.burst_factor : 1) - since_decode_ms_;
}

double Unit::build_chunks(std::uint32_t r, Nanos now, Nanos& wake) {
    Rank& rank = ranks_[r];
    TokenCount budget = spec_.token_budget;
    const bool gap = spec_.decode_gap_ms > 0;
    const double cost_budget = !gap            ? spec_.cost_budget_ms
                               : decodes(rank) ? std::max(1e-9, gap_left_ms(rank))
                                               : 0;
    double cost = 0;
    for (const JobId id : rank.prompts) {
        if (budget == 0) break;
        const Job& job = jobs_[id];
        if (job.ready > now) {
            wake = std::min(wake, job.ready);
            continue;
        }
        if (spec_.stage == router::Stage::kUnified && job.done <= job.cached &&
            !room_for(r, job.prompt))
            break;
        TokenCount tokens = std::min(budget, job.prompt - job.done);
        if (cost_budget > 0) {
            const double left = cost_budget - cost;
            if (cost > 0 && left < 0.1 * cost_budget) break;
            const TokenCount fit = model_.tokens_within(job.done, tokens, job.prompt, left);
            if (cost > 0 && model_.chunk_ms(job.done, job.done + fit, job.prompt) > left) break;
            tokens = fit;
        }
        if (spec_.stage == router::Stage::kUnified && job.done <= job.cached)
            rank.promised_kv += job.prompt;
        cost += model_.chunk_ms(job.done, job.done + tokens, job.prompt);
        rank.chunks.push_back({id, tokens});
        budget -= tokens;
        totals_.prefill_tokens += tokens;
        if (gap) break;
    }
    return cost;
}

Nanos Unit::begin(Nanos now, Nanos& wake) {
    CHECK(!stepping_);
    const bool prefill = take_prompts_now();
    bool any_chunk = false;
    decoding_ = spec_.stage != router::Stage::kPrefill &&
                !(prefill && (spec_.vote_any != 0 || spec_.decode_gap_ms > 0));
    bool any_decode = false;
    for (std::uint32_t r = 0; r < spec_.ranks; ++r) {
        chunk_ms_[r] = 0;
        if (spec_.stage != router::Stage::kPrefill && !ranks_[r].waiting.empty()) admit(r);
        if (prefill && !ranks_[r].prompts.empty()) {
            chunk_ms_[r] = build_chunks(r, now, wake);
            any_chunk = any_chunk || !ranks_[r].chunks.empty();
        }
        any_decode = any_decode || count_[r] > 0;
    }
    if (!any_chunk && any_decode && spec_.stage != router::Stage::kPrefill) decoding_ = true;
    decoding_ = decoding_ && any_decode;
    if (!any_chunk && !decoding_) return 0;
    return finish_build(any_chunk);
}

// The step's length: see the head of engine_model.h.
Nanos Unit::finish_build(bool prefill) {
    const double ranks = spec_.ranks;
    double total = 0, worst = 0, requests = 0, kv = 0, kv_max = 0;
    for (std::uint32_t r = 0; r < spec_.ranks; ++r) {
        double work = chunk_ms_[r];
        if (decoding_) {
            work += model_.decode_ms(count_[r], kv_[r]);
            requests += count_[r];
            kv += kv_[r];
            kv_max = std::max(kv_max, kv_[r]);
        }
        work_[r] = work;
        total += work;
        worst = std::max(worst, work);
    }
    const double fixed = prefill && decoding_
                             ? std::max(model_.prefill_fixed_ms, model_.decode_fixed_ms)
                         : prefill ? model_.prefill_fixed_ms
                                   : model_.decode_fixed_ms;
    const double mean = total / ranks;
    double actual = worst, balanced = mean;
    const double share_p = model_.prefill_moe_share, share_d = model_.decode_moe_share;
    if (share_p > 0 || share_d > 0 || spec_.moe_imbalance > 1) {
        // Expert work follows the unit's mean, not the rank's own batch.
        double rest = 0, experts = 0;
        for (std::uint32_t r = 0; r < spec_.ranks; ++r) {
            double own = chunk_ms_[r] * share_p;
            if (decoding_) own += count_[r] * model_.decode_request_ms * share_d;
            experts += own;
            rest = std::max(rest, work_[r] - own);
        }
        experts /= ranks;
        actual = rest + experts * spec_.moe_imbalance;
        balanced = mean;
    }
    const double length = fixed + actual;
    totals_.steps += 1;
    totals_.prefill_steps += prefill ? 1 : 0;
    totals_.actual_ms += length;
    totals_.balanced_ms += fixed + balanced;
    totals_.rank_work_ms += total + fixed * ranks;
    totals_.idle_ms += worst * ranks - total;
    totals_.kv_mean += kv / ranks;
    totals_.kv_max += kv_max;
    totals_.request_steps += requests;
    totals_.kv_steps += kv;
    decodes_since_prefill_ = prefill ? 0 : decodes_since_prefill_ + 1;
    since_decode_ms_ = decoding_ ? 0 : since_decode_ms_ + length;
    outcome_.decoded = decoding_;
    outcome_.decoded_requests = requests;
    last_step_ms_ = length;
    stepping_ = true;
    return std::max<Nanos>(1, from_millis(length));
}

void Unit::overflow(std::uint32_t r) {
    Rank& rank = ranks_[r];
    while (kv_[r] + rank.promised_kv > spec_.kv_capacity_tokens && rank.running.size() > 1) {
        std::size_t victim = 0;
        std::uint32_t longest = 0;
        for (std::size_t i = 0; i < rank.running.size(); ++i) {
            const Running& x = rank.running[i];
            const auto left = static_cast<double>(x.end_step - step_) * model_.tokens_per_step;
            const double out = static_cast<double>(jobs_[x.job].request.output_tokens) - left;
            if (out > longest || i == 0) {
                longest = static_cast<std::uint32_t>(std::max(0.0, out));
                victim = i;
            }
        }
        outcome_.preempted.push_back(rank.running[victim].job);
        erase_running(r, victim);
        ++totals_.preempted;
    }
}

void Unit::end_requests(std::uint32_t r) {
    Rank& rank = ranks_[r];
    std::int64_t next = kNever;
    for (std::size_t i = 0; i < rank.running.size();) {
        if (rank.running[i].end_step <= step_) {
            outcome_.ended.push_back(rank.running[i].job);
            erase_running(r, i);
        } else {
            next = std::min(next, rank.running[i].end_step);
            ++i;
        }
    }
    rank.next_end = next;
}

const Unit::Outcome& Unit::end() {
    CHECK(stepping_);
    stepping_ = false;
    outcome_.prompts.clear();
    outcome_.ended.clear();
    outcome_.preempted.clear();
    if (decoding_) ++step_;
    for (std::uint32_t r = 0; r < spec_.ranks; ++r) {
        Rank& rank = ranks_[r];
        if (decoding_ && count_[r] > 0) {
            kv_[r] += count_[r] * model_.tokens_per_step;
            totals_.decode_tokens += count_[r] * model_.tokens_per_step;
            if (step_ >= rank.next_end) end_requests(r);
            if (spec_.kv_capacity_tokens > 0 && kv_[r] > spec_.kv_capacity_tokens) overflow(r);
        }
        for (const Chunk& chunk : rank.chunks) {
            Job& job = jobs_[chunk.job];
            job.done += chunk.tokens;
            rank.queued_tokens -= chunk.tokens;
            if (job.done < job.prompt) continue;
            if (spec_.stage == router::Stage::kUnified) rank.promised_kv -= job.prompt;
            outcome_.prompts.push_back(chunk.job);
            rank.prompts.erase(std::ranges::find(rank.prompts, chunk.job));
        }
        rank.chunks.clear();
    }
    return outcome_;
}

}  // namespace nereid::sim
