#include "gateway/models.h"

#include <algorithm>

#include <fmt/format.h>

#include "gateway/token_plan.h"
#include "text/grammar.h"
#include "text/parser.h"

namespace nereid::gateway {
namespace {

using pools::WorkerState;

std::string why_not(const pools::WorkerStatus& status) {
    switch (status.state) {
        case WorkerState::kReady:
            return {};
        case WorkerState::kStarting:
            return "the model is loading";
        case WorkerState::kBackoff:
            return fmt::format("the engine died and starts again in {} ms", status.retry_in / 1ms);
        case WorkerState::kFailed:
            return "the engine could not be started";
        case WorkerState::kDraining:
            return "the engine is draining";
        case WorkerState::kStopped:
            return "the engine is stopped";
    }
    return "unknown state";
}

}  // namespace

Result<const model::EngineInfo*> ShardModel::engine() const {
    const pools::WorkerStatus& status = worker->status();
    const bool may_wait = status.state == WorkerState::kReady ||
                          status.state == WorkerState::kStarting ||
                          status.state == WorkerState::kBackoff;
    if (status.info && may_wait) return &*status.info;
    return err(Code::kUnavailable,
               fmt::format("The model `{}` is not available now: {}. Please retry later.",
                           entry->id, why_not(status)),
               "model");
}

TokenCount ShardModel::context() const {
    if (worker && worker->status().info)
        return context_of(*worker->status().info, entry->context_tokens);
    return entry->context_tokens != 0 ? entry->context_tokens : entry->text.context_tokens;
}

std::string ShardModel::not_ready() const {
    return worker ? why_not(worker->status()) : std::string();
}

model::Namespace ShardModel::kv_namespace(std::string_view tenant, std::string_view salt,
                                          const model::EngineInfo& info) {
    const std::uint64_t restarts = worker->status().restarts;
    if (parts_of_ != restarts || parts_.model_digest != info.model_digest) {
        parts_of_ = restarts;
        parts_.model_digest = info.model_digest;
        parts_.layout_fingerprint = info.layout.fingerprint();
        parts_.determinism = info.deterministic;
    }
    parts_.salt = tenant;
    // A tenant's own division; no name of a tenant holds a zero byte.
    if (!salt.empty()) parts_.salt.append(1, '\0').append(salt);
    return model::make_namespace(parts_);
}

ShardModels::ShardModels(const std::vector<ModelEntry>& entries, const ShardContext& context) {
    for (const ModelEntry& entry : entries) {
        ShardModel m;
        m.entry = &entry;
        if (entry.text.chat_template) {
            m.family = entry.text.chat_template->family();
            m.marker_tokens = text::marker_tokens(m.family, *entry.text.tokenizer);
        }
        if (entry.worker)
            m.worker = entry.worker(*context.loop);
        else
            m.backend = entry.text_backend(context);
        by_name_.emplace(entry.id, models_.size());
        for (const std::string& alias : entry.aliases) by_name_.emplace(alias, models_.size());
        models_.push_back(std::move(m));
    }
}

ShardModel* ShardModels::find(std::string_view name) {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : &models_[at->second];
}

// What a request may ask of the model; what goes beyond is refused by the same names (token_plan).
Json ShardModel::capabilities(const GatewayOptions& options) const {
    Json out;
    Json kinds(Json::Array{});
    if (!worker) {
        out.set("engine", "text");  // its own server says what it can
    } else if (worker->status().info) {
        const model::EngineInfo& info = *worker->status().info;
        const auto kind = [&](model::GrammarKind k, const char* name) {
            if ((info.grammars & static_cast<std::uint8_t>(k)) != 0)
                kinds.as_array().emplace_back(name);
        };
        kind(model::GrammarKind::kJsonSchema, "json_schema");
        kind(model::GrammarKind::kRegex, "regex");
        kind(model::GrammarKind::kLark, "lark");
        kind(model::GrammarKind::kGbnf, "gbnf");
        kind(model::GrammarKind::kEbnf, "ebnf");
        const bool tools = entry->text.chat_template && entry->text.chat_template->supports_tools();
        out.set("engine", info.engine).set("chat", entry->text.chat_template != nullptr);
        out.set("tools", tools).set("tool_notation", text::name_of(family));
        out.set("forced_tool_choice", tools && text::can_force_calls(family, info.grammars));
        out.set("structured_outputs", std::move(kinds)).set("images", info.images);
        out.set("logprobs", info.logprobs).set("top_logprobs", info.max_top_logprobs);
        out.set("logit_bias", info.logit_bias).set("penalties", info.penalties);
        out.set("seed", info.seeds).set("embeddings", info.embeddings);
        out.set("replay", info.replay == model::ReplayClass::kExact ? "exact" : "bounded");
    }
    Json documents(Json::Array{Json("text")});
    if (!options.pdf_reader.empty()) documents.as_array().emplace_back("pdf");
    out.set("documents", std::move(documents));
    Json limits;
    limits.set("context_tokens", context()).set("n", options.max_n);
    limits.set("body_bytes", static_cast<std::uint64_t>(options.max_body.value));
    out.set("limits", std::move(limits));
    return out;
}

std::vector<dialect::chat::ModelCard> ShardModels::cards(const GatewayOptions& options) const {
    std::vector<dialect::chat::ModelCard> out;
    for (const ShardModel& m : models_) {
        const auto card = [&](const std::string& id) {
            out.push_back({id, m.entry->created, "nereid", m.context(), m.capabilities(options)});
        };
        card(m.entry->id);
        for (const std::string& alias : m.entry->aliases) card(alias);
    }
    return out;
}

Error no_such_model(std::string_view name) {
    // Long names come from mistakes; they are not sent back whole.
    return {Code::kNotFound,
            fmt::format("The model `{}` does not exist or you do not have access to it.",
                        name.substr(0, 200)),
            "model"};
}

}  // namespace nereid::gateway
