// JSON -> parse_create / parse_count: no crash, and an error's body is JSON. And the answer to what
// was accepted, streamed and whole: both say the same.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "dialect/fuzz_events.h"
#include "dialect/messages/messages.h"

namespace {

using nereid::Json;
namespace dialect = nereid::dialect;
namespace messages = nereid::dialect::messages;
namespace model = nereid::model;

// The content that a client puts together from the frames; a call's input stays text.
Json::Array assembled(const std::vector<Json>& frames) {
    Json::Array content;
    bool open = false;
    for (const Json& frame : frames) {
        const std::string type = dialect::string_at(frame, "type");
        if (type == "content_block_start") {
            CHECK(!open);
            open = true;
            content.push_back(*frame.find("content_block"));
            if (dialect::string_at(content.back(), "type") == "tool_use")
                content.back().set("input", "");
        } else if (type == "content_block_delta") {
            CHECK(open);
            for (const auto& [name, piece] : frame.find("delta")->as_object()) {
                if (name == "type") continue;
                const std::string to = name == "partial_json" ? "input" : name;
                Json& block = content.back();
                block.set(to, dialect::string_at(block, to) + piece.as_string());
            }
        } else if (type == "content_block_stop") {
            CHECK(open);
            open = false;
        }
    }
    CHECK(!open || dialect::string_at(frames.back(), "type") == "error");
    return content;
}

void check_answer(const messages::ResponseMeta& meta, const dialect::Seal& seal,
                  const std::vector<model::Event>& events) {
    const auto encoder = messages::make_encoder(meta, seal);
    const auto whole = messages::make_whole(meta, seal);
    std::string stream;
    for (const model::Event& event : events) {
        encoder->on(event, stream);
        whole->on(event);
    }
    const std::vector<Json> frames = dialect::read_frames(stream);
    CHECK(dialect::string_at(frames.front(), "type") == "message_start");
    const Json::Array content = assembled(frames);
    const auto body = whole->body();
    CHECK(dialect::string_at(frames.back(), "type") == (body.ok() ? "message_stop" : "error"));
    if (!body.ok()) return;
    const auto message = Json::parse(*body);
    CHECK_MSG(message.ok(), *body);
    const Json& delta = *frames[frames.size() - 2].find("delta");
    CHECK(*delta.find("stop_reason") == *message->find("stop_reason"));
    CHECK(*delta.find("stop_sequence") == *message->find("stop_sequence"));
    const Json::Array& said = message->find("content")->as_array();
    CHECK_MSG(said.size() == content.size(), stream + *body);
    for (std::size_t i = 0; i < said.size(); ++i) {
        if (dialect::string_at(said[i], "type") != "tool_use") {
            CHECK_MSG(said[i] == content[i], stream + *body);
            continue;
        }
        const std::string input = dialect::string_at(content[i], "input");
        const auto parsed = Json::parse(input);
        const Json wanted = parsed.ok() && parsed->is_object()
                                ? *parsed
                                : Json(Json::Object{{"input", Json(input)}});
        CHECK_MSG(*said[i].find("input") == wanted, stream + *body);
        for (const char* name : {"id", "name"})
            CHECK(*said[i].find(name) == *content[i].find(name));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const nereid::Aead aead{nereid::Digest256{}};
    const dialect::Seal seal(aead, "t");
    const auto input = dialect::split_input({reinterpret_cast<const char*>(data), size});
    const auto json = Json::parse(input.json);
    if (!json.ok()) return 0;
    const auto create = messages::parse_create(*json, seal);
    const auto count = messages::parse_count(*json, seal);
    for (const auto* parsed : {&create, &count}) {
        if (!parsed->ok()) CHECK(Json::parse(messages::error_body(parsed->error(), "r")).ok());
    }
    if (!create.ok()) return 0;
    std::vector<std::string> tools;
    for (const model::Tool& tool : create->request.tools) tools.push_back(tool.name);
    dialect::FuzzAnswer answer(input.answer, std::move(tools));
    check_answer({.id = "msg_1", .model = "m", .omit_thinking = create->omit_thinking}, seal,
                 answer.events());
    return 0;
}
