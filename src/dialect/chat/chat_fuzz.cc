// Bytes -> JSON -> parse_chat / parse_completion / parse_embeddings; what is accepted is written
// out for a backend and parsed again: the second writing must equal the first.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "dialect/chat/chat.h"
#include "dialect/chat/mirror.h"
#include "dialect/openai_error.h"

namespace {

using nereid::Json;
using nereid::Result;
using nereid::model::Request;
namespace chat = nereid::dialect::chat;

void round_trip(const Result<Request>& parsed,
                Result<Request> (*again)(const Json&, const chat::ParseLimits&)) {
    if (!parsed.ok()) {
        CHECK(Json::parse(nereid::dialect::openai_error_body(parsed.error())).ok());
        return;
    }
    const auto written = chat::write_request(*parsed, parsed->model);
    if (!written.ok()) return;
    const auto json = Json::parse(written->body);
    CHECK_MSG(json.ok(), written->body);
    const auto second = again(*json, {.suffix = true});
    CHECK_MSG(second.ok(), written->body);
    const auto rewritten = chat::write_request(*second, second->model);
    CHECK(rewritten.ok());
    CHECK_MSG(rewritten->body == written->body, written->body + "\n" + rewritten->body);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto json = Json::parse({reinterpret_cast<const char*>(data), size});
    if (!json.ok()) return 0;
    const chat::ParseLimits limits{.suffix = true};
    round_trip(chat::parse_chat(*json, limits), chat::parse_chat);
    round_trip(chat::parse_completion(*json, limits), chat::parse_completion);
    round_trip(chat::parse_embeddings(*json, limits), chat::parse_embeddings);
    return 0;
}
