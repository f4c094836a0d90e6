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
#include "store/records.h"

namespace nereid::gateway {

struct BatchLine {
    std::string custom_id;
    std::string path;
    std::string body;
};
struct BatchResult;
using OnLine = std::function<void(std::size_t index, const BatchResult& result)>;
struct BatchResult {
    int status = 0;  // 0 = not run: the batch was cancelled
    std::string request_id;
    std::string body;
};

// Results of single lines are kept as they come, so that a batch whose process dies goes on where
// it was.
store::Record line_record(const Exchange& x, const std::string& batch, std::size_t index,
                          const BatchResult& result);
// What has been kept of a batch of `count` lines; status 0 = not yet.
io::Task<std::vector<BatchResult>> kept_lines(Exchange& x, std::string batch, std::size_t count);
// Changes that remove them.
void forget_lines(const Exchange& x, const std::string& batch, std::size_t count,
                  std::vector<store::Change>& changes);

// Runs all lines but those that `done` has; `on_result` is called for each as it ends. `x` is the
// batch's own exchange. When its client "goes away" (a job that is cancelled) no further line
// begins and those that run are cut. The results are in the order of the lines.
io::Task<std::vector<BatchResult>> run_batch(Exchange& x, ShardTools tools,
                                             std::vector<BatchLine> lines,
                                             std::vector<BatchResult> done, OnLine on_result);

}  // namespace nereid::gateway
