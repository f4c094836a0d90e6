// `nereid chat`: talk to a running service (or any OpenAI-compatible server) from a terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/config.h"

namespace nereid::cli {

struct ChatOptions {
    std::string url = "http://127.0.0.1:8080";
    std::string model = "default";
    std::string system;
    std::int64_t max_tokens = 0;
    double temperature = -1;
    Duration timeout = 600s;  // between two pieces of an answer
    void bind(io::ConfigBinder& b);
};

// Blocks until the user leaves or standard input ends; returns an exit code. Answers go to standard
// output, the rest to standard error. With standard input from a pipe or a file there are no
// prompts, and the first request that fails ends the program with kFailed. `api_key` is sent as
// Bearer when it is not empty.
int chat(std::span<const std::string> args, const std::string& api_key);

}  // namespace nereid::cli
