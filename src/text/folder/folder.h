// The text side of a model from its folder as Hugging Face lays it out, for engines that are no
// llama.cpp (DeepInfer, text servers). Weights are not read; about 300 ms for a vocabulary of
// 130,000.
//
// Read: tokenizer.json (must be there); tokenizer_config.json (BOS, EOS, chat template);
// chat_template.jinja (before the one inside tokenizer_config.json); generation_config.json and
// config.json (further ends of generation, context). A folder of DeepSeek V4 or V4.1 has no
// template: its prompts are deepseek-recipe's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "text/control_tokens.h"
#include "text/tokenizer.h"

namespace nereid::text {

// Makes a chat template of its source (text/gguf/chat_template.h: make_jinja_template).
using TemplateMaker = std::function<Result<std::shared_ptr<const ChatTemplate>>(
    std::shared_ptr<const ControlTokenizer>, const std::string& source)>;

// kConfig with the file's name, what is wrong and the mend.
Result<TextModel> open_folder(const std::string& folder, const TemplateMaker& make_template);

}  // namespace nereid::text
