// Calls as rules of a grammar, in each family's notation. Internal to the grammars of room text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/request.h"
#include "text/grammar.h"
#include "text/lark.h"

namespace nereid::text {

// A tool as a grammar sees it.
struct CallableTool {
    const model::Tool* tool = nullptr;
    bool held = true;  // to its schema or grammar; else any arguments go
};

// Writes the rules
//   calls   one call or several (`several`)
//   more    the same, when the prompt has opened the block already
//   free    text as it comes, in which a call, once begun, is one of `calls`
// in the family's notation. kInvalidArgument for parameters that are no schema.
Result<void> write_calls(Lark& lark, const std::vector<CallableTool>& tools,
                         const ConstraintContext& context, bool several);

}  // namespace nereid::text
