// The index at its full size: keys per second and core, bytes per entry, longest prefix of 512
// blocks.
//     kv_index_bench --entries=100000000        (2.1 GB; --benchmark_filter works as usual)
// Times are CPU time of one thread. bench/kv_index.py runs this beside Mooncake's batch_is_exist.
#include <benchmark/benchmark.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/prng.h"
#include "kv/index/index.h"

namespace nereid::kv {
namespace {

constexpr ExpiryHour kNow = 1000;
constexpr std::uint32_t kChain = 512;
std::uint64_t g_entries = 10'000'000;

// Chains of 512 blocks; every chain is present as a whole. Key i of the set is a mix of its number,
// as uniform as a keyed hash.
ObjectKey key_of(std::uint64_t i) {
    std::uint64_t x = i * 0x9e3779b97f4a7c15ULL + 0x2545f4914f6cdd1dULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    const std::uint64_t y = (x ^ (x >> 31)) * 0xd6e8feb86659fd93ULL;
    return {y ^ (y >> 32), x ^ (x >> 31)};
}

Index& full_index() {
    static std::unique_ptr<Index> index = [] {
        auto made = Index::create({.entries = g_entries, .seed = 7});
        if (!made.ok()) std::abort();
        return std::move(*made);
    }();
    return *index;
}

void fill(Index& index) {
    constexpr std::uint64_t kStep = 32;
    std::array<ObjectKey, kStep> keys;
    for (std::uint64_t i = 0; i < g_entries; i += kStep) {
        for (std::uint64_t j = 0; j < kStep; ++j) keys[j] = key_of(i + j);
        index.prefetch(keys);
        for (std::uint64_t j = 0; j < kStep && i + j < g_entries; ++j) {
            index.put(keys[j], {{Tier::kSsd, (i + j) & kMaxLocation}, 2000, 1});
        }
    }
}

void insert(benchmark::State& state) {
    Index& index = full_index();
    for (auto _ : state) fill(index);
    const auto stats = index.stats();
    state.SetItemsProcessed(static_cast<std::int64_t>(g_entries));
    state.counters["entries"] = static_cast<double>(stats.entries);
    state.counters["bytes_per_entry"] =
        static_cast<double>(stats.bytes) / static_cast<double>(stats.entries);
    state.counters["load"] =
        static_cast<double>(stats.entries) / static_cast<double>(stats.capacity);
    state.counters["displaced"] = static_cast<double>(stats.displaced);
}
BENCHMARK(insert)->Iterations(1)->Unit(benchmark::kSecond);

// Random keys in batches; keys are made outside the clock.
void look_up(benchmark::State& state, bool present) {
    const Index& index = full_index();
    const auto batch = static_cast<std::size_t>(state.range(0));
    Prng rng(3);
    std::vector<ObjectKey> keys(1 << 22);
    for (auto& k : keys) k = key_of(rng.below(g_entries) + (present ? 0 : 1ULL << 40));
    const auto out = std::make_unique<bool[]>(batch);
    std::uint64_t found = 0;
    std::size_t at = 0;
    for (auto _ : state) {
        found += index.contains({keys.data() + at, batch}, kNow, {out.get(), batch});
        at = at + 2 * batch > keys.size() ? 0 : at + batch;
    }
    const auto items = state.iterations() * static_cast<std::int64_t>(batch);
    if (found != (present ? static_cast<std::uint64_t>(items) : 0)) {
        state.SkipWithError("wrong number of hits");
    }
    state.SetItemsProcessed(items);
}
void hit(benchmark::State& state) { look_up(state, true); }
void miss(benchmark::State& state) { look_up(state, false); }
BENCHMARK(hit)->Arg(128)->Arg(4096);
BENCHMARK(miss)->Arg(4096);

// Requests of 512 blocks of which range(0) are there (0: a random number). The keys of a request
// are near, as they are when a request has just been received; the table is not.
void prefix(benchmark::State& state) {
    const Index& index = full_index();
    Prng rng(4);
    constexpr std::size_t kRequests = 128;  // 1 MB of keys
    std::vector<ObjectKey> keys(kRequests * kChain);
    std::array<std::uint32_t, kRequests> expected{};
    for (auto _ : state) {
        state.PauseTiming();
        for (std::size_t r = 0; r < kRequests; ++r) {
            const std::uint64_t chain = rng.below(g_entries / kChain);
            expected[r] = state.range(0) != 0 ? static_cast<std::uint32_t>(state.range(0))
                                              : static_cast<std::uint32_t>(rng.below(kChain + 1));
            for (std::uint32_t b = 0; b < kChain; ++b) {
                keys[r * kChain + b] =
                    key_of(chain * kChain + b + (b < expected[r] ? 0 : 1ULL << 40));
            }
        }
        state.ResumeTiming();
        for (std::size_t r = 0; r < kRequests; ++r) {
            if (index.longest_prefix({keys.data() + r * kChain, kChain}, kNow) != expected[r]) {
                state.SkipWithError("wrong prefix");
                return;
            }
        }
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kRequests));
}
BENCHMARK(prefix)->Arg(0)->Arg(1)->Arg(512);

}  // namespace
}  // namespace nereid::kv

int main(int argc, char** argv) {
    constexpr std::string_view kOption = "--entries=";
    int kept = 1;
    for (int i = 1; i < argc; ++i) {
        const std::string_view arg = argv[i];
        if (arg.starts_with(kOption)) {
            std::from_chars(arg.data() + kOption.size(), arg.data() + arg.size(),
                            nereid::kv::g_entries);
        } else {
            argv[kept++] = argv[i];
        }
    }
    argc = kept;
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
}
