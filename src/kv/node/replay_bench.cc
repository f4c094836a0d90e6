// Replays a whole Mooncake trace through the node at several capacities and prints one JSON object:
//     kv_replay_bench conversation_trace.jsonl
// Keys of "hit_ratio" are shares of the trace's unique blocks, "infinite" is room for all.
#include <cstdio>
#include <set>

#include <fmt/format.h>

#include "io/disk.h"
#include "kv/node/replay_testing.h"

int main(int argc, char** argv) {
    using namespace nereid;
    if (argc != 2) {
        std::fputs("usage: kv_replay_bench TRACE.jsonl\n", stderr);
        return 2;
    }
    const auto text = io::read_file(argv[1], 64 << 20);
    const auto trace = text.ok() ? kv::parse_mooncake(*text) : Result<kv::BlockTrace>(text.error());
    if (!trace.ok()) {
        fmt::print(stderr, "{}: {}\n", argv[1], trace.error().message);
        return 1;
    }
    std::set<std::uint64_t> unique;
    std::size_t references = 0;
    for (const auto& r : *trace) {
        unique.insert(r.begin(), r.end());
        references += r.size();
    }
    std::string ratios;
    for (const double share : {0.01, 0.03, 0.1, 0.3, 0.6}) {
        const auto blocks = static_cast<std::uint64_t>(static_cast<double>(unique.size()) * share);
        ratios += fmt::format("\"{}\": {:.4f}, ", share, kv::Replay(blocks).run(*trace).hit_ratio);
    }
    const auto all = kv::Replay(unique.size() + 1024).run(*trace);
    fmt::print(
        "{{\"requests\": {}, \"references\": {}, \"unique\": {}, \"hit_ratio\": {{{}\"infinite\": "
        "{:.4f}}}}}\n",
        trace->size(), references, unique.size(), ratios, all.hit_ratio);
    return 0;
}
