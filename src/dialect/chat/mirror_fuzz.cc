// Bytes as a backend's stream: the same events for any chunking, one end, and text that is valid
// UTF-8. And as its whole answer, and as an error body.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "dialect/chat/chat.h"
#include "dialect/chat/mirror.h"

namespace {

namespace chat = nereid::dialect::chat;
namespace model = nereid::model;

// The client's stream made of the events: all that matters of them, in one string.
std::string encode(const std::vector<model::Event>& events) {
    chat::StreamEncoder encoder({.id = "i",
                                 .model = "m",
                                 .system_fingerprint = {},
                                 .include_usage = true,
                                 .logprobs = true});
    std::string out;
    for (const model::Event& event : events) encoder.on(event, out);
    return out;
}

std::vector<model::Event> read(std::string_view bytes, std::size_t size) {
    chat::StreamReader reader;
    std::vector<model::Event> events;
    for (; !bytes.empty(); bytes.remove_prefix(std::min(size, bytes.size()))) {
        reader.feed(bytes.substr(0, size), events);
    }
    reader.finish(events);
    CHECK(reader.ended());
    return events;
}

void check(const std::vector<model::Event>& events) {
    CHECK(!events.empty());
    for (std::size_t i = 0; i < events.size(); ++i) {
        const bool end = std::holds_alternative<model::Done>(events[i]) ||
                         std::holds_alternative<model::Failed>(events[i]);
        CHECK(end == (i + 1 == events.size()));
        if (const auto* text = std::get_if<model::TextDelta>(&events[i]))
            CHECK(nereid::is_valid_utf8(text->text));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const auto whole = read(bytes, std::max<std::size_t>(size, 1));
    check(whole);
    CHECK(encode(read(bytes, 1)) == encode(whole));
    CHECK(encode(read(bytes, 7)) == encode(whole));
    check(chat::read_response(bytes));
    CHECK(!chat::read_error(400, bytes).message.empty());
    return 0;
}
