#include "sim/capacity/flops.h"

#include <algorithm>

#include "base/check.h"

namespace nereid::sim {

namespace {

constexpr std::int64_t kFp4 = 1, kFp8 = 2, kBf16 = 4, kFp32 = 8;

bool has(const std::vector<int>& list, int layer) {
    return std::ranges::find(list, layer) != list.end();
}

// Sum of floor(t / ratio) for t = 1..n: pairs of queries and compressed keys, without a cap.
std::int64_t floor_sum(std::int64_t n, std::int64_t ratio) {
    const std::int64_t blocks = n / ratio;
    return blocks * (n + 1) - ratio * blocks * (blocks + 1) / 2;
}

// Sum of min(floor(t / ratio), cap) for t in (begin, end]; cap 0 is none.
std::int64_t pairs_between(std::int64_t begin, std::int64_t end, std::int64_t ratio,
                           std::int64_t cap) {
    const auto prefix = [&](std::int64_t n) {
        if (cap == 0) return floor_sum(n, ratio);
        const std::int64_t stop = std::min(n, ratio * cap);
        return floor_sum(stop, ratio) + (n - stop) * cap;
    };
    return prefix(end) - prefix(begin);
}

}  // namespace

FlopsV41::FlopsV41(const ArchitectureV41& architecture, std::int64_t keep_tokens)
    : keep_(keep_tokens), window_(architecture.window) {
    add_rows(architecture);
    add_attention(architecture);
}

// Work per row outside attention: experts, gate, hyper-connections, engram, output head.
void FlopsV41::add_rows(const ArchitectureV41& a) {
    const std::int64_t producers = a.producer_layers;
    const std::int64_t consumers = a.layers - a.producer_layers;
    const std::int64_t experts =
        kFp8 * 3 * a.hidden * a.expert_width * (a.experts_per_token + a.shared_experts);
    const std::int64_t gate = kBf16 * a.hidden * a.experts;
    const std::int64_t c = a.hc_mult;
    const std::int64_t mix = kFp32 * c * a.hidden;
    const std::int64_t pre = kFp32 * c * a.hidden * c * (c + 2) + mix;
    const std::int64_t sublayer = pre + kFp32 * c * (c + 1) * a.hidden;
    const std::int64_t boundary = keep_ > 0 && consumers > 0 ? pre : 0;
    producer_row_ = producers * (experts + gate) + 2 * sublayer * producers - mix + boundary;
    consumer_row_ = consumers * (experts + gate) + 2 * sublayer * consumers + mix - boundary;
    const std::int64_t engram = kFp8 * a.engram_embed * a.hidden * (c + 1) + kFp32 * c * a.hidden;
    for (const int layer : a.engram_layers)
        (layer < a.producer_layers ? producer_row_ : consumer_row_) += engram;
    logits_row_ = kBf16 * a.hidden * a.vocabulary;
}

void FlopsV41::add_pairs(std::int64_t ratio, std::int64_t cap, std::int64_t shift,
                         std::int64_t weight, bool consumer) {
    const auto same = [&](const PairTerm& t) {
        return t.ratio == ratio && t.cap == cap && t.shift == shift;
    };
    auto found = std::ranges::find_if(pairs_, same);
    if (found == pairs_.end()) {
        pairs_.push_back({ratio, cap, shift, 0, 0});
        found = pairs_.end() - 1;
    }
    (consumer ? found->consumer : found->producer) += weight;
}

void FlopsV41::add_attention(const ArchitectureV41& a) {
    for (int i = 0; i < a.layers; ++i) {
        const std::int64_t ratio = a.ratio(i);
        const bool consumer = keep_ > 0 && i >= a.producer_layers;
        const bool index = ratio > 0 && has(a.index_sources, i);
        const std::int64_t index_width = index ? a.index_heads * a.index_dim : 0;
        std::int64_t row = kFp8 * a.hidden * (a.q_rank + a.head_dim);
        row += kFp8 * a.q_rank * (a.heads * a.head_dim + index_width);
        row += kFp8 * a.heads * a.head_dim * a.o_rank;
        row += kFp8 * a.o_groups * a.o_rank * a.hidden;
        row += index ? kBf16 * a.hidden * a.index_heads : 0;
        (consumer ? consumer_attention_row_ : producer_attention_row_) += row;
        if (ratio > 0 && has(a.kv_sources, i)) {
            const std::int64_t outputs = ratio == 1 ? 1 : 2;
            producer_attention_row_ += kBf16 * a.hidden * outputs * a.head_dim;
            if (index) {
                const std::int64_t weight = kBf16 * a.head_dim * a.index_dim;
                index_keys_.emplace_back(ratio, weight);
                index_key_row_ += weight;
            }
        }
        const std::int64_t core = kBf16 * a.heads * 2 * a.head_dim;
        (consumer ? consumer_window_ : producer_window_) += core;
        if (ratio > 0) add_pairs(ratio, a.top_k, 0, core, consumer);
        if (!index) continue;
        const std::int64_t scan = kFp4 * index_width;
        if (i > a.candidate_source) {
            const std::int64_t block = a.candidate_block_size;
            add_pairs(ratio * block, a.candidate_blocks, ratio * (block - 1), scan * block,
                      consumer);
        } else {
            add_pairs(ratio, 0, 0, scan, consumer);
        }
    }
}

FlopsV41::Count FlopsV41::count(const Range& all, const Range& consumer, bool prompt,
                                std::int64_t rows) const {
    std::int64_t attention =
        producer_attention_row_ * all.rows() + consumer_attention_row_ * consumer.rows() +
        producer_window_ * all.window_pairs + consumer_window_ * consumer.window_pairs;
    if (prompt) {
        for (const auto& [ratio, weight] : index_keys_)
            attention += weight * std::max<std::int64_t>(1, all.end / ratio - all.begin / ratio);
    } else {
        attention += index_key_row_ * all.rows();
    }
    for (const PairTerm& t : pairs_) {
        attention +=
            t.producer * pairs_between(all.begin + t.shift, all.end + t.shift, t.ratio, t.cap);
        attention += t.consumer * pairs_between(consumer.begin + t.shift, consumer.end + t.shift,
                                                t.ratio, t.cap);
    }
    const std::int64_t total = attention + producer_row_ * all.rows() +
                               consumer_row_ * consumer.rows() + logits_row_ * rows;
    return {attention, total};
}

FlopsV41::Count FlopsV41::prefill(std::int64_t start, std::int64_t tokens,
                                  std::int64_t prompt) const {
    CHECK(tokens >= 1 && start >= 0 && start + tokens <= prompt);
    const std::int64_t end = start + tokens;
    const Range all{start, end, pairs_between(start, end, 1, window_)};
    Range consumer = all;
    if (keep_ > 0) {
        // A chunk before the kept end still executes its last row in the consumer layers.
        const std::int64_t cutoff = prompt - keep_;
        consumer.begin = std::clamp(cutoff, start, end - 1);
        const std::int64_t base = std::max<std::int64_t>(0, cutoff);
        consumer.window_pairs = pairs_between(std::max<std::int64_t>(0, consumer.begin - base),
                                              std::max<std::int64_t>(0, end - base), 1, window_);
    }
    return count(all, consumer, true, 1);
}

FlopsV41::Count FlopsV41::decode(std::int64_t context, std::int64_t tokens) const {
    CHECK(tokens >= 1 && context >= tokens);
    const std::int64_t start = context - tokens;
    const Range all{start, context, pairs_between(start, context, 1, window_)};
    return count(all, all, false, tokens);
}

}  // namespace nereid::sim
