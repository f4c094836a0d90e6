// JSON -> parse_create -> messages: no crash, and an error's body is JSON. The answer to what was
// accepted, streamed and whole: both say the same. A custom tool's input is the same for two
// chunkings of the bytes.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "dialect/fuzz_events.h"
#include "dialect/openai_error.h"
#include "dialect/responses/responses.h"
#include "dialect/responses/tools.h"

namespace {

using nereid::Json;
namespace dialect = nereid::dialect;
namespace model = nereid::model;
namespace responses = nereid::dialect::responses;

std::string extracted(std::string_view bytes, std::size_t step) {
    responses::InputExtractor extractor;
    std::string out;
    for (std::size_t i = 0; i < bytes.size(); i += step) extractor.feed(bytes.substr(i, step), out);
    extractor.finish(out);
    return out;
}

// What grew piece by piece is what is said to be done, and the items are those of the response.
void check_frames(const std::vector<Json>& frames) {
    std::map<std::string, std::string> grown;  // by the type of its frames
    Json::Array items;
    for (std::size_t i = 0; i < frames.size(); ++i) {
        const Json& frame = frames[i];
        CHECK(frame.find("sequence_number")->as_int() == static_cast<std::int64_t>(i));
        const std::string type = dialect::string_at(frame, "type");
        const std::string what = type.substr(0, type.rfind('.'));
        if (type == "response.output_item.added") {
            grown.clear();
        } else if (type == "response.output_item.done") {
            items.push_back(*frame.find("item"));
        } else if (type.ends_with(".delta")) {
            grown[what] += dialect::string_at(frame, "delta");
        } else if (type.ends_with(".done") && what != "response.content_part") {
            const char* whole = frame.find("text") != nullptr        ? "text"
                                : frame.find("refusal") != nullptr   ? "refusal"
                                : frame.find("arguments") != nullptr ? "arguments"
                                                                     : "input";
            CHECK(dialect::string_at(frame, whole) == grown[what]);
        }
    }
    CHECK(frames.back().find("response")->find("output")->as_array() == items);
}

void check_answer(const responses::Create& create, const dialect::Seal& seal,
                  const std::vector<model::Event>& events) {
    const responses::ResponseMeta meta{.id = "resp_1", .model = "m", .created = 1};
    const auto streamed = responses::make_answer(meta, create, seal);
    const auto whole = responses::make_answer(meta, create, seal);
    std::string stream;
    for (const model::Event& event : events) {
        streamed->on(event, stream);
        whole->on(event);
    }
    CHECK(streamed->ended() && whole->ended());
    const std::vector<Json> frames = dialect::read_frames(stream);
    check_frames(frames);
    const auto object = Json::parse(whole->result());
    CHECK_MSG(object.ok(), whole->result());
    CHECK_MSG(*frames.back().find("response") == *object, stream + whole->result());
    CHECK(whole->body().ok() != whole->failed());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const nereid::Aead aead{nereid::Digest256{}};
    const dialect::Seal seal(aead, "t");
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    CHECK(extracted(bytes, 1) == extracted(bytes, 7));
    const auto input = dialect::split_input(bytes);
    const auto json = Json::parse(input.json);
    if (!json.ok()) return 0;
    auto create = responses::parse_create(*json, "f");
    auto added = create.ok() ? responses::add_messages(*create, create->input, seal)
                             : nereid::Result<void>(create.error());
    if (!added.ok()) {
        CHECK(Json::parse(dialect::openai_error_body(added.error())).ok());
        return 0;
    }
    std::vector<std::string> tools;
    for (const auto& [name, tool] : create->tools) tools.push_back(name);
    dialect::FuzzAnswer answer(input.answer, std::move(tools));
    check_answer(*create, seal, answer.events());
    return 0;
}
