// What every dialect makes of an answer's events: a stream of frames, or one body. The gateway
// holds these and does not know which dialect it speaks.
#pragma once

#include <string>

#include "base/result.h"
#include "model/event.h"

namespace nereid::dialect {

class Encoder {
  public:
    virtual ~Encoder() = default;
    // Appends whole SSE frames; the caller writes what one call appended with one write(). After
    // Done or Failed the stream is complete and later events append nothing.
    virtual void on(const model::Event& event, std::string& out) = 0;
};

class Whole {
  public:
    virtual ~Whole() = default;
    virtual void on(const model::Event& event) = 0;
    // The Failed event's error, or the response's JSON. kInternal before Done.
    virtual Result<std::string> body() const = 0;
};

}  // namespace nereid::dialect
