#include "gateway/token_plan.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/hash.h"
#include "model/attachments.h"
#include "text/grammar.h"
#include "text/parser.h"

namespace nereid::gateway {
namespace {

using model::Request;

std::unexpected<Error> lacking(std::string_view field) {
    return err(Code::kUnsupported, fmt::format("This model does not support `{}`.", field),
               std::string(field));
}

Result<void> check_images(const Request& r, const model::EngineInfo& info) {
    if (info.images) return {};
    const auto images = model::images_of(r);
    if (images.empty()) return {};
    // As the errors of other attachments; Messages' have no field for the place.
    const std::string& path = images[0]->path;
    const bool in_text = r.endpoint == model::Endpoint::kMessages;
    return err(Code::kUnsupported,
               (in_text ? path + ": " : std::string()) + "This model does not take images.", path);
}

Result<void> check_sampling(const Request& r, const model::EngineInfo& info) {
    const auto& s = r.sampling;
    if (!info.penalties) {
        if (s.frequency_penalty.value_or(0) != 0) return lacking("frequency_penalty");
        if (s.presence_penalty.value_or(0) != 0) return lacking("presence_penalty");
        if (s.repetition_penalty.value_or(1) != 1) return lacking("repetition_penalty");
    }
    if (s.seed && !info.seeds) return lacking("seed");
    if (!s.logit_bias.empty() && !info.logit_bias) return lacking("logit_bias");
    for (const auto& [id, bias] : s.logit_bias) {
        if (id >= 0 && static_cast<std::uint32_t>(id) < info.vocab_size) continue;
        return err(
            Code::kInvalidArgument,
            fmt::format("Token id {} is not in the model's vocabulary of {}.", id, info.vocab_size),
            "logit_bias");
    }
    return {};
}

Result<void> check_output(const Request& r, const model::EngineInfo& info) {
    if (r.logprobs) {
        if (!info.logprobs) return lacking("logprobs");
        if (r.top_logprobs > info.max_top_logprobs) {
            return err(Code::kInvalidArgument,
                       fmt::format("This model gives at most {} top_logprobs, {} were asked for.",
                                   info.max_top_logprobs, r.top_logprobs),
                       "top_logprobs");
        }
        if (r.echo)
            return err(Code::kUnsupported,
                       "`echo` together with `logprobs` is not supported by this model.", "echo");
    }
    if (!r.suffix.empty()) return lacking("suffix");
    if (r.max_output_tokens && *r.max_output_tokens == 0)
        return err(Code::kInvalidArgument, "`max_tokens` must be at least 1.", "max_tokens");
    return {};
}

Result<void> check_tools(Request& r, const PlanInput& in) {
    using Kind = model::ToolChoice::Kind;
    if (r.tools.empty()) return {};
    if (r.tool_choice.kind == Kind::kNone) {
        r.tools.clear();
        return {};
    }
    if (in.text.chat_template && !in.text.chat_template->supports_tools()) {
        return err(Code::kUnsupported,
                   "This model's chat template has no place for tools; leave out `tools` or set "
                   "`tool_choice` to \"none\".",
                   "tools");
    }
    if (r.tool_choice.kind != Kind::kAuto && !text::can_force_calls(in.family, in.info.grammars)) {
        return err(
            Code::kUnsupported,
            "This model cannot be made to call a tool; `tool_choice` may be \"auto\" or \"none\".",
            "tool_choice");
    }
    return {};
}

Result<void> check_embeddings(const Request& r, const model::EngineInfo& info) {
    if (!info.embeddings)
        return err(Code::kUnsupported, "This model does not give embeddings.", "model");
    if (r.dimensions && *r.dimensions != info.embedding_width) {
        return err(
            Code::kUnsupported,
            fmt::format(
                "This model's embeddings have {} dimensions; `dimensions` cannot change that.",
                info.embedding_width),
            "dimensions");
    }
    return {};
}

Result<std::vector<TokenId>> checked_ids(const std::vector<TokenId>& ids, std::uint32_t vocab,
                                         std::string_view field) {
    for (const TokenId id : ids) {
        if (id >= 0 && static_cast<std::uint32_t>(id) < vocab) continue;
        return err(Code::kInvalidArgument,
                   fmt::format("Token id {} is not in the model's vocabulary of {}.", id, vocab),
                   std::string(field));
    }
    return ids;
}

struct Prompt {
    std::vector<TokenId> tokens;
    std::string text;           // with echo
    bool in_reasoning = false;  // chat
    bool in_calls = false;      // chat
};

Result<std::vector<Prompt>> render_chat(const Request& r, const text::TextModel& text,
                                        text::Family family) {
    if (!text.chat_template)
        return err(Code::kUnsupported, "This model has no chat template; use /v1/completions.",
                   "messages");
    TRY(text::RenderedPrompt rendered, text.chat_template->render(r));
    std::vector<Prompt> out(1);
    out[0].tokens = std::move(rendered.tokens);
    out[0].in_reasoning = text::opens_reasoning(family, rendered.text);
    out[0].in_calls = !r.tools.empty() && text::opens_calls(family, rendered.text);
    return out;
}

// Where the turns of a chat begin, each with a user's message.
std::vector<std::size_t> turns_of(const std::vector<model::Message>& messages) {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < messages.size(); ++i) {
        if (messages[i].role == model::Role::kUser) out.push_back(i);
    }
    return out;
}

// What is left when everything before `begin` goes but the instructions.
std::vector<model::Message> messages_from(const std::vector<model::Message>& messages,
                                          std::size_t begin) {
    std::vector<model::Message> out;
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const bool instructs =
            messages[i].role == model::Role::kSystem || messages[i].role == model::Role::kDeveloper;
        if (i >= begin || instructs) out.push_back(messages[i]);
    }
    return out;
}

// drop_oldest_turns. `r` and `prompts` stay as they are where nothing helps: the caller reports
// that.
Result<std::uint32_t> drop_turns(Request& r, const PlanInput& in, std::vector<Prompt>& prompts) {
    const TokenCount context = context_of(in.info, in.context_limit);
    const TokenCount wanted = r.max_output_tokens.value_or(context / kFreePart);
    const auto fits = [&](const std::vector<Prompt>& p) {
        return p[0].tokens.size() + wanted <= context;
    };
    if (fits(prompts)) return 0;
    const std::vector<std::size_t> turns = turns_of(r.messages);
    std::vector<model::Message> all = std::move(r.messages);
    std::vector<model::Message> best;
    // The fewest turns in [low, high) whose loss makes it fit, if any do.
    std::size_t low = 1;
    std::size_t high = turns.size();
    while (low < high) {
        // The most first: often nothing helps, or the last turn is all there is.
        const std::size_t lost = best.empty() ? high - 1 : low + (high - low) / 2;
        r.messages = messages_from(all, turns[lost]);
        auto rendered = render_chat(r, in.text, in.family);
        if (!rendered.ok()) {
            r.messages = std::move(all);
            return std::move(rendered.error());
        }
        if (fits(*rendered)) {
            prompts = std::move(*rendered);
            best = std::move(r.messages);
            high = lost;
        } else if (best.empty()) {
            break;
        } else {
            low = lost + 1;
        }
    }
    const std::size_t before = all.size();
    r.messages = best.empty() ? std::move(all) : std::move(best);
    return static_cast<std::uint32_t>(before - r.messages.size());
}

Result<std::vector<Prompt>> encode_prompts(const Request& r, const PlanInput& in) {
    const bool embed = r.endpoint == model::Endpoint::kEmbeddings;
    const char* field = embed ? "input" : "prompt";
    const text::Tokenizer& tokenizer = *in.text.tokenizer;
    std::vector<Prompt> out;
    for (const auto& prompt : r.prompts) {
        Prompt p;
        if (const auto* text = std::get_if<std::string>(&prompt)) {
            p.tokens = encode_prompt(tokenizer, *text, tokenizer.adds_bos());
            if (r.echo) p.text = *text;
        } else {
            TRY(p.tokens,
                checked_ids(std::get<std::vector<TokenId>>(prompt), in.info.vocab_size, field));
            if (r.echo) {
                for (const TokenId id : p.tokens)
                    p.text += tokenizer.piece(id, text::Special::kParse);
            }
        }
        out.push_back(std::move(p));
    }
    if (out.empty())
        return err(Code::kInvalidArgument, fmt::format("`{}` must not be empty.", field), field);
    return out;
}

const char* prompt_field(const Request& r) {
    switch (r.endpoint) {
        case model::Endpoint::kResponses:
            return "input";
        case model::Endpoint::kCompletions:
            return "prompt";
        case model::Endpoint::kEmbeddings:
            return "input";
        default:
            return "messages";
    }
}

// The words are OpenAI's, or Anthropic's: clients recognise an overflow by them (A61).
Result<TokenCount> room_for_output(const Request& r, std::size_t prompt, TokenCount context) {
    const char* field = prompt_field(r);
    const bool embed = r.endpoint == model::Endpoint::kEmbeddings;
    if (prompt == 0) return err(Code::kInvalidArgument, "The prompt has no tokens.", field);
    if (prompt >= context + (embed ? 1u : 0u)) {
        if (r.endpoint == model::Endpoint::kMessages) {
            return err(Code::kContextLength,
                       fmt::format("prompt is too long: {} tokens > {} maximum", prompt,
                                   // Of the context one is the answer's.
                                   prompt > context ? context : context - 1),
                       field);
        }
        return err(Code::kContextLength,
                   fmt::format("This model's maximum context length is {} tokens. However, your {} "
                               "resulted in {} tokens. Please reduce the length of the {}.",
                               context, field, prompt, field),
                   field);
    }
    const auto room = context - static_cast<TokenCount>(prompt);
    if (!r.max_output_tokens || embed) return room;
    // Its max_tokens is mandatory, so clients name the most they can think of (A61).
    if (r.endpoint == model::Endpoint::kMessages) return std::min(*r.max_output_tokens, room);
    if (*r.max_output_tokens > room) {
        return err(Code::kContextLength,
                   fmt::format("This model's maximum context length is {} tokens. However, you "
                               "requested {} tokens ({} in the {}, {} in the completion). "
                               "Please reduce the length of the {} or completion.",
                               context, prompt + *r.max_output_tokens, prompt, field,
                               *r.max_output_tokens, field),
                   field);
    }
    return *r.max_output_tokens;
}

// What the answer must follow. A strict tool that may be called is held to its schema where the
// engine can do that; elsewhere it is a tool like any other.
Result<text::Constraint> plan_constraint(const Request& r, const PlanInput& in,
                                         const Prompt& prompt) {
    auto made =
        text::constrain(r, {.family = in.family,
                            .tokenizer = in.text.tokenizer.get(),
                            .in_reasoning = prompt.in_reasoning,
                            .chat_template = in.text.chat_template
                                                 ? std::string_view(in.text.chat_template->source())
                                                 : std::string_view{},
                            .grammars = in.info.grammars,
                            .in_calls = prompt.in_calls});
    const bool optional = r.format.kind == model::OutputFormat::Kind::kText &&
                          r.tool_choice.kind == model::ToolChoice::Kind::kAuto;
    if (!made.ok() && optional && made.code() == Code::kUnsupported) return text::Constraint{};
    return made;
}

// What all choices share; prompt, seed and length are set per choice.
Result<model::AddRequest> common_add(const Request& r, const PlanInput& in) {
    model::AddRequest add;
    add.sampling = r.sampling;
    TRY(add.stop_ids, checked_ids(r.stop_token_ids, in.info.vocab_size, "stop_token_ids"));
    add.ignore_eos = r.ignore_eos;
    add.logprobs = r.logprobs;
    add.top_logprobs = r.top_logprobs;
    add.kv_namespace = in.kv_namespace;
    if (r.endpoint == model::Endpoint::kEmbeddings) {
        add.mode = model::AddMode::kEmbed;
        return add;
    }
    return add;
}

Result<void> check(Request& r, const PlanInput& in) {
    if (r.endpoint == model::Endpoint::kEmbeddings) return check_embeddings(r, in.info);
    TRY_VOID(check_sampling(r, in.info));
    TRY_VOID(check_output(r, in.info));
    return check_tools(r, in);
}

}  // namespace

TokenCount context_of(const model::EngineInfo& info, TokenCount context_limit) {
    TokenCount context = info.context_tokens;
    if (info.kv_capacity_tokens != 0) context = std::min(context, info.kv_capacity_tokens);
    if (context_limit != 0) context = std::min(context, context_limit);
    return context;
}

std::vector<TokenId> encode_prompt(const text::Tokenizer& tokenizer, std::string_view text,
                                   bool add_bos) {
    std::vector<TokenId> out;
    if (add_bos && tokenizer.bos() >= 0) out.push_back(tokenizer.bos());
    tokenizer.encode(text, text::Special::kParse, out);
    return out;
}

Result<TokenCount> plan_count(model::Request request, const text::TextModel& text,
                              const model::EngineInfo& info) {
    const model::Namespace none{};
    const text::Family family =
        text.chat_template ? text.chat_template->family() : text::Family::kGeneric;
    const PlanInput in{.text = text, .info = info, .kv_namespace = none, .family = family};
    TRY_VOID(check(request, in));
    TRY_VOID(check_images(request, info));
    TRY(std::vector<Prompt> prompts, render_chat(request, text, family));
    if (request.drop_oldest_turns) TRY_VOID(drop_turns(request, in, prompts));
    return static_cast<TokenCount>(prompts[0].tokens.size());
}

Result<TokenPlan> plan_tokens(model::Request& request, const PlanInput& in) {
    TRY_VOID(check(request, in));
    TRY(model::AddRequest common, common_add(request, in));
    const bool chat = request.endpoint != model::Endpoint::kCompletions &&
                      request.endpoint != model::Endpoint::kEmbeddings;
    TRY_VOID(check_images(request, in.info));
    TRY(std::vector<Prompt> prompts,
        chat ? render_chat(request, in.text, in.family) : encode_prompts(request, in));
    TokenPlan plan;
    if (chat && request.drop_oldest_turns) {
        TRY(plan.dropped_messages, drop_turns(request, in, prompts));
    }
    for (const auto* image : model::images_of(request)) common.image_bytes.push_back(image->bytes);
    // Where in the prompt they stand is the engine's to know: all of its blocks are named by them.
    for (const std::string& bytes : common.image_bytes) {
        common.images.push_back(
            {static_cast<TokenCount>(common.images.size()), sha256(as_bytes(bytes))});
    }
    plan.embed = common.mode == model::AddMode::kEmbed;
    plan.parse = chat;
    plan.in_reasoning = chat && prompts[0].in_reasoning;
    plan.in_calls = chat && prompts[0].in_calls;
    if (!plan.embed) {
        TRY(text::Constraint constraint, plan_constraint(request, in, prompts[0]));
        common.grammar_kind = constraint.kind;
        common.grammar = std::move(constraint.source);
        common.grammar_trigger = std::move(constraint.trigger);
        plan.grammar_param = std::move(constraint.param);
        plan.calls_only = constraint.calls_only;
        plan.named_call = request.endpoint == model::Endpoint::kChat &&
                          request.tool_choice.kind == model::ToolChoice::Kind::kNamed;
    }
    plan.n = plan.embed ? 1 : std::max<std::uint32_t>(request.n, 1);
    const TokenCount context = context_of(in.info, in.context_limit);
    for (Prompt& prompt : prompts) {
        TRY(const TokenCount room, room_for_output(request, prompt.tokens.size(), context));
        plan.prompt_tokens.push_back(static_cast<TokenCount>(prompt.tokens.size()));
        plan.to_context_end = !request.max_output_tokens || *request.max_output_tokens > room;
        if (request.echo) plan.echo.push_back(std::move(prompt.text));
        for (std::uint32_t i = 0; i < plan.n; ++i) {
            model::AddRequest add = common;
            add.prompt = i + 1 == plan.n ? std::move(prompt.tokens) : prompt.tokens;
            add.max_tokens = plan.embed ? 0 : room;
            // A named seed gives each prompt what it would get alone; without one, equal prompts
            // differ too.
            if (in.info.seeds)
                add.sampling.seed =
                    request.sampling.seed ? *request.sampling.seed + i : in.seed + plan.adds.size();
            plan.adds.push_back(std::move(add));
        }
    }
    return plan;
}

}  // namespace nereid::gateway
