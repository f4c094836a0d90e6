// The composite fields of a Messages request. Internal to dialect/messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "dialect/seal.h"
#include "model/request.h"

namespace nereid::dialect::messages {

// A string or a list of text blocks. Claude Code's billing header, which differs between sessions
// and means nothing to a model, is left out (A75); without any text the message has no parts.
Result<model::Message> parse_system(const Json& value, const std::string& path,
                                    std::vector<std::string>& ignored);

// Appends to request.messages. One message of the caller's may become several: each tool result is
// a message of its own. System messages keep their place, so that a prompt only grows (A73, A74).
Result<void> parse_messages(const Json& value, std::size_t max_messages, const Seal& seal,
                            model::Request& request);

// Anthropic's own server tools are dropped and noted; a tool_choice that forces one is refused.
Result<void> parse_tools(const Json& value, model::Request& request);
Result<void> parse_tool_choice(const Json& value, model::Request& request);

}  // namespace nereid::dialect::messages
