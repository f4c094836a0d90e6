#include "engine/llama/plan_step.h"

#include <algorithm>

#include "engine/llama/options.h"

namespace nereid::engine::llama {

std::uint32_t prefill_rows(TokenCount remaining, std::uint32_t wanted) {
    if (remaining < 2 * kBlockTokens) return remaining;
    const std::uint32_t rows = std::max(std::min(remaining, wanted), kBlockTokens);
    const std::uint32_t left = remaining - rows;
    return left == 0 || left >= kBlockTokens ? rows : remaining - kBlockTokens;
}

std::uint32_t padded_rows(TokenCount remaining, TokenCount context) {
    const bool pad = context > 0 || remaining >= kPadFrom;
    return pad ? std::max(remaining, kBlockTokens) : remaining;
}

std::vector<std::uint32_t> joined_prefill(std::span<const PrefillWork> waiting,
                                          std::uint32_t most) {
    const PrefillWork& front = waiting.front();
    std::vector<std::uint32_t> members{0};
    if (!front.joinable) return members;
    std::uint32_t rows = padded_rows(front.remaining, front.context);
    std::uint32_t wanted = rows;  // sum over the members, each for itself
    const auto joins = [&](const PrefillWork& w) {
        if (!w.joinable) return false;
        const std::uint32_t own = padded_rows(w.remaining, w.context);
        const auto total = static_cast<std::uint32_t>(members.size() + 1) * std::max(rows, own);
        if ((own < kBlockTokens) != (rows < kBlockTokens) || total > most ||
            total * 4 > (wanted + own) * 5)
            return false;
        return !w.next_block.has_value() ||
               std::none_of(members.begin(), members.end(),
                            [&](std::uint32_t m) { return waiting[m].next_block == w.next_block; });
    };
    std::uint32_t low = front.stream;
    std::uint32_t high = front.stream;
    for (bool grew = true; grew;) {
        grew = false;
        for (std::uint32_t i = 1; i < waiting.size(); ++i) {
            const PrefillWork& w = waiting[i];
            if ((w.stream != high + 1 && w.stream + 1 != low) || !joins(w)) continue;
            rows = std::max(rows, padded_rows(w.remaining, w.context));
            wanted += padded_rows(w.remaining, w.context);
            low = std::min(low, w.stream);
            high = std::max(high, w.stream);
            members.push_back(i);
            grew = true;
        }
    }
    std::sort(members.begin(), members.end(), [&](std::uint32_t a, std::uint32_t b) {
        return waiting[a].stream < waiting[b].stream;
    });
    return members;
}

namespace {

// The largest shared call that costs at most `left`; kIdle when nobody can join.
StepPlan joined_plan(const PlanState& state, const StepCost& cost, Duration left) {
    std::uint32_t most = state.ubatch;
    for (;;) {
        const auto members = joined_prefill(state.waiting, most);
        if (members.size() == 1) return {};
        StepPlan plan{StepPlan::Kind::kPrefill, 0};
        TokenCount context = 0;
        for (const std::uint32_t m : members) {
            const PrefillWork& w = state.waiting[m];
            plan.rows = std::max(plan.rows, padded_rows(w.remaining, w.context));
            context = std::max(context, w.context);
            if (m != 0) plan.joined.push_back(m);
        }
        const auto total = static_cast<std::uint32_t>(members.size()) * plan.rows;
        if (cost.prefill(total, context) <= left) return plan;
        most = total - 1;
    }
}

}  // namespace

std::uint32_t restorable_blocks(TokenCount prompt, TokenCount capacity) {
    if (prompt <= kBlockTokens) return 0;
    const std::uint32_t blocks = (prompt - 1) / kBlockTokens;
    return (blocks + 1) * kBlockTokens <= capacity ? blocks
                                                   : (prompt - kBlockTokens) / kBlockTokens;
}

StepPlan plan_step(const PlanState& state, const StepCost& cost) {
    using Kind = StepPlan::Kind;
    if (state.waiting.empty()) return {state.decoding > 0 ? Kind::kDecode : Kind::kIdle, 0};
    const PrefillWork& next = state.waiting.front();
    std::uint32_t most = state.ubatch;
    if (next.limit != 0) most = std::min(most, next.limit);
    const std::uint32_t whole = padded_rows(prefill_rows(next.remaining, most), next.context);
    if (state.decoding == 0) {
        const StepPlan shared = joined_plan(state, cost, Duration::max());
        return shared.kind == Kind::kPrefill ? shared : StepPlan{Kind::kPrefill, whole};
    }
    const bool burst = state.waiting.size() > state.decoding;
    const Duration gap = state.decode_gap * (burst ? kBurstFactor : 1);
    const Duration left = gap - state.since_decode;
    if (StepPlan shared = joined_plan(state, cost, left); shared.kind == Kind::kPrefill)
        return shared;
    std::uint32_t rows = whole;
    while (rows >= 2 * kBlockTokens && cost.prefill(rows, next.context) > left) {
        rows = prefill_rows(next.remaining, rows - kBlockTokens);
    }
    const bool fits = cost.prefill(rows, next.context) <= left;
    const bool owed = state.since_decode > Duration{0};  // a decode step is due before more prefill
    if (!fits && owed) return {Kind::kDecode, 0};
    return {Kind::kPrefill, rows};
}

std::vector<std::uint32_t> padding_rows(std::span<const StreamState> streams,
                                        const PaddingPolicy& policy) {
    std::vector<std::uint32_t> padding;
    const auto n = static_cast<std::uint32_t>(streams.size());
    std::uint32_t i = 0;
    while (i < n) {
        if (!streams[i].decoding) {
            ++i;
            continue;
        }
        // One pass: [first, last], growing over gaps that can be filled.
        const std::uint32_t first = i;
        std::uint32_t last = i;
        TokenCount longest = streams[i].length;
        for (std::uint32_t next = last + 1; next < n && next - last <= policy.max_gap + 1; ++next) {
            if (!streams[next].decoding) {
                if (!streams[next].usable) break;
                continue;
            }
            for (std::uint32_t g = last + 1; g < next; ++g) padding.push_back(g);
            last = next;
            longest = std::max(longest, streams[next].length);
        }
        const bool lone =
            first == last && policy.pair_lone_rows && longest + 1 > kSplitKv - kKvPadding;
        if (lone) {
            const bool right = last + 1 < n && streams[last + 1].usable;
            const bool left = first > 0 && streams[first - 1].usable &&
                              (padding.empty() || padding.back() != first - 1);
            if (right && left) {
                padding.push_back(streams[first - 1].length < streams[last + 1].length ? first - 1
                                                                                       : last + 1);
            } else if (right || left) {
                padding.push_back(right ? last + 1 : first - 1);
            }
        }
        i = last + 1;
    }
    std::sort(padding.begin(), padding.end());
    padding.erase(std::unique(padding.begin(), padding.end()), padding.end());
    return padding;
}

}  // namespace nereid::engine::llama
