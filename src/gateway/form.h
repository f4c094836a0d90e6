// Form: what a dialect makes of one request's answer, as the gateway holds it. Each generating
// endpoint has one; the request paths (token_request, text engines) know nothing else of a dialect.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "dialect/answer.h"
#include "io/task.h"

namespace nereid::gateway {

// What is known once the request is planned and before it runs.
struct RunFacts {
    std::string system_fingerprint;
    std::uint32_t choices = 1;
    std::vector<std::string> echo;  // completions: the text of each prompt
    TokenCount prompt_tokens = 0;   // 0 = not known (text engines)
};

class Form {
  public:
    virtual ~Form() = default;
    // One of the two, once.
    virtual std::unique_ptr<dialect::Encoder> encoder(RunFacts facts) = 0;
    virtual std::unique_ptr<dialect::Whole> whole(RunFacts facts) = 0;
    // Whether before_end() has something to do.
    virtual bool keeps_state() const { return false; }
    // Awaited after the last event and before the last bytes leave: whoever has read the end of an
    // answer may ask for what was stored of it.
    virtual io::Task<void> before_end() { co_return; }
};

}  // namespace nereid::gateway
