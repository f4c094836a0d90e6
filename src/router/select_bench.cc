// The router's hot paths at 1,000 workers × 8 ranks: a choice with a 32k-token prompt, booking and
// ending it; KV events into a warm index; a snapshot of 10 M blocks. bench/router.py reads the
// counters.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "router/policy.h"

namespace nereid::router {
namespace {

constexpr std::uint32_t kWorkers = 1000;
constexpr std::uint32_t kRanks = 8;
constexpr TokenCount kBlockTokens = 64;
constexpr std::size_t kPromptBlocks = 512;  // 32k tokens
constexpr std::size_t kSystemBlocks = 40;

void chain(std::uint64_t seed, std::size_t n, std::vector<BlockHash>& out) {
    for (std::size_t i = 0; i < n; ++i) out.push_back(keyed_u64(seed, i) | 1);
}

// A conversation: one of 64 system prompts, then blocks of its own.
std::vector<BlockHash> conversation(std::uint64_t number, std::size_t blocks) {
    std::vector<BlockHash> out;
    out.reserve(blocks);
    chain(1'000'000 + number % 64, std::min(kSystemBlocks, blocks), out);
    chain(number, blocks - out.size(), out);
    return out;
}

// Half prefill workers, half decode; conversations resident all over, each on one rank or two,
// system prompts on hundreds.
struct Cluster {
    explicit Cluster(std::uint64_t conversations)
        : view(options()), policy(std::move(*make_policy("nereid"))) {
        for (std::uint32_t w = 0; w < kWorkers; ++w) {
            const bool decode = w % 2 == 1;
            const auto id = view.add_worker({.name = "w" + std::to_string(w),
                                             .stage = decode ? Stage::kDecode : Stage::kPrefill,
                                             .ranks = kRanks,
                                             .kv_capacity_tokens = 2'000'000,
                                             .block_tokens = kBlockTokens},
                                            now);
            CHECK(id.ok());
            if (!decode) prefill.push_back(*id);
        }
        for (std::uint64_t c = 0; c < conversations; ++c) {
            const auto blocks = conversation(c, 100 + prng.below(kPromptBlocks - 100));
            for (std::uint64_t copies = 1 + c % 2; copies > 0; --copies) {
                const RankId rank{prefill[prng.below(prefill.size())],
                                  static_cast<std::uint32_t>(prng.below(kRanks))};
                view.stored(rank, 0, blocks, now);
            }
        }
    }
    static ViewOptions options() {
        ViewOptions o{.block_tokens = kBlockTokens, .slow_start = 0s};
        o.residency.max_bytes = 1u << 30u;
        return o;
    }
    TimePoint now{1s};
    View view;
    std::unique_ptr<Policy> policy;
    Prng prng{1};
    std::vector<WorkerId> prefill;
};

// A choice alone, among 30,000 running requests, of 10,000 prompts in turn (so that the index is
// cold in the CPU's caches).
void choose(benchmark::State& state) {
    constexpr std::uint64_t kConversations = 20'000;  // about 6 M distinct blocks
    static Cluster cluster(kConversations);
    std::vector<std::vector<BlockHash>> prompts;
    for (int i = 0; i < 10'000; ++i) {
        prompts.push_back(conversation(cluster.prng.below(kConversations), kPromptBlocks));
    }
    std::vector<PlanHandles> running(30'000);
    std::size_t at = 0;
    const auto place = [&] {
        const RouteRequest request{.prompt_tokens = kPromptBlocks * kBlockTokens + 17,
                                   .blocks = prompts[at++ * 7919 % prompts.size()]};
        auto plan = cluster.policy->choose(cluster.view, request, cluster.now, cluster.prng);
        CHECK(plan.ok());
        return plan;
    };
    for (auto& r : running) r = cluster.view.apply(*place(), cluster.now);
    double cached = 0;
    for (auto _ : state) cached += place()->cached_tokens;
    state.counters["cached_tokens"] = cached / static_cast<double>(state.iterations());
    state.counters["blocks"] = static_cast<double>(cluster.view.residency().stats().blocks);
}
BENCHMARK(choose)->Unit(benchmark::kMicrosecond)->Iterations(100'000);

// The same with booking, committing and ending in the time.
void choose_book_end(benchmark::State& state) {
    static Cluster cluster(5000);
    std::vector<std::vector<BlockHash>> prompts;
    for (int i = 0; i < 1000; ++i) {
        prompts.push_back(conversation(cluster.prng.below(5000), kPromptBlocks));
    }
    std::vector<PlanHandles> running(30'000);
    std::size_t at = 0;
    for (auto _ : state) {
        const RouteRequest request{.prompt_tokens = kPromptBlocks * kBlockTokens + 17,
                                   .blocks = prompts[at * 7919 % prompts.size()]};
        cluster.now = cluster.now + 100us;
        const auto plan = cluster.policy->choose(cluster.view, request, cluster.now, cluster.prng);
        cluster.policy->committed(cluster.view, request, *plan, cluster.now);
        running[at++ % running.size()] = cluster.view.apply(*plan, cluster.now);
    }
}
BENCHMARK(choose_book_end)->Unit(benchmark::kMicrosecond)->Iterations(100'000);

// Events as a busy cluster has them, in batches of 16 blocks: stored by one rank, a third of them
// removed again. Items are blocks.
void events(benchmark::State& state) {
    static Cluster cluster(20'000);
    Prng prng(5);
    struct Tail {
        RankId rank;
        std::vector<BlockHash> blocks;
    };
    std::vector<Tail> tails;
    std::uint64_t number = 10'000'000;
    for (int i = 0; i < 4000; ++i) {
        Tail t{.rank = {cluster.prefill[prng.below(cluster.prefill.size())],
                        static_cast<std::uint32_t>(prng.below(kRanks))},
               .blocks = {}};
        chain(++number, 256, t.blocks);
        tails.push_back(std::move(t));
    }
    std::uint64_t applied = 0;
    std::size_t at = 0;
    for (auto _ : state) {
        Tail& t = tails[at * 7919 % tails.size()];
        const std::size_t from = at / tails.size() % 16 * 16;
        const std::span<const BlockHash> blocks(t.blocks);
        cluster.view.stored(t.rank, from == 0 ? 0 : blocks[from - 1], blocks.subspan(from, 16),
                            cluster.now);
        applied += 16;
        if (from == 240) {
            cluster.view.removed(t.rank, blocks, cluster.now);
            applied += 256;
        }
        ++at;
    }
    state.SetItemsProcessed(static_cast<std::int64_t>(applied));
}
BENCHMARK(events)->Unit(benchmark::kMicrosecond)->Iterations(200'000);

// An index of 10 M distinct blocks on 8,000 ranks from the engines' snapshots: no room reserved.
void snapshot(benchmark::State& state) {
    constexpr std::uint64_t kBlocks = 10'000'000;
    constexpr std::uint64_t kPerRank = kBlocks / (kWorkers * kRanks);
    std::vector<BlockHash> all;
    all.reserve(kBlocks);
    for (std::uint64_t r = 0; r < kWorkers * kRanks; ++r) chain(r, kPerRank, all);
    const std::span<const BlockHash> blocks(all);
    for (auto _ : state) {
        Residency residency({.max_bytes = 1u << 30u});
        for (RankSlot r = 0; r < kWorkers * kRanks; ++r) {
            residency.add_rank(r);
            residency.store(r, 0, blocks.subspan(r * kPerRank, kPerRank));
        }
        const auto stats = residency.stats();
        CHECK(stats.blocks > kBlocks / 1000 * 999);
        state.counters["bytes_per_block"] =
            static_cast<double>(stats.bytes) / static_cast<double>(stats.blocks);
        state.counters["blocks"] = static_cast<double>(stats.blocks);
    }
}
BENCHMARK(snapshot)->Unit(benchmark::kSecond)->Iterations(1);

// The same number as conversations: shared system prompts, two copies of every other one.
void snapshot_shared(benchmark::State& state) {
    for (auto _ : state) {
        state.PauseTiming();
        std::vector<std::vector<BlockHash>> conversations;
        for (std::uint64_t c = 0; c < 25'000; ++c) conversations.push_back(conversation(c, 440));
        state.ResumeTiming();
        Residency residency({.max_bytes = 1u << 30u});
        for (RankSlot r = 0; r < kWorkers * kRanks; ++r) residency.add_rank(r);
        for (std::uint64_t c = 0; c < conversations.size(); ++c) {
            for (std::uint64_t copy = 0; copy <= c % 2; ++copy) {
                residency.store(static_cast<RankSlot>(keyed_u64(copy, c) % (kWorkers * kRanks)), 0,
                                conversations[c]);
            }
        }
        const auto stats = residency.stats();
        state.counters["bytes_per_block"] =
            static_cast<double>(stats.bytes) / static_cast<double>(stats.blocks);
        state.counters["blocks"] = static_cast<double>(stats.blocks);
        state.counters["sets"] = static_cast<double>(stats.sets);
    }
}
BENCHMARK(snapshot_shared)->Unit(benchmark::kSecond)->Iterations(1);

}  // namespace
}  // namespace nereid::router
