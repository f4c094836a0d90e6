// Costs per step and per request on the engine link, and of naming a prompt's blocks.
#include <benchmark/benchmark.h>

#include "model/block_key.h"
#include "model/engine_wire.h"

namespace nereid::model {
namespace {

void block_chain_8k(benchmark::State& state) {
    std::vector<TokenId> tokens(8192);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
    const Namespace ns = make_namespace({{}, {}, "tenant", true});
    for (auto _ : state) benchmark::DoNotOptimize(block_chain(ns, tokens, 64));
    state.SetItemsProcessed(state.iterations() * 128);  // blocks
}
BENCHMARK(block_chain_8k);

void frame_trip(benchmark::State& state) {
    StepFrame frame;
    frame.step = {1};
    for (std::int64_t i = 0; i < state.range(0); ++i)
        frame.tokens.push_back({{static_cast<std::uint64_t>(i)}, 5, -1.f, {}});
    std::string bytes;
    wire::Decoder decoder;
    for (auto _ : state) {
        bytes.clear();
        wire::encode(frame, bytes);
        decoder.feed(bytes);
        benchmark::DoNotOptimize(decoder.next());
    }
}
BENCHMARK(frame_trip)->ArgName("tokens")->Arg(1)->Arg(16)->Arg(64);

void add_request_trip_4k(benchmark::State& state) {
    AddRequest add;
    add.prompt.assign(4096, 7);
    const Command command = add;
    std::string bytes;
    wire::Decoder decoder;
    for (auto _ : state) {
        bytes.clear();
        wire::encode(command, bytes);
        decoder.feed(bytes);
        benchmark::DoNotOptimize(decoder.next());
    }
}
BENCHMARK(add_request_trip_4k);

}  // namespace
}  // namespace nereid::model
