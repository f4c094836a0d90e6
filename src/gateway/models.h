// The models of one shard: names and aliases to engines.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dialect/chat/chat.h"
#include "gateway/gateway.h"
#include "model/block_key.h"
#include "text/family.h"

namespace nereid::gateway {

// One model as a shard sees it: the table's entry and the shard's own handle. Either `worker` or
// `backend` is set.
struct ShardModel {
    const ModelEntry* entry = nullptr;
    std::unique_ptr<pools::WorkerHandle> worker;
    std::unique_ptr<pools::TextBackend> backend;
    text::Family family = text::Family::kGeneric;  // of the chat template
    std::vector<TokenId> marker_tokens;            // that its parser has to see

    // What the engine said in its last greeting. kUnavailable with the reason while there is none,
    // or when no request can be taken (given up, draining, stopped).
    Result<const model::EngineInfo*> engine() const;
    // Tokens of prompt and answer; 0 = unknown.
    TokenCount context() const;
    // What a request may ask for, for /v1/models.
    Json capabilities(const GatewayOptions& options) const;
    // Why requests would not be answered now; empty = ready.
    std::string not_ready() const;
    // The namespace of KV blocks for one tenant; of the engine's present incarnation.
    model::Namespace kv_namespace(std::string_view tenant, std::string_view salt,
                                  const model::EngineInfo& info);

  private:
    std::optional<std::uint64_t> parts_of_;  // restarts() of the incarnation that parts_ are of
    model::NamespaceParts parts_;  // kept: the layout's fingerprint is a hash over all its slices
};

class ShardModels {
  public:
    ShardModels(const std::vector<ModelEntry>& entries, const ShardContext& context);
    // By id or alias; null = no such model.
    ShardModel* find(std::string_view name);
    // The only model, for requests that may leave the name out; null when there are several.
    ShardModel* only() { return models_.size() == 1 ? &models_[0] : nullptr; }
    const std::vector<ShardModel>& all() const { return models_; }
    // Ids and aliases, in the order of the configuration.
    std::vector<dialect::chat::ModelCard> cards(const GatewayOptions& options) const;

  private:
    std::vector<ShardModel> models_;
    std::map<std::string, std::size_t, std::less<>> by_name_;
};

// kNotFound in OpenAI's words, param "model".
Error no_such_model(std::string_view name);

}  // namespace nereid::gateway
