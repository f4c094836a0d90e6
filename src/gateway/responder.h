// Responder: from the events of one request to its response, streamed or whole, whichever engine
// they come from; and to the record. Both request paths (token_request, text_request) end in it.
//
// An error before the headers of a stream, or in a whole answer, is a status; after them a frame
// (A26, A31).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dialect/answer.h"
#include "gateway/exchange.h"
#include "gateway/form.h"
#include "gateway/sse_writer.h"
#include "model/event.h"

namespace nereid::gateway {

class Responder {
  public:
    // `form` must outlive the responder.
    Responder(Exchange& exchange, Form& form, RunFacts facts, bool stream);

    // Headers of a stream; nothing for a whole answer. false as in on_events.
    io::Task<bool> open();
    // Whole frames of all `events` go out in one write. After Done or Failed the response is
    // complete. false: the client is gone, stop.
    io::Task<bool> on_events(std::vector<model::Event>& events);
    // Done or Failed was seen.
    bool ended() const { return ended_; }

  private:
    void note(const model::Event& event, bool& output);
    void note_all(const std::vector<model::Event>& events);
    io::Task<bool> stream(const std::vector<model::Event>& events);
    io::Task<void> send_whole();

    Exchange& x_;
    Form& form_;
    std::optional<SseWriter> sse_;
    std::unique_ptr<dialect::Encoder> encoder_;  // one of the two
    std::unique_ptr<dialect::Whole> collector_;
    std::optional<Error> failed_;
    std::string frames_;
    bool ended_ = false;
};

}  // namespace nereid::gateway
