// Conversation: what `nereid chat` remembers and what a typed line means. Pure; the terminal is in
// chat.cc.
#pragma once

#include <string>
#include <string_view>

#include "model/request.h"

namespace nereid::cli {

class Conversation {
  public:
    struct Settings {
        std::string model = "default";
        std::string system;           // empty = none
        std::int64_t max_tokens = 0;  // 0 = as much as the context leaves
        double temperature = -1;      // < 0 = the server's default
    };
    explicit Conversation(Settings settings);

    struct Step {
        enum class Kind { kNothing, kAsk, kSay, kQuit } kind = Kind::kNothing;
        std::string text = {};  // kSay: for the user, a line without its end
    };
    // A line as typed, without its end. "/reset", "/system TEXT", "/help", "/quit" are commands;
    // "//x" asks "/x". After kAsk, request() is to be sent and answered() or withdrawn() to be
    // called.
    Step line(std::string_view typed);
    model::Request request() const;
    // The answer's text, also when it was stopped half-way: the model then knows what it had said.
    void answered(std::string text);
    // The question got no answer: it is forgotten, so that it can be asked again.
    void withdrawn();

    std::size_t messages() const { return messages_.size(); }

  private:
    Settings settings_;
    std::vector<model::Message> messages_;
};

// Text of a model made safe for a terminal: control characters other than newline and tab are
// dropped (escape sequences would let the model move the cursor or set the clipboard). Works on
// pieces: every dropped one is a single character, except C1 in UTF-8 (0xC2 0x80..0x9F), whose
// first byte is held back by `held` until the next piece.
std::string printable(std::string_view piece, bool& held);

}  // namespace nereid::cli
