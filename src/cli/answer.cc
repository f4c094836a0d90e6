#include "cli/answer.h"

#include <utility>
#include <vector>

#include "dialect/chat/mirror.h"

namespace nereid::cli {

namespace {

constexpr std::size_t kMaxErrorBody = 64 << 10;

}  // namespace

io::Task<Result<void>> stream_answer(io::Loop& loop, io::HttpClient& client,
                                     io::HttpClientRequest request, Duration timeout,
                                     std::function<void(std::string_view)> on_text) {
    CO_TRY(auto response, co_await client.request(request, loop.now() + timeout));
    if (response->status() != 200) {
        CO_TRY(const std::string body,
               co_await response->read_all(kMaxErrorBody, loop.now() + timeout));
        co_return dialect::chat::read_error(response->status(), body);
    }
    dialect::chat::StreamReader reader;
    std::vector<model::Event> events;
    while (!reader.ended()) {
        auto piece = co_await response->read_some(loop.now() + timeout);
        // A connection that breaks ends the stream as its end would: the reader knows whether that
        // was too early.
        if (!piece.ok() && piece.code() == Code::kDeadlineExceeded) co_return piece.error();
        events.clear();
        if (!piece.ok() || piece->empty()) {
            reader.finish(events);
        } else {
            reader.feed(*piece, events);
        }
        for (const auto& event : events) {
            if (const auto* text = std::get_if<model::TextDelta>(&event)) on_text(text->text);
            if (const auto* failed = std::get_if<model::Failed>(&event)) co_return failed->error;
        }
    }
    co_return Result<void>{};
}

}  // namespace nereid::cli
