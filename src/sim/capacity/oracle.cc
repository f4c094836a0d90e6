#include "sim/capacity/oracle.h"

#include <algorithm>
#include <limits>

#include "sim/capacity/tiered_cache.h"

namespace nereid::sim {

Oracle oracle_of(const ClusterSpec& spec, workload::Source& source) {
    constexpr std::uint64_t kUnlimited = 1ull << 40u;
    TieredCache cache({kUnlimited, 0, 0});
    const TokenCount block = std::max(1u, source.block_tokens());
    std::vector<std::uint64_t> stored, removed;
    workload::Request request;
    double requests = 0, prompt = 0, hits = 0, work = 0, output = 0, kv = 0;
    while (source.next_arrival() != workload::Source::kNever &&
           source.next_arrival().count() <= spec.end) {
        source.take(request);
        const auto chain = std::span(request.blocks).first(workload::whole_blocks(request, block));
        TokenCount hit = cache.match(chain).blocks * block;
        while (hit > 0 && hit >= request.input_tokens) hit -= block;
        stored.clear();
        cache.use(chain, stored, removed);
        if (request.arrival.count() < spec.warmup) continue;
        requests += 1;
        prompt += request.input_tokens;
        hits += hit;
        work += spec.engine.chunk_ms(hit, request.input_tokens, request.input_tokens);
        const double out = request.output_tokens;
        output += out;
        kv += out * (request.input_tokens + out / 2);
    }
    Oracle o;
    if (requests == 0) return o;
    const auto ranks = [](const PoolSpec& p) {
        return static_cast<double>(p.units) * p.unit.ranks;
    };
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    o.hit_share = prompt > 0 ? hits / prompt : 0;
    o.prefill_ms = work / requests;
    o.prefill_per_second =
        spec.prefill.units > 0 && work > 0 ? ranks(spec.prefill) * 1000 / o.prefill_ms : kInfinite;
    o.decode_per_second = kInfinite;
    if (spec.decode.units > 0 && output > 0) {
        const EngineModel& m = spec.engine;
        const double kv_mean = kv / output;  // of a running request, over its life
        const double each = m.decode_ms(1, kv_mean);
        double batch =
            std::max(0.0, (spec.slo.itl_ms * m.tokens_per_step - m.decode_fixed_ms) / each);
        const UnitSpec& unit = spec.decode.unit;
        if (unit.kv_capacity_tokens > 0) batch = std::min(batch, unit.kv_capacity_tokens / kv_mean);
        if (unit.max_running > 0) batch = std::min<double>(batch, unit.max_running);
        const double step = m.decode_fixed_ms + each * batch;
        o.decode_batch = batch;
        o.decode_per_second =
            ranks(spec.decode) * batch * m.tokens_per_step / step * 1000 / (output / requests);
    }
    o.requests_per_second = std::min(o.prefill_per_second, o.decode_per_second);
    return o;
}

}  // namespace nereid::sim
