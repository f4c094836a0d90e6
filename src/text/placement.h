// Where messages may stand. Callers put system messages anywhere and turns one after the other of
// the same role; some templates raise on that, or leave out what they did not expect. Pure.
#pragma once

#include <vector>

#include "model/request.h"

namespace nereid::text {

struct Placement {
    bool one_system = false;  // a system message is the first, or is not
    bool one_user = false;    // no two of the user's turns in a row
    bool one_call = false;    // no two calls in a turn
    bool any() const { return one_system || one_user || one_call; }
};

// The same said so that such a template shows it. System and developer messages at the beginning
// become one; a later one becomes part of the user's turn before it, or of the next one. What was
// said of a conversation stays as it is when the conversation goes on (case A73). A turn of several
// calls becomes as many, each with its results behind it.
std::vector<model::Message> placed(std::vector<model::Message> messages,
                                   const Placement& placement);

}  // namespace nereid::text
