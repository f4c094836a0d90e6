// For the dialects' fuzzers: an answer made of bytes, and a stream of frames read as a client
// would. An input is JSON, and after its first NUL byte (which JSON cannot hold) the answer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "model/event.h"

namespace nereid::dialect {

struct FuzzInput {
    std::string_view json;
    std::string_view answer;
};

inline FuzzInput split_input(std::string_view bytes) {
    const std::size_t at = bytes.find('\0');
    if (at == std::string_view::npos) return {bytes, {}};
    return {bytes.substr(0, at), bytes.substr(at + 1)};
}

// Events in the order that model/event.h gives, with the freedom it leaves; `tools` are names that
// calls use, beside names of the input's own.
class FuzzAnswer {
  public:
    FuzzAnswer(std::string_view program, std::vector<std::string> tools)
        : left_(program), tools_(std::move(tools)) {}

    std::vector<model::Event> events() {
        std::vector<model::Event> out = {model::Start{}};
        while (!left_.empty()) {
            if (!step(out)) return out;
        }
        out.push_back(model::ChoiceEnd{.reason = calls_ > 0 ? model::FinishReason::kToolCalls
                                                            : model::FinishReason::kStop});
        out.push_back(model::Done{.usage = {.prompt_tokens = 3, .completion_tokens = 2}});
        return out;
    }

  private:
    // False at the end of the answer.
    bool step(std::vector<model::Event>& out) {
        switch (byte() % 8) {
            case 0:
                out.push_back(model::ReasoningDelta{.text = text()});
                return true;
            case 1:
            case 2:
                out.push_back(model::ToolCallDelta{
                    .index = calls_++, .id = byte() % 2 == 0 ? "" : text(), .name = name()});
                return true;
            case 3:
            case 4:
                if (calls_ > 0)
                    out.push_back(model::ToolCallDelta{.index = calls_ - 1, .arguments = text()});
                return true;
            case 5: {
                const auto reason = static_cast<model::FinishReason>(byte() % 4);
                out.push_back(model::ChoiceEnd{.reason = reason, .stop_sequence = text()});
                out.push_back(model::Done{.usage = {.prompt_tokens = 7, .cached_tokens = 4}});
                return false;
            }
            case 6:
                if (byte() % 4 != 0) return true;
                out.push_back(model::Failed{{static_cast<Code>(byte() % 8), text()}});
                return false;
            default:
                out.push_back(model::TextDelta{.text = text(), .refusal = byte() % 8 == 7});
                return true;
        }
    }
    unsigned byte() {
        if (left_.empty()) return 0;
        const auto b = static_cast<unsigned char>(left_.front());
        left_.remove_prefix(1);
        return b;
    }
    std::string text() {
        const std::size_t size = std::min<std::size_t>(byte() % 24, left_.size());
        const std::string_view taken = left_.substr(0, size);
        left_.remove_prefix(size);
        return replace_invalid_utf8(taken);
    }
    std::string name() {
        const unsigned which = byte();
        if (which < 192 && !tools_.empty()) return tools_[which % tools_.size()];
        return "n" + text();
    }

    std::string_view left_;
    std::vector<std::string> tools_;
    std::uint32_t calls_ = 0;
};

// The frames of a whole stream, each of one `event:` and one `data:` line.
inline std::vector<Json> read_frames(std::string_view stream) {
    constexpr std::string_view kEvent = "event: ";
    constexpr std::string_view kData = "data: ";
    std::vector<Json> out;
    while (!stream.empty()) {
        const std::size_t end = stream.find("\n\n");
        CHECK_MSG(end != std::string_view::npos, stream);
        const std::string_view frame = stream.substr(0, end);
        stream.remove_prefix(end + 2);
        const std::size_t line = frame.find('\n');
        CHECK_MSG(line != std::string_view::npos && frame.starts_with(kEvent), frame);
        const std::string_view data = frame.substr(line + 1);
        CHECK_MSG(data.starts_with(kData) && !data.contains('\n') && !data.contains('\r'), frame);
        auto json = Json::parse(data.substr(kData.size()));
        CHECK_MSG(json.ok(), frame);
        CHECK_MSG(json->find("type")->as_string() == frame.substr(kEvent.size(), line - 7), frame);
        out.push_back(*std::move(json));
    }
    return out;
}

inline std::string string_at(const Json& object, std::string_view name) {
    const Json* value = object.find(name);
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

}  // namespace nereid::dialect
