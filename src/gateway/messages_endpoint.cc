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

io::Task<void> count(Exchange& x, ShardTools tools, ShardModel& model, model::Request request) {
    auto tokens = co_await count_prompt(x, tools, model, std::move(request));
    if (!tokens.ok()) co_return co_await x.fail(std::move(tokens.error()));
    co_await x.send_json(200, fmt::format(R"({{"input_tokens":{}}})", *tokens));
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
    auto create = parse(x, x.seal());
    if (!create.ok()) return refuse(x, std::move(create.error()));
    ShardModel* m = tools.models.find(create->request.model);
    if (m == nullptr) return x.fail(no_such_model(create->request.model));
    x.record.model = create->request.model;
    return run_until_gone(x, count(x, tools, *m, std::move(create->request)));
}

}  // namespace nereid::gateway
