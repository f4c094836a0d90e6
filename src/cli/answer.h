// One question of `nereid chat` and its streamed answer, over any loop (so also in tests).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/http.h"
#include "io/loop.h"

namespace nereid::cli {

// Sends `request` and gives each piece of the answer's text to `on_text` as it arrives. Ok when the
// answer is complete. The server's own error; kUnavailable (nobody there); kWorkerLost (cut off);
// kDeadlineExceeded (silent for `timeout`). Destroying the task closes the connection, which stops
// the engine.
io::Task<Result<void>> stream_answer(io::Loop& loop, io::HttpClient& client,
                                     io::HttpClientRequest request, Duration timeout,
                                     std::function<void(std::string_view)> on_text);

}  // namespace nereid::cli
