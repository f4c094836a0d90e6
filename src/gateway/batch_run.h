// BatchRun: many requests of one caller, a few at a time, each answered as if it had come alone:
// the same checks, admission, metrics and access line. What batches of OpenAI's and Anthropic's
// kind share.
//
// A line that the gateway turns away for load is tried again; every other answer is its result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gateway/generate.h"

namespace nereid::gateway {

struct BatchLine {
    std::string custom_id;
    std::string path;
    std::string body;
};
struct BatchResult {
    int status = 0;  // 0 = not run: the batch was cancelled
    std::string request_id;
    std::string body;
};

// Runs all lines; `on_result` is called for each as it ends. `x` is the batch's own exchange. When
// its client "goes away" (a job that is cancelled) no further line begins and those that run are
// cut. The results are in the order of the lines.
io::Task<std::vector<BatchResult>> run_batch(Exchange& x, ShardTools tools,
                                             std::vector<BatchLine> lines,
                                             std::function<void(const BatchResult&)> on_result);

}  // namespace nereid::gateway
