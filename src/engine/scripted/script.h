// Script: what the scripted engine answers, as a plain struct or read from TOML. Pure.
//
//   model = "scripted"            context = 8192        parallel = 64      max_queued = 256
//   ttft_ms = 20                  itl_ms = 5            # defaults of the rules
//   images = true                 # takes images; {images} in a rule's text is what it was given
//   [[rule]]                      # the first whose `contains` is part of the prompt's bytes
//   answers; the last resort is contains = "weather"          # a rule without it, or else "Lorem
//   ipsum" for as long as max_tokens asks text = "It rains."            # one token per byte repeat
//   = 3                    # the text that many times; 0 = until max_tokens ttft_ms = 100 itl_ms =
//   10 refuse = "overloaded"         # answer with this error code instead (base/result.h) fail_at
//   = 5                   # after 5 tokens the request ends with kInternal stall_at = 5 # after 5
//   tokens nothing comes any more die_at = 5                    # after 5 tokens step() returns an
//   error: the engine is broken
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace nereid::engine::scripted {

struct Rule {
    std::string contains;  // empty: every prompt
    std::string text;
    std::uint32_t repeat = 1;  // 0 = without end
    Duration ttft{0};
    Duration itl{0};
    std::optional<Code> refuse;
    std::optional<std::uint32_t> fail_at;
    std::optional<std::uint32_t> stall_at;
    std::optional<std::uint32_t> die_at;
};

struct Script {
    std::string model_id = "scripted";
    TokenCount context_tokens = 8192;
    std::uint32_t parallel = 64;
    std::uint32_t max_queued = 256;
    bool images = false;
    Duration ttft{0};  // of the last resort
    Duration itl{0};
    std::vector<Rule> rules;
};

// kConfig with `name`, the line and the key at fault. Unknown keys are an error.
Result<Script> parse_script(std::string_view toml, std::string_view name);
// Reads the file. kConfig when it cannot be read.
Result<Script> load_script(const std::string& path);

}  // namespace nereid::engine::scripted
