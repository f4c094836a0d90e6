// The text side of the scripted engine: one token per byte, and a template that writes messages,
// tools and calls plainly, so that a rule's `contains` can look for them. A model of the Hermes
// family: a rule may answer `<tool_call>{"name":...,"arguments":{...}}</tool_call>` and
// `<think>...</think>`.
//
//   <|system|>            one per message: its role, its text, then its calls
//   You are helpful.
//   <|tools|>             after the messages, one line per tool: its name
//   <|assistant|>         where generation begins
//
// Images are shown as [image N bytes] or [image URL].
#pragma once

#include "engine/scripted/script.h"
#include "text/tokenizer.h"

namespace nereid::engine::scripted {

text::TextModel scripted_text(const Script& script);

}  // namespace nereid::engine::scripted
