// Input items: checked when they come in, turned into messages when a model is to see them.
// Internal to dialect/responses.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "dialect/responses/responses.h"
#include "dialect/seal.h"

namespace nereid::dialect::responses {

// The name that engines see for a member of a namespace.
std::string flat_name(std::string_view name_space, std::string_view name);

// The arguments of a custom tool's call as a function: {"input": text}.
std::string wrapped_input(std::string_view input);

// Items to messages. Reasoning, text and calls that follow each other are one assistant message, as
// templates want them.
class MessageBuilder {
  public:
    MessageBuilder(model::Request& request, const Seal& seal) : request_(request), seal_(seal) {}
    Result<void> add(const Json& item, const std::string& path);
    // Of an earlier turn: attachments that cannot be read (any more) are notes.
    Result<void> add_earlier(const Json& item, const std::string& path) {
        required_ = false;
        auto added = add(item, path);
        required_ = true;
        return added;
    }
    void finish() { flush(); }

  private:
    Result<void> message(const Json& item, const std::string& path);
    Result<void> reasoning(const Json& item);
    Result<void> call(const Json& item, std::string_view type, const std::string& path);
    Result<void> output(const Json& item, const std::string& path);
    void flush();

    model::Request& request_;
    const Seal& seal_;
    model::Message assistant_;
    bool required_ = true;  // attachments of the item that is being added
};

}  // namespace nereid::dialect::responses
