// What the loop costs: timers as every read with a deadline arms them, a post, and one byte there
// and back over a socket.
//
//     ninja -C build/release io_loop_bench && build/release/bin/io_loop_bench
#include <benchmark/benchmark.h>

#include <array>
#include <string>

#include "base/prng.h"
#include "io/real_loop.h"
#include "io/real_network.h"
#include "io/timer_heap.h"

namespace nereid::io {
namespace {

// `live` deadlines are pending, about a minute ahead, while one more is armed and cancelled.
void BM_TimerArmCancel(benchmark::State& state) {
    TimerHeap heap;
    Prng rng(1);
    for (std::int64_t i = 0; i < state.range(0); ++i) {
        heap.arm({60s + Duration(static_cast<std::int64_t>(rng.below(1'000'000'000)))}, [] {});
    }
    std::int64_t t = 0;
    for (auto _ : state) heap.cancel(heap.arm({60s + Duration(t += 1000)}, [] {}));
}
BENCHMARK(BM_TimerArmCancel)->Arg(100)->Arg(10'000)->Arg(1'000'000);

void BM_Post(benchmark::State& state) {
    RealLoop loop;
    std::uint64_t left = 0;
    std::function<void()> again = [&] {
        if (left-- > 0) loop.post(again);
    };
    for (auto _ : state) {
        left = 1000;
        loop.post(again);
        loop.run_until([&] { return left > 1000; }, 10s);
    }
    state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(BM_Post);

Task<void> answer(Stream& s, bool deadlines, Loop& loop) {
    std::array<char, 256> into;
    for (;;) {
        const auto n = co_await s.read(into, deadlines ? loop.now() + 60s : TimePoint::never());
        if (!n.ok() || *n == 0) co_return;
        const std::array pieces{std::string_view(into.data(), *n)};
        if (!(co_await s.write(pieces)).ok()) co_return;
    }
}
Task<void> ask(Stream& s, int rounds, bool deadlines, Loop& loop, int& done) {
    std::array<char, 256> into;
    const std::string request(100, 'x');
    const std::array pieces{std::string_view(request)};
    for (int i = 0; i < rounds; ++i) {
        static_cast<void>(co_await s.write(pieces));
        static_cast<void>(co_await s.read(into, deadlines ? loop.now() + 60s : TimePoint::never()));
    }
    ++done;
}

// Arguments: connections at once, whether each read has a deadline. An item is one question and its
// answer, both ends on this loop: two writes, two reads, and what the loop adds.
void BM_RoundTrip(benchmark::State& state) {
    constexpr int kRounds = 1000;
    RealLoop loop;
    std::vector<std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>> pairs;
    const bool deadlines = state.range(1) != 0;
    const auto count = static_cast<int>(state.range(0));
    RealNetwork network(loop);
    auto listener = *network.listen({.host = "127.0.0.1", .port = 0, .unix_path = {}});
    loop.spawn([](Listener& l,
                  std::vector<std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>>& out,
                  RealNetwork& net, RealLoop& on, int n) -> Task<void> {
        for (int i = 0; i < n; ++i) {
            auto a = *co_await net.connect(l.local(), on.now() + 10s);
            out.emplace_back(std::move(a), *co_await l.accept());
        }
    }(*listener, pairs, network, loop, count));
    loop.run_until([&] { return loop.live_tasks() == 0; }, 10s);
    for (auto& [a, b] : pairs) loop.spawn(answer(*b, deadlines, loop));
    for (auto _ : state) {
        int done = 0;
        for (auto& [a, b] : pairs) loop.spawn(ask(*a, kRounds, deadlines, loop, done));
        loop.run_until([&] { return done == count; }, 60s);
    }
    state.SetItemsProcessed(state.iterations() * kRounds * count);
}
BENCHMARK(BM_RoundTrip)->Args({1, 0})->Args({1, 1})->Args({64, 0})->Args({64, 1})->UseRealTime();

}  // namespace
}  // namespace nereid::io
