#include "dialect/chat/shapes.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace nereid::dialect::chat {
namespace {

// Impossible tokens have -inf, which JSON cannot say; OpenAI prints this number.
constexpr float kLeastLogprob = -9999.0f;

void write_logprob(JsonWriter& w, float logprob) {
    if (std::isnan(logprob))
        w.null();
    else
        w.value(std::max(logprob, kLeastLogprob));
}

void write_token(JsonWriter& w, std::string_view bytes, float logprob) {
    w.key("token").value(bytes);  // the writer replaces what is not UTF-8
    w.key("logprob");
    write_logprob(w, logprob);
    w.key("bytes").begin_array();
    for (const char c : bytes) w.value(static_cast<int>(static_cast<unsigned char>(c)));
    w.end_array();
}

std::size_t characters(std::string_view text) {
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

bool names_service_tier(const model::Request& request) {
    return std::ranges::find(request.ignored_fields, "service_tier") !=
           request.ignored_fields.end();
}

std::string_view finish_name(model::FinishReason reason, bool legacy_functions) {
    switch (reason) {
        case model::FinishReason::kStop:
            return "stop";
        case model::FinishReason::kLength:
            return "length";
        case model::FinishReason::kToolCalls:
            return legacy_functions ? "function_call" : "tool_calls";
        case model::FinishReason::kContentFilter:
            return "content_filter";
    }
    return "stop";
}

void write_usage(JsonWriter& w, const model::Usage& usage) {
    w.begin_object();
    w.member("prompt_tokens", usage.prompt_tokens);
    w.member("completion_tokens", usage.completion_tokens);
    w.member("total_tokens",
             static_cast<std::uint64_t>(usage.prompt_tokens) + usage.completion_tokens);
    w.key("prompt_tokens_details")
        .begin_object()
        .member("cached_tokens", usage.cached_tokens)
        .end_object();
    w.key("completion_tokens_details")
        .begin_object()
        .member("reasoning_tokens", usage.reasoning_tokens)
        .end_object();
    w.end_object();
}

void write_chat_logprobs(JsonWriter& w, const std::vector<model::TokenLogprob>& entries) {
    w.begin_array();
    for (const model::TokenLogprob& entry : entries) {
        w.begin_object();
        write_token(w, entry.bytes, entry.logprob);
        w.key("top_logprobs").begin_array();
        for (const model::TopLogprob& top : entry.top) {
            w.begin_object();
            write_token(w, top.bytes, top.logprob);
            w.end_object();
        }
        w.end_array().end_object();
    }
    w.end_array();
}

void write_choice_logprobs(JsonWriter& w, const std::vector<model::TokenLogprob>& content,
                           const std::vector<model::TokenLogprob>& refusal) {
    w.begin_object().key("content");
    if (content.empty() && !refusal.empty())
        w.null();
    else
        write_chat_logprobs(w, content);
    w.key("refusal");
    if (refusal.empty())
        w.null();
    else
        write_chat_logprobs(w, refusal);
    w.end_object();
}

std::string printable_token(std::string_view bytes) {
    if (is_valid_utf8(bytes)) return std::string(bytes);
    constexpr char kHex[] = "0123456789abcdef";
    std::string out = "bytes:";
    for (const char c : bytes) {
        const auto b = static_cast<unsigned char>(c);
        out.append("\\x").append(1, kHex[b >> 4]).append(1, kHex[b & 15]);
    }
    return out;
}

std::size_t write_completion_logprobs(JsonWriter& w,
                                      const std::vector<model::TokenLogprob>& entries,
                                      std::size_t offset) {
    w.begin_object();
    w.key("tokens").begin_array();
    for (const auto& entry : entries) w.value(printable_token(entry.bytes));
    w.end_array().key("token_logprobs").begin_array();
    for (const auto& entry : entries) write_logprob(w, entry.logprob);
    w.end_array().key("top_logprobs").begin_array();
    for (const auto& entry : entries) {
        if (std::isnan(entry.logprob)) {
            w.null();
            continue;
        }
        w.begin_object();
        for (const auto& top : entry.top) {
            w.key(printable_token(top.bytes));
            write_logprob(w, top.logprob);
        }
        w.end_object();
    }
    w.end_array().key("text_offset").begin_array();
    for (const auto& entry : entries) {
        w.value(static_cast<std::uint64_t>(offset));
        offset += characters(entry.bytes);
    }
    w.end_array().end_object();
    return offset;
}

}  // namespace nereid::dialect::chat
