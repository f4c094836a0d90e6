// A model's own chat template: llama.cpp's Jinja engine, with user text kept apart from the
// template's. Internal to text/gguf.
//
// Injection safety stands on two layers, because the engine's own marking of input parts gets lost
// in some filters
// (`tojson`, `string`): (1) every input string is guarded: a noncharacter (U+FDD0) is put inside
// each control token's text that it holds, and taken out again after rendering; (2) a control token
// is recognised only where all its bytes come from parts that the engine did not mark as input. All
// text between two recognised control tokens is encoded in one piece, so a boundary between
// template and input never changes how the text falls into tokens.
//
// U+FDD0 in a caller's own text becomes U+FFFD (Unicode reserves it for internal use).
#pragma once

#include <memory>
#include <string>

#include "text/control_tokens.h"
#include "text/tokenizer.h"

namespace nereid::text {

// kConfig when the source is not a template that this engine can parse. The program is immutable
// afterwards; each render makes its own context.
Result<std::shared_ptr<const ChatTemplate>> make_jinja_template(
    std::shared_ptr<const ControlTokenizer> vocabulary, const std::string& source);

}  // namespace nereid::text
