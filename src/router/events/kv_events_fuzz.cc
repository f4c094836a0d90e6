// Outside bytes into the decoder, and what it accepts into the translator and the index.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "router/events/chain.h"
#include "router/events/kv_events.h"
#include "router/residency.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace nereid;
    using namespace nereid::router;
    const auto batch = decode_kv_events({reinterpret_cast<const char*>(data), size});
    if (!batch.ok()) {
        CHECK(batch.code() == Code::kCorrupt);
        return 0;
    }
    ChainTranslator translator(32, 4096);
    Residency residency({.max_bytes = 1u << 20u});
    residency.add_rank(0);
    for (const KvEvent& event : batch->events) {
        if (const auto* stored = std::get_if<BlockStored>(&event)) {
            const auto out = translator.stored(*stored);
            CHECK(out.blocks.size() <= stored->blocks.size());
            residency.store(0, out.parent, out.blocks);
        } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
            residency.remove(0, translator.removed(*removed));
        } else {
            translator.clear();
            residency.clear_rank(0);
        }
    }
    CHECK(residency.blocks_of(0) <= 4096);
    return 0;
}
