#include "engine/scripted/scripted_text.h"

#include <fmt/format.h>

#include <utility>

#include "base/utf8.h"
#include "engine/scripted/scripted_engine.h"

namespace nereid::engine::scripted {
namespace {

class ByteTokenizer final : public text::Tokenizer {
  public:
    ByteTokenizer() {
        for (int i = 0; i < 256; ++i) bytes_.push_back(static_cast<char>(i));
    }
    void encode(std::string_view text, text::Special, std::vector<TokenId>& out) const override {
        const std::string valid = replace_invalid_utf8(text);
        for (const char c : valid) out.push_back(static_cast<unsigned char>(c));
    }
    std::string_view piece(TokenId id, text::Special special) const override {
        if (id >= 0 && id < kEndToken)
            return std::string_view(bytes_).substr(static_cast<std::size_t>(id), 1);
        return id == kEndToken && special == text::Special::kParse ? "<end>" : "";
    }
    std::uint32_t vocab_size() const override { return kVocabulary; }
    bool is_end(TokenId id) const override { return id == kEndToken; }
    TokenId bos() const override { return -1; }
    bool adds_bos() const override { return false; }
    std::string_view name() const override { return "bytes"; }

  private:
    std::string bytes_;
};

std::string_view name_of(model::Role role) {
    switch (role) {
        case model::Role::kSystem:
        case model::Role::kDeveloper:
            return "system";
        case model::Role::kUser:
            return "user";
        case model::Role::kAssistant:
            return "assistant";
        case model::Role::kTool:
            return "tool";
    }
    return "user";
}

void append_part(const model::Part& part, std::string& out) {
    if (const auto* text = std::get_if<model::TextPart>(&part)) {
        out += text->text;
    } else if (const auto* refusal = std::get_if<model::RefusalPart>(&part)) {
        out += refusal->text;
    } else if (const auto* image = std::get_if<model::ImagePart>(&part)) {
        out += image->url.empty() ? fmt::format("[image {} bytes]", image->bytes.size())
                                  : fmt::format("[image {}]", image->url);
    }
    out += '\n';
}

class PlainTemplate final : public text::ChatTemplate {
  public:
    explicit PlainTemplate(std::shared_ptr<const text::Tokenizer> tokenizer)
        : tokenizer_(std::move(tokenizer)) {}

    Result<text::RenderedPrompt> render(const model::Request& request) const override {
        text::RenderedPrompt out;
        for (const model::Message& m : request.messages) {
            out.text += fmt::format("<|{}|>\n", name_of(m.role));
            if (!m.reasoning.empty()) out.text += fmt::format("<think>{}</think>\n", m.reasoning);
            for (const model::Part& part : m.parts) append_part(part, out.text);
            for (const model::ToolCall& call : m.tool_calls)
                out.text += fmt::format("<call {} {}>\n", call.name, call.arguments);
        }
        if (!request.tools.empty()) out.text += "<|tools|>\n";
        for (const model::Tool& tool : request.tools) out.text += tool.name + "\n";
        if (request.add_generation_prompt) out.text += "<|assistant|>\n";
        tokenizer_->encode(out.text, text::Special::kPlain, out.tokens);
        return out;
    }
    const std::string& source() const override { return source_; }
    bool supports_tools() const override { return true; }

  private:
    std::shared_ptr<const text::Tokenizer> tokenizer_;
    // What text/family.h looks for: Hermes' notation.
    std::string source_ = "<tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call> <think>";
};

}  // namespace

text::TextModel scripted_text(const Script& script) {
    text::TextModel out;
    out.tokenizer = std::make_shared<ByteTokenizer>();
    out.chat_template = std::make_shared<PlainTemplate>(out.tokenizer);
    out.context_tokens = script.context_tokens;
    return out;
}

}  // namespace nereid::engine::scripted
