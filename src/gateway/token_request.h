// TokenRequest: one request on a token engine. Its choices are engine requests; their updates
// arrive in a bounded channel and leave as events to the Responder.
//
// Destroying it (Subtask::cancel, when the client goes away) destroys the Sessions, each of which
// aborts its request in the engine exactly once, wherever it is (A54, A55). A stop string ends one
// choice the same way (A37).
#pragma once

#include <memory>
#include <vector>

#include "gateway/models.h"
#include "gateway/responder.h"
#include "gateway/token_plan.h"
#include "io/channel.h"
#include "text/output.h"

namespace nereid::gateway {

class TokenRequest {
  public:
    // `request` must outlive this: parsers read its tools. `id` makes the ids of calls unique.
    TokenRequest(Exchange& exchange, ShardModel& model, const model::Request& request,
                 TokenPlan plan, Responder& responder, std::string id);
    ~TokenRequest();
    TokenRequest(const TokenRequest&) = delete;
    TokenRequest& operator=(const TokenRequest&) = delete;
    io::Task<void> run();

  private:
    struct Choice {
        Choice(std::shared_ptr<const text::Tokenizer> tokenizer,
               text::ChoiceOutput::Options options)
            : output(std::move(tokenizer), std::move(options)) {}
        std::unique_ptr<pools::Session> session;  // set while the engine works on it
        text::ChoiceOutput output;
        TokenCount cached = 0;
        TokenCount reasoning_tokens = 0;
        bool reasoning = false;  // what came last was reasoning
        bool ended = false;
    };
    struct Item {
        std::uint32_t choice;
        pools::Update update;
    };

    void submit_more();
    void on_update(std::uint32_t choice, pools::Update&& update);
    void take(Item& item);
    void take_finished(std::uint32_t index, const model::Finished& finished);
    void end_choice(Choice& choice);
    void count_reasoning(Choice& choice, std::size_t tokens, std::size_t first_event);
    void fail(Error error);
    void finish_if_all_ended();
    model::Usage usage() const;

    Exchange& x_;
    ShardModel& model_;
    TokenPlan plan_;
    Responder& responder_;
    io::Channel<Item> updates_;
    std::vector<Choice> choices_;
    std::vector<model::Event> events_;  // to be given to the responder
    std::size_t submitted_ = 0;
    std::size_t active_ = 0;
    std::size_t ended_ = 0;
    bool overflowed_ = false;
    std::shared_ptr<TokenRequest*> self_;  // for what is posted: dies with this
};

}  // namespace nereid::gateway
