// Anything after the greeting, in two pieces: no crash, no message beyond the bounds.
#include <cstdlib>

#include "io/zmtp.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace nereid::io::zmtp;
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    Decoder decoder;
    for (const std::string_view piece : {bytes.substr(0, size / 2), bytes.substr(size / 2)}) {
        decoder.feed(piece);
        for (;;) {
            auto item = decoder.next();
            if (!item.ok()) return 0;
            if (!*item) break;
            if ((*item)->frames.size() > kMaxFrames) std::abort();
            if ((*item)->command) (void)check_ready((*item)->frames[0], SocketType::kSub);
        }
    }
    return 0;
}
