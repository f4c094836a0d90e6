// The shape that the Messages and Responses dialects give to one choice: segments that open, grow
// and close one after the other, where Chat lets everything grow at once.
//
// Invariants: at most one segment is open; no text or reasoning segment is empty (A11); a call
// without arguments grows by "{}" (A5, A9); a fragment that comes for another call while the open
// one is no whole JSON document waits until that is closed, so that nothing is lost however an
// engine interleaves calls (A6, A10). Internal to dialect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/event.h"

namespace nereid::dialect {

enum class SegmentKind : std::uint8_t { kReasoning, kText, kCall };

struct Segment {
    SegmentKind kind = SegmentKind::kText;
    std::string text;        // so far; for a call its arguments, as the model wrote them
    std::string id = {};     // kCall: the engine's; empty = it gave none
    std::string name = {};   // kCall
    std::uint32_t call = 0;  // kCall: its index
    std::vector<model::TokenLogprob> logprobs = {};  // kText
};

class SegmentSink {
  public:
    virtual ~SegmentSink() = default;
    virtual void opened(const Segment& segment) = 0;
    // `piece` is the end of segment.text; `logprobs` are its tokens' (text only).
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

  private:
    void begin_call(const model::ToolCallDelta& e, SegmentSink& sink);
    void open(SegmentKind kind, SegmentSink& sink);
    void grow(const std::string& piece, const std::vector<model::TokenLogprob>& logprobs,
              SegmentSink& sink);
    void close(SegmentSink& sink);

    std::optional<Segment> open_;
    std::uint32_t next_call_ = 0;                // calls below it have been opened
    std::vector<model::ToolCallDelta> waiting_;  // of later calls
};

}  // namespace nereid::dialect
