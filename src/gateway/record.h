// RequestRecord: what one request was and how it went; the access-log line, the metrics and
// Server-Timing are read from it. Never holds text of a prompt or an answer, nor a key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "gateway/routes.h"

namespace nereid::gateway {

// Why a request ended besides a FinishReason or an Error's name.
inline constexpr std::string_view kEndClientGone = "client_gone";
inline constexpr std::string_view kEndSlowClient = "slow_client";

struct RequestRecord {
    std::string id;        // x-request-id
    std::string trace_id;  // of the caller's traceparent; empty = none
    std::string peer;
    std::string key;     // its name
    std::string model;   // as the client named it
    std::string worker;  // who computed it
    std::string end;  // "stop", "length", "tool_calls", an Error's code, kEndClientGone...; empty
                      // while it runs
    Route route = Route::kUnknown;
    int status = 0;  // 0 = no response was begun
    bool stream = false;
    bool failed = false;  // a response that had begun ended with an error
    TimePoint received{};
    TimePoint first_token{};  // 0 = none yet
    TimePoint last_token{};
    Duration render{0};  // template and tokenizer, here
    Duration queue{0};   // these four: as the engine reports them, the longest of all choices
    Duration restore{0};
    Duration prefill{0};
    Duration decode{0};
    TokenCount prompt_tokens = 0;
    TokenCount cached_tokens = 0;
    TokenCount completion_tokens = 0;
    std::uint32_t dropped_messages = 0;  // by truncation "auto"
    std::uint32_t keepalives = 0;
    std::vector<std::string> ignored_fields;
};

// One JSON object and a line break, in the form of ops/log.h. Absent: what never happened.
std::string access_line(const RequestRecord& r, TimePoint ended, WallTime wall);
// "queue;dur=1.2, prefill;dur=30.1, ..." of what is known at `now`.
std::string server_timing(const RequestRecord& r, TimePoint now);

// The client's x-request-id when it is 1..128 of A-Z a-z 0-9 . _ : - (it goes into logs and
// headers), else empty.
std::string_view sane_request_id(std::string_view offered);

}  // namespace nereid::gateway
