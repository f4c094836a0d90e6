// Random requests and answers for property tests of this dialect. Tests only. Everything that the
// wire can carry occurs.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/prng.h"
#include "model/event.h"
#include "model/request.h"

namespace nereid::dialect::chat {

class RandomChat {
  public:
    explicit RandomChat(std::uint64_t seed) : rng(seed) {}

    std::string text(std::size_t max = 8) {
        static const std::vector<std::string> kWords = {
            "a",  "\"", "\\",    "\n",    "\xe4\xbd\xa0", "\xf0\x9f\x98\x80", " ",    "{",
            "\t", "/",  "u0041", "data:", "[DONE]",       "\"content\":\"",   "\x01", "\xc3\xa9"};
        std::string out;
        for (std::uint64_t k = rng.below(max + 1); k > 0; --k)
            out += kWords[rng.below(kWords.size())];
        return out;
    }
    std::string some_text(std::size_t max = 8) { return "x" + text(max); }

    Json json(int depth = 2) {
        switch (rng.below(depth > 0 ? 7 : 5)) {
            case 0:
                return {};
            case 1:
                return rng.chance(0.5);
            case 2:
                return static_cast<std::int64_t>(rng.next()) >> rng.below(64);
            case 3:
                return rng.uniform() * 1e6 - 5e5;
            case 4:
                return text();
            case 5: {
                Json::Array array;
                for (std::uint64_t k = rng.below(4); k > 0; --k) array.push_back(json(depth - 1));
                return array;
            }
            default:
                return object(depth);
        }
    }
    Json object(int depth = 2) {
        Json::Object object;
        for (std::uint64_t k = rng.below(4); k > 0; --k)
            object.emplace_back(some_text() + std::to_string(k), json(depth - 1));
        return object;
    }

    model::Request request() {
        switch (rng.below(4)) {
            case 0:
                return completion();
            case 1:
                return embeddings();
            default:
                return chat();
        }
    }

    std::vector<model::Event> answer(bool logprobs, bool chat);

    Prng rng;

  private:
    template <class T>
    void maybe(std::optional<T>& field, T value) {
        if (rng.chance(0.3)) field = value;
    }

    void common(model::Request& r) {
        r.model = some_text();
        model::SamplingParams& s = r.sampling;
        maybe(s.temperature, rng.uniform() * 2);
        maybe(s.top_p, 1 - rng.uniform());
        maybe(s.top_k, static_cast<std::int32_t>(1 + rng.below((1u << 31) - 2)));
        maybe(s.min_p, rng.uniform());
        maybe(s.frequency_penalty, rng.uniform() * 4 - 2);
        maybe(s.presence_penalty, 2.0);
        maybe(s.repetition_penalty, rng.uniform() + 0.001);
        maybe(s.seed, rng.next());
        for (std::uint64_t k = rng.below(3); k > 0; --k) {
            s.logit_bias.emplace_back(static_cast<TokenId>(s.logit_bias.size() * 7 + rng.below(7)),
                                      static_cast<float>(rng.uniform() * 200 - 100));
        }
        maybe(r.max_output_tokens, static_cast<TokenCount>(1 + rng.below(1u << 20)));
        r.n = static_cast<std::uint32_t>(1 + rng.below(16));
        for (std::uint64_t k = rng.below(4); k > 0; --k) r.stop.push_back(some_text());
        r.stop_token_ids = ids(rng.below(3));
        r.ignore_eos = rng.chance(0.2);
        r.logprobs = rng.chance(0.3);
        if (r.logprobs) r.top_logprobs = static_cast<std::uint32_t>(rng.below(21));
        r.stream = rng.chance(0.5);
        r.include_usage = r.stream;  // write_request always asks for it
        if (rng.chance(0.3)) r.user = some_text();
        if (rng.chance(0.3)) r.affinity_key = some_text();
        if (rng.chance(0.3)) r.cache_salt = some_text();
        maybe(r.priority, static_cast<std::int64_t>(rng.next()));
        r.format = format();
    }

    std::vector<TokenId> ids(std::uint64_t count) {
        std::vector<TokenId> out;
        for (; count > 0; --count) out.push_back(static_cast<TokenId>(rng.below(1u << 31)));
        return out;
    }

    model::OutputFormat format() {
        model::OutputFormat f;
        using Kind = model::OutputFormat::Kind;
        switch (rng.below(8)) {
            case 0:
                f.kind = Kind::kJsonObject;
                break;
            case 1:
                f.kind = Kind::kJsonSchema;
                f.schema = object();
                if (rng.chance(0.5)) f.name = some_text();
                f.strict = rng.chance(0.5);
                break;
            case 2:
                f.kind = Kind::kRegex;
                f.source = some_text();
                break;
            case 3:
                f.kind = Kind::kGrammar;
                f.source = some_text();
                f.syntax = rng.chance(0.5) ? "gbnf" : "ebnf";
                break;
            default:
                break;
        }
        return f;
    }

    model::Message message() {
        model::Message m;
        m.role = static_cast<model::Role>(rng.below(5));
        for (std::uint64_t k = rng.below(4); k > 0; --k) {
            switch (rng.below(4)) {
                case 0:
                    m.parts.emplace_back(model::RefusalPart{text()});
                    break;
                case 1: {
                    model::ImagePart image;
                    if (rng.chance(0.5)) {
                        image.url = "https://" + text();
                    } else {
                        image.media_type = "image/png";
                        image.bytes = some_text();
                    }
                    if (rng.chance(0.5)) image.detail = "low";
                    m.parts.emplace_back(std::move(image));
                    break;
                }
                default:
                    m.parts.emplace_back(model::TextPart{text()});
            }
        }
        if (rng.chance(0.2)) m.name = some_text();
        if (m.role == model::Role::kTool) m.tool_call_id = some_text();
        if (m.role == model::Role::kAssistant) {
            if (rng.chance(0.3)) m.reasoning = some_text();
            for (std::uint64_t k = rng.below(3); k > 0; --k) {
                m.tool_calls.push_back({.id = rng.chance(0.9) ? some_text() : "",
                                        .name = some_text(),
                                        .arguments = text()});
                m.tool_calls.back().custom = rng.chance(0.2);
            }
        }
        return m;
    }

    model::Request chat() {
        model::Request r;
        common(r);
        for (std::uint64_t k = 1 + rng.below(4); k > 0; --k) r.messages.push_back(message());
        for (std::uint64_t k = rng.below(3); k > 0; --k) {
            model::Tool tool;
            tool.name = some_text() + std::to_string(k);
            if (rng.chance(0.5)) tool.description = some_text();
            tool.custom = rng.chance(0.3);
            if (tool.custom) {
                if (rng.chance(0.5)) tool.format = object();
            } else {
                if (rng.chance(0.8)) tool.parameters = object();
                tool.strict = rng.chance(0.3);
            }
            r.tools.push_back(std::move(tool));
        }
        using Kind = model::ToolChoice::Kind;
        if (!r.tools.empty()) {
            r.tool_choice.kind = static_cast<Kind>(rng.below(4));
            if (r.tool_choice.kind == Kind::kNamed)
                r.tool_choice.name = r.tools[0].name;
            else if (rng.chance(0.3))
                r.tool_choice.allowed = {r.tools.back().name};
        }
        r.parallel_tool_calls = rng.chance(0.8);
        if (rng.chance(0.3)) r.reasoning_effort = "high";
        if (rng.chance(0.3)) r.template_args = object();
        if (rng.chance(0.3)) r.metadata = object();
        r.add_generation_prompt = rng.chance(0.9);
        return r;
    }

    void prompts(model::Request& r, bool empty_allowed) {
        for (std::uint64_t k = 1 + rng.below(3); k > 0; --k) {
            if (rng.chance(0.5))
                r.prompts.emplace_back(empty_allowed ? text() : some_text());
            else
                r.prompts.emplace_back(ids(1 + rng.below(4)));
        }
    }

    model::Request completion() {
        model::Request r;
        r.endpoint = model::Endpoint::kCompletions;
        common(r);
        prompts(r, true);
        if (rng.chance(0.2)) r.suffix = some_text();
        r.echo = rng.chance(0.3);
        return r;
    }

    model::Request embeddings() {
        model::Request r;
        r.endpoint = model::Endpoint::kEmbeddings;
        r.model = some_text();
        prompts(r, false);
        if (rng.chance(0.5)) r.encoding_format = rng.chance(0.5) ? "float" : "base64";
        maybe(r.dimensions, static_cast<std::uint32_t>(1 + rng.below(4096)));
        if (rng.chance(0.3)) r.user = some_text();
        return r;
    }
};

// A whole answer of up to 3 choices, their events interleaved, ended by Done or (one time in eight)
// Failed.
inline std::vector<model::Event> RandomChat::answer(bool logprobs, bool chat) {
    std::vector<model::Event> out = {model::Start{}};
    const auto choices = static_cast<std::uint32_t>(1 + rng.below(3));
    std::vector<std::uint32_t> calls(choices, 0);
    std::vector<bool> open(choices, true);
    const auto entry = [&] {
        model::TokenLogprob e{-1, -static_cast<float>(rng.uniform()), some_text(1), {}};
        for (std::uint64_t k = rng.below(3); k > 0; --k) {
            // Completions key alternatives by their text: equal ones are one.
            e.top.push_back({-1, -static_cast<float>(rng.uniform()),
                             std::to_string(k) + (rng.chance(0.2) ? "\xe4\xbd" : text(1))});
        }
        return e;
    };
    for (std::uint64_t step = rng.below(24); step > 0; --step) {
        const auto c = static_cast<std::uint32_t>(rng.below(choices));
        if (!open[c]) continue;
        switch (chat ? rng.below(5) : 4) {
            case 0:
                out.emplace_back(model::ReasoningDelta{c, some_text(), 1});
                break;
            case 1: {  // a call whole: fragments follow each other
                const bool custom = rng.chance(0.2);
                const std::uint32_t index = calls[c]++;
                const std::string id = "call_" + std::to_string(c) + "_" + std::to_string(index);
                out.emplace_back(model::ToolCallDelta{.choice = c,
                                                      .index = index,
                                                      .id = id,
                                                      .name = some_text(),
                                                      .arguments = text(),
                                                      .custom = custom});
                for (std::uint64_t k = 1 + rng.below(3); k > 0; --k) {
                    out.emplace_back(model::ToolCallDelta{
                        .choice = c, .index = index, .arguments = some_text(), .custom = custom});
                }
                break;
            }
            default: {
                model::TextDelta delta{
                    .choice = c, .text = some_text(), .logprobs = {}, .tokens = 1};
                for (std::uint64_t k = logprobs ? rng.below(3) : 0; k > 0; --k)
                    delta.logprobs.push_back(entry());
                delta.refusal = chat && rng.chance(0.15);
                out.emplace_back(std::move(delta));
            }
        }
    }
    if (rng.chance(0.125)) {
        out.emplace_back(model::Failed{{Code::kWorkerLost, some_text(), ""}});
        return out;
    }
    for (std::uint32_t c = 0; c < choices; ++c) {
        out.emplace_back(model::ChoiceEnd{c, static_cast<model::FinishReason>(rng.below(4)), {}});
    }
    const auto count = [&] { return static_cast<TokenCount>(rng.below(1000)); };
    const TokenCount prompt = count();
    out.emplace_back(model::Done{{prompt, std::min(prompt, count()), count(), count()}});
    return out;
}

}  // namespace nereid::dialect::chat
