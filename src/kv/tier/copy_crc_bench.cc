// One-copy get against bare memcpy, from a source that no cache holds: blocks of range(0) bytes out
// of a region of --region=BYTES (4x the last-level cache; 1.25 GB by default), into a buffer of the
// reader's that is as large as 64 MB, as an engine's would be.
#include <benchmark/benchmark.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "io/memory_region.h"
#include "kv/tier/arena.h"
#include "kv/tier/copy_crc.h"

namespace nereid::kv {
namespace {

ByteCount g_region = ByteCount{1280} << 20;
constexpr ByteCount kTarget = 64 << 20;

struct Memory {
    io::MemoryRegion source;
    io::MemoryRegion target;
    Memory() {
        auto s = io::MemoryRegion::shared("nereid-bench", g_region, true);
        auto t = io::MemoryRegion::anonymous(kTarget, true);
        if (!s.ok() || !t.ok()) std::abort();
        source = std::move(*s);
        target = std::move(*t);
        std::memset(source.bytes().data(), 0x5a, source.size());
        std::memset(target.bytes().data(), 0, target.size());
    }
};
Memory& memory() {
    static Memory m;
    return m;
}

template <class Copy>
void run(benchmark::State& state, Copy copy) {
    const auto block = static_cast<std::size_t>(state.range(0));
    const auto from = memory().source.bytes();
    const auto to = memory().target.bytes();
    // Blocks far apart in turn, as those of a prompt are.
    const std::size_t blocks = from.size() / block;
    const std::size_t stride = blocks / 7 * 3 + 1;
    std::size_t at = 0;
    std::size_t out = 0;
    for (auto _ : state) {
        copy(to.subspan(out, block), from.subspan(at * block, block));
        at = (at + stride) % blocks;
        out = out + 2 * block > to.size() ? 0 : out + block;
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(block));
}

void bare_memcpy(benchmark::State& state) {
    run(state, [](auto to, auto from) {
        std::memcpy(to.data(), from.data(), from.size());
        benchmark::ClobberMemory();
    });
}
void copy_with_crc(benchmark::State& state) {
    run(state, [](auto to, auto from) { benchmark::DoNotOptimize(copy_crc32c(to, from)); });
}
void memcpy_then_crc(benchmark::State& state) {
    run(state, [](auto to, auto from) {
        std::memcpy(to.data(), from.data(), from.size());
        benchmark::DoNotOptimize(crc32c(from));
    });
}
BENCHMARK(bare_memcpy)->Arg(256 << 10)->Arg(1 << 20)->Arg(4 << 20)->UseRealTime();
BENCHMARK(copy_with_crc)->Arg(256 << 10)->Arg(1 << 20)->Arg(4 << 20)->UseRealTime();
BENCHMARK(memcpy_then_crc)->Arg(1 << 20)->UseRealTime();

}  // namespace
}  // namespace nereid::kv

int main(int argc, char** argv) {
    constexpr std::string_view kOption = "--region=";
    int kept = 1;
    for (int i = 1; i < argc; ++i) {
        const std::string_view arg = argv[i];
        if (arg.starts_with(kOption)) {
            std::from_chars(arg.data() + kOption.size(), arg.data() + arg.size(),
                            nereid::kv::g_region);
        } else {
            argv[kept++] = argv[i];
        }
    }
    argc = kept;
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
}
