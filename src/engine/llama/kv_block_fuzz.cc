// Bytes of the shared region are another process's: nothing in them may be read out of bounds or
// believed unchecked.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/llama/kv_block.h"
#include "engine/llama/options.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace nereid::engine::llama;
    static const KvGeometry geometry = [] {
        KvGeometry g;
        g.tensors = {{0, false, 1, 8}, {0, true, 1, 4}};
        g.state_magic = 1;
        g.streams = 2;
        return g;
    }();
    std::string_view rest(reinterpret_cast<const char*>(data), size);
    // The checksum of the rows is left out, so that the fuzzer gets past it.
    while (true) {
        const auto view = open_block(geometry, rest, false);
        if (!view.ok()) break;
        CHECK(view->size <= rest.size() && view->tokens >= 1 && view->tokens <= kBlockTokens);
        CHECK(view->rows.size() == view->tokens * geometry.token_bytes());
        if (view->first_token == 0) {
            std::string state;
            assemble_state(geometry, {&*view, 1}, state);
        }
        rest.remove_prefix(view->size);
    }
    return 0;
}
