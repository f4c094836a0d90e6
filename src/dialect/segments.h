// The shape that the Messages and Responses dialects give to one choice: segments that open, grow
// and close one after the other, where Chat lets everything grow at once.
//
// Invariants: at most one segment is open; no text or reasoning segment is empty (A11); a call
// without arguments grows by "{}" (A5, A9); what comes while the open call is not whole waits until
// it is, or the choice ends, so that nothing is lost however a server interleaves calls and text
// (A6, A10). Linear in what comes. Internal to dialect.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/event.h"

namespace nereid::dialect {

enum class SegmentKind : std::uint8_t { kReasoning, kText, kRefusal, kCall };

struct Segment {
    SegmentKind kind = SegmentKind::kText;
    std::string text;        // so far; for a call its arguments, as the model wrote them
    std::string id = {};     // kCall: the engine's; empty = it gave none
    std::string name = {};   // kCall
    std::uint32_t call = 0;  // kCall: its index
    std::vector<model::TokenLogprob> logprobs = {};  // kText, kRefusal
};

class SegmentSink {
  public:
    virtual ~SegmentSink() = default;
    virtual void opened(const Segment& segment) = 0;
    // `piece` is the end of segment.text; `logprobs` are its tokens' (text and refusal only).
    virtual void grew(const Segment& segment, std::string_view piece,
                      const std::vector<model::TokenLogprob>& logprobs) = 0;
    virtual void closed(Segment& segment) = 0;
};

class Segments {
  public:
    void on(const model::TextDelta& e, SegmentSink& sink);
    void on(const model::ReasoningDelta& e, SegmentSink& sink);
    void on(const model::ToolCallDelta& e, SegmentSink& sink);
    // The choice has ended: closes what is open, and says what waited.
    void end(SegmentSink& sink);
    bool has_calls() const { return next_call_ != 0; }
    bool has_refusal() const { return refused_; }

  private:
    struct Call {
        model::ToolCallDelta first;
        std::vector<std::string> rest;  // fragments of its arguments
    };
    using Piece = std::variant<model::TextDelta, model::ReasoningDelta, Call>;
    // Whether a document of objects and arrays has come to its end.
    class Brackets {
      public:
        void feed(std::string_view text);
        bool closed() const { return begun_ && depth_ == 0; }

      private:
        int depth_ = 0;
        bool begun_ = false;
        bool in_string_ = false;
        bool escaped_ = false;
    };

    bool half_a_call() const;  // is open
    bool must_wait() const;
    void say(const model::TextDelta& e, SegmentSink& sink);
    void say(const model::ReasoningDelta& e, SegmentSink& sink);
    void say(const Call& call, SegmentSink& sink);
    void say_first(SegmentSink& sink);
    void begin_call(const model::ToolCallDelta& e, SegmentSink& sink);
    void open(SegmentKind kind, SegmentSink& sink);
    void grow(const std::string& piece, const std::vector<model::TokenLogprob>& logprobs,
              SegmentSink& sink);
    void close(SegmentSink& sink);

    std::optional<Segment> open_;
    bool custom_ = false;          // the open call's input is no JSON
    Brackets brackets_;            // of the open call
    std::uint32_t next_call_ = 0;  // calls below it have been opened
    bool refused_ = false;
    // Of tokens whose text comes later: of text, of a refusal.
    std::array<std::vector<model::TokenLogprob>, 2> textless_;
    // For the end of the open call, in order; a waiting call with all of its arguments so far.
    std::deque<Piece> waiting_;
    std::map<std::uint32_t, std::size_t> waiting_calls_;  // where in waiting_, counted with said_
    std::size_t said_ = 0;                                // of all that has waited
};

}  // namespace nereid::dialect
