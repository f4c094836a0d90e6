#include "gateway/messages_endpoint.h"

#include <utility>

#include <fmt/format.h>

#include "dialect/messages/messages.h"

namespace nereid::gateway {
namespace {

namespace messages = dialect::messages;

class MessagesForm final : public Form {
  public:
    MessagesForm(messages::ResponseMeta meta, dialect::Seal seal)
        : meta_(std::move(meta)), seal_(std::move(seal)) {}
    std::unique_ptr<dialect::Encoder> encoder(RunFacts facts) override {
        meta_.prompt_tokens = facts.prompt_tokens;
        return messages::make_encoder(std::move(meta_), seal_);
    }
    std::unique_ptr<dialect::Whole> whole(RunFacts) override {
        return messages::make_whole(std::move(meta_), seal_);
    }

  private:
    messages::ResponseMeta meta_;
    dialect::Seal seal_;
};

messages::ParseLimits limits_of(const Exchange& x) {
    return {.strict_unknown_fields = x.options().strict_fields};
}

Result<messages::Create> parse(Exchange& x, const dialect::Seal& seal) {
    TRY(const Json body, parse_body(x));
    return x.record.route == Route::kCountTokens ? messages::parse_count(body, seal, limits_of(x))
                                                 : messages::parse_create(body, seal, limits_of(x));
}

Result<std::string> count(Exchange& x, ShardTools tools) {
    TRY(const messages::Create create, parse(x, x.seal()));
    ShardModel* m = tools.models.find(create.request.model);
    if (m == nullptr) return no_such_model(create.request.model);
    x.record.model = create.request.model;
    TRY(const TokenCount tokens, count_prompt(*m, create.request));
    return fmt::format(R"({{"input_tokens":{}}})", tokens);
}

}  // namespace

io::Task<void> serve_messages(Exchange& x, ShardTools tools) {
    const dialect::Seal seal = x.seal();
    auto create = parse(x, seal);
    if (!create.ok()) {
        co_await refuse(x, std::move(create.error()));
        co_return;
    }
    MessagesForm form({.id = "msg_" + hex_id(tools.prng),
                       .model = create->request.model,
                       .omit_thinking = create->omit_thinking},
                      seal);
    co_await run_request(x, tools, std::move(create->request), form);
}

io::Task<void> serve_count_tokens(Exchange& x, ShardTools tools) {
    auto counted = count(x, tools);
    if (counted.ok()) return x.send_json(200, *std::move(counted));
    return x.fail(std::move(counted.error()));
}

}  // namespace nereid::gateway
