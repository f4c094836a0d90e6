// GBNF (llama.cpp's grammars; also the EBNF that vLLM and XGrammar take) as a Lark grammar of
// llguidance. Pure.
//
// Rules that do not reach themselves become terminals, so a grammar without recursion is one
// regular expression and means exactly the same. Recursive rules become Lark rules over terminals;
// llguidance's lexer takes the longest match there, so a grammar whose meaning hangs on a shorter
// one accepts less than in llama.cpp, never more.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace nereid::text {

// kInvalidArgument with the line: not GBNF, no rule `root`, a rule without definition, more than
// 256 KiB, nested deeper than 200.
Result<std::string> lark_of_gbnf(std::string_view gbnf);

}  // namespace nereid::text
