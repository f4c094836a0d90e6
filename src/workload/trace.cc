#include "workload/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"

namespace nereid::workload {

void Trace::add(Duration arrival, TokenCount input, TokenCount output,
                std::span<const std::uint64_t> blocks, std::uint64_t session, std::uint32_t turn) {
    CHECK(blocks.empty() || block_tokens_ != 0);
    entries_.push_back({.arrival = arrival,
                        .input_tokens = input,
                        .output_tokens = output,
                        .session = session,
                        .turn = turn,
                        .block_count = static_cast<std::uint32_t>(blocks.size()),
                        .first_block = ids_.size()});
    ids_.insert(ids_.end(), blocks.begin(), blocks.end());
}

void Trace::sort() {
    if (entries_.empty()) return;
    // (std::stable_sort of libstdc++ 12 is deprecated code to clang.)
    std::vector<std::pair<Duration, std::size_t>> order;
    order.reserve(entries_.size());
    for (std::size_t i = 0; i < entries_.size(); ++i) order.emplace_back(entries_[i].arrival, i);
    std::ranges::sort(order);
    std::vector<Entry> sorted;
    sorted.reserve(entries_.size());
    for (const auto& [at, i] : order) sorted.push_back(entries_[i]);
    entries_ = std::move(sorted);
    const Duration first = entries_.front().arrival;
    for (Entry& e : entries_) e.arrival -= first;
}

// The map is only looked up, never iterated.
void infer_sessions(Trace& trace, std::uint32_t min_blocks) {
    // Which entry last ended its whole blocks with this id: such an entry is continued by whoever
    // has the id in its chain.
    std::unordered_map<std::uint64_t, std::size_t> ends;
    std::uint64_t next = 1;
    for (const auto& e : trace.entries()) next = std::max(next, e.session + 1);
    auto& entries = trace.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) {
        Trace::Entry& e = entries[i];
        const auto chain = trace.blocks(e);
        const std::size_t whole =
            trace.block_tokens() == 0
                ? 0
                : std::min<std::size_t>(chain.size(), e.input_tokens / trace.block_tokens());
        if (e.session == 0) {
            for (std::size_t n = chain.size(); n >= std::max(1U, min_blocks) && e.session == 0;
                 --n) {
                const auto found = ends.find(chain[n - 1]);
                if (found == ends.end()) continue;
                e.session = entries[found->second].session;
                e.turn = entries[found->second].turn + 1;
            }
            if (e.session == 0) e.session = next++;
        }
        if (whole >= std::max(1U, min_blocks)) ends[chain[whole - 1]] = i;
    }
}

namespace {

double quantile(std::vector<double>& values, double q) {
    const auto at = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1));
    std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(at));
    return values[at];
}

}  // namespace

TraceSummary summarize(const Trace& trace) {
    TraceSummary s;
    s.requests = trace.size();
    s.span = trace.span();
    if (trace.empty()) return s;
    std::vector<double> inputs;
    std::vector<double> outputs;
    std::unordered_set<std::uint64_t> cached;
    std::set<std::uint64_t> sessions;
    double hit_tokens = 0;
    for (const auto& e : trace.entries()) {
        inputs.push_back(e.input_tokens);
        outputs.push_back(e.output_tokens);
        s.input_mean += e.input_tokens;
        s.output_mean += e.output_tokens;
        if (e.session != 0) sessions.insert(e.session);
        if (trace.block_tokens() == 0) continue;
        auto chain = trace.blocks(e);
        chain =
            chain.first(std::min<std::size_t>(chain.size(), e.input_tokens / trace.block_tokens()));
        std::size_t hit = 0;
        while (hit < chain.size() && cached.contains(chain[hit])) ++hit;
        hit_tokens += static_cast<double>(hit) * trace.block_tokens();
        cached.insert(chain.begin(), chain.end());
    }
    s.hit_share = hit_tokens / s.input_mean;
    const auto n = static_cast<double>(trace.size());
    s.input_mean /= n;
    s.output_mean /= n;
    s.input_p50 = quantile(inputs, 0.5);
    s.output_p50 = quantile(outputs, 0.5);
    s.input_max = *std::ranges::max_element(inputs);
    s.output_max = *std::ranges::max_element(outputs);
    s.sessions = sessions.size();
    return s;
}

}  // namespace nereid::workload
