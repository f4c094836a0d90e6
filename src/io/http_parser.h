// Inside io: the incremental parsers of one HTTP/1.1 message, over Boost.Beast's basic_parser
// (which stays in the .cc).
//
// Both are fed a view of the connection's read buffer and say how much of it they consumed; what
// they left must be given again, at the front, with more bytes behind it. The result does not
// depend on how the bytes were cut: the head is looked for first (a memchr per line) and given to
// Beast whole. Cost of a 400-byte request: about 1 µs.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "io/http.h"

namespace nereid::io {

enum class ParseState : std::uint8_t { kHead, kBody, kDone, kFailed };

// Finds the end of a message head and refuses what no head may hold. `status` != 0: refuse with it.
struct HeadScan {
    std::size_t line = 0;      // start of the line being scanned
    std::size_t searched = 0;  // no LF before it
    int status = 0;
    const char* message = "";
};
struct HeadLimits {
    std::size_t head_bytes;
    std::size_t first_line_bytes;
};
// Length of the head with its empty line, or 0 when more is needed or the scan failed.
std::size_t scan_head(HeadScan& scan, std::string_view bytes, const HeadLimits& limits);

class RequestParser {
  public:
    explicit RequestParser(const HttpLimits& limits);  // keeps a reference
    ~RequestParser();

    // Begins a message; its parts go into `into`, which must live until the next reset. Strings
    // keep their capacity.
    void reset(HttpRequest& into);
    // Returns the number of bytes consumed. kDone: the rest belongs to the next request.
    std::size_t feed(std::string_view bytes);

    ParseState state() const { return state_; }
    bool started() const {
        return started_;
    }  // a byte of this request was seen (empty lines before it do not count)
    // After kFailed.
    int error_status() const { return error_status_; }
    const std::string& error_message() const { return error_message_; }
    // After the head.
    bool keep_alive() const { return keep_alive_; }
    bool http10() const { return http10_; }
    bool wants_continue() const { return wants_continue_; }

  private:
    struct Beast;
    std::size_t feed_head(std::string_view bytes);
    std::size_t feed_body(std::string_view bytes);
    void check_head();
    void fail(int status, std::string message);

    const HttpLimits& limits_;
    std::unique_ptr<Beast> beast_;
    HttpRequest* request_ = nullptr;
    HeadScan scan_;
    ParseState state_ = ParseState::kHead;
    int error_status_ = 0;
    std::string error_message_;
    std::size_t empty_lines_ = 0;
    bool started_ = false;
    bool keep_alive_ = false;
    bool http10_ = false;
    bool wants_continue_ = false;
};

class ResponseParser {
  public:
    ResponseParser();
    ~ResponseParser();

    // `head`: the request was HEAD, so no body follows whatever the headers say.
    void reset(bool head);
    // Decoded body bytes are appended to `body`. Informational responses (1xx) are skipped.
    std::size_t feed(std::string_view bytes, std::string& body);
    // The peer has closed. kDone afterwards when the message may end so, else kFailed.
    void feed_eof();

    ParseState state() const { return state_; }
    bool started() const { return started_; }
    bool head_done() const { return head_done_; }  // also when the body fails later
    const std::string& error_message() const { return error_message_; }
    // After the head.
    int status() const { return status_; }
    Headers& headers() { return headers_; }
    bool keep_alive() const { return keep_alive_; }

  private:
    struct Beast;
    std::size_t feed_head(std::string_view bytes);
    void fail(std::string message);

    std::unique_ptr<Beast> beast_;
    Headers headers_;
    HeadScan scan_;
    ParseState state_ = ParseState::kHead;
    int status_ = 0;
    int informational_ = 0;
    std::string error_message_;
    bool started_ = false;
    bool head_done_ = false;
    bool head_ = false;
    bool keep_alive_ = false;
};

}  // namespace nereid::io
