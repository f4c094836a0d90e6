#include "io/http_parser.h"

#include <algorithm>
#include <cstring>
#include <optional>

// Beast 1.81 asserts `n >= 5` for a last chunk that arrives byte by byte ("0\r\n" and then "\r");
// with the assertion off its code is right there, and that is how it is shipped everywhere. This is
// the only file that includes it.
#define BOOST_DISABLE_ASSERTS
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "base/check.h"
#include "io/http_wire.h"

namespace nereid::io {

namespace {

std::string body_too_large(std::size_t limit) {
    return "the body is larger than the limit of " + std::to_string(limit) + " bytes";
}

namespace http = boost::beast::http;
using boost::beast::error_code;
using View = boost::beast::string_view;

// A chunk's size line with its extensions, and the trailers, are bounded by this.
constexpr std::size_t kMaxChunkHeadBytes = 16 << 10;
constexpr std::size_t kMaxEmptyLines = 8;     // RFC 9112 §2.2 asks for at least one
constexpr std::size_t kMaxReserve = 1 << 20;  // a declared length is a promise, not yet memory
constexpr int kMaxInformational = 16;

std::string_view sv(View v) { return {v.data(), v.size()}; }

bool is_token_char(char c) {
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
    return c != 0 && std::strchr("!#$%&'*+-.^_`|~", c) != nullptr;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// False for a broken escape or one that stands for NUL.
bool percent_decode(std::string_view in, std::string& out) {
    out.clear();
    if (in.find('%') == std::string_view::npos) {
        out.append(in);
        return true;
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
        if (in[i] != '%') {
            out.push_back(in[i]);
            continue;
        }
        if (i + 2 >= in.size()) return false;
        const int high = hex_digit(in[i + 1]), low = hex_digit(in[i + 2]);
        if (high < 0 || low < 0 || high + low == 0) return false;
        out.push_back(static_cast<char>(high * 16 + low));
        i += 2;
    }
    return true;
}

// Splits a target into path and query (RFC 9112 §3.2: origin, absolute and asterisk form). False:
// malformed.
bool split_target(HttpRequest& request) {
    std::string_view rest = request.target;
    if (rest.find('#') != std::string_view::npos) return false;
    if (rest == "*") {
        request.path = "*";
        request.query.clear();
        return request.method == "OPTIONS";
    }
    if (rest.front() != '/') {
        const std::size_t scheme = rest.find("://");
        if (scheme == std::string_view::npos) return false;
        if (!iequals(rest.substr(0, scheme), "http") && !iequals(rest.substr(0, scheme), "https"))
            return false;
        rest.remove_prefix(scheme + 3);
        const std::size_t end = rest.find_first_of("/?");
        if (end == 0 || rest.empty()) return false;
        rest = end == std::string_view::npos ? std::string_view("/") : rest.substr(end);
    }
    const std::size_t mark = rest.find('?');
    request.query = mark == std::string_view::npos ? std::string_view{} : rest.substr(mark + 1);
    const std::string_view path = rest.substr(0, mark);
    return percent_decode(path.empty() ? "/" : path, request.path);
}

bool is_version(std::string_view v) {  // HTTP/d.d
    return v.size() == 8 && v.starts_with("HTTP/") && v[5] >= '0' && v[5] <= '9' && v[6] == '.' &&
           v[7] >= '0' && v[7] <= '9';
}

bool is_host_value(std::string_view v) {
    return v.find_first_of(" \t/@?#,\\") == std::string_view::npos;
}

}  // namespace

std::size_t scan_head(HeadScan& scan, std::string_view bytes, const HeadLimits& limits) {
    const auto refuse = [&](int status, const char* message) -> std::size_t {
        scan.status = status;
        scan.message = message;
        return 0;
    };
    const std::string_view window = bytes.substr(0, limits.head_bytes);
    for (;;) {
        // Empty right after searched == size: memchr is given no bytes.
        const void* hit =
            scan.searched < window.size()
                ? std::memchr(window.data() + scan.searched, '\n', window.size() - scan.searched)
                : nullptr;
        const std::size_t at =
            hit == nullptr
                ? window.size()
                : static_cast<std::size_t>(static_cast<const char*>(hit) - window.data());
        if (scan.line == 0 && at > limits.first_line_bytes)
            return refuse(414, "request line too long");
        if (hit == nullptr) {
            scan.searched = window.size();
            if (bytes.size() >= limits.head_bytes) return refuse(431, "headers too large");
            return 0;
        }
        if (at == 0 || window[at - 1] != '\r') return refuse(400, "a line ends without CR");
        if (at - 1 == scan.line && scan.line != 0) return at + 1;
        const char first = window[scan.line];
        if (scan.line != 0 && (first == ' ' || first == '\t'))
            return refuse(400, "a header is folded over lines");
        scan.line = scan.searched = at + 1;
    }
}

// ------------------------------------------------------------------ request

struct RequestParser::Beast final : http::basic_parser<true> {
    explicit Beast(RequestParser& owner) : owner_(owner) {
        eager(false);
        body_limit(owner.limits_.max_body_bytes);
        header_limit(static_cast<std::uint32_t>(std::min<std::size_t>(
            std::max(owner.limits_.max_header_bytes, kMaxChunkHeadBytes), UINT32_MAX)));
    }

    void on_request_impl(http::verb, View method, View target, int version, error_code&) override {
        owner_.request_->method = sv(method);
        owner_.request_->target = sv(target);
        owner_.http10_ = version == 10;
    }
    void on_response_impl(int, View, int, error_code&) override {}
    void on_field_impl(http::field field, View name, View value, error_code& ec) override {
        if (in_body_) return;  // trailers are read and dropped
        if (field == http::field::transfer_encoding) {
            has_encoding_ = true;
            if (!iequals(sv(value), "chunked")) encoding_unknown_ = true;
        } else if (field == http::field::host) {
            ++hosts_;
            if (!is_host_value(sv(value))) hosts_ = 2;
        } else if (field == http::field::expect) {
            if (iequals(sv(value), "100-continue"))
                expects_continue_ = true;
            else
                expect_unknown_ = true;
        } else if (field == http::field::content_length) {
            has_length_ = true;
        }
        if (owner_.request_->headers.list().size() >= owner_.limits_.max_header_count)
            ec = http::error::header_limit;
        owner_.request_->headers.add(sv(name), sv(value));
    }
    void on_header_impl(error_code&) override {}
    void on_body_init_impl(const boost::optional<std::uint64_t>& length, error_code&) override {
        if (length) owner_.request_->body.reserve(std::min<std::uint64_t>(*length, kMaxReserve));
    }
    std::size_t on_body_impl(View body, error_code&) override {
        owner_.request_->body.append(body.data(), body.size());
        return body.size();
    }
    void on_chunk_header_impl(std::uint64_t, View, error_code&) override {}
    std::size_t on_chunk_body_impl(std::uint64_t, View body, error_code&) override {
        owner_.request_->body.append(body.data(), body.size());
        return body.size();
    }
    void on_finish_impl(error_code&) override {}

    RequestParser& owner_;
    int hosts_ = 0;
    bool in_body_ = false;
    bool has_encoding_ = false, encoding_unknown_ = false, has_length_ = false;
    bool expects_continue_ = false, expect_unknown_ = false;
};

RequestParser::RequestParser(const HttpLimits& limits) : limits_(limits) {}
RequestParser::~RequestParser() = default;

void RequestParser::reset(HttpRequest& into) {
    request_ = &into;
    into.method.clear();
    into.target.clear();
    into.path.clear();
    into.query.clear();
    into.headers.clear();
    into.body.clear();
    scan_ = {};
    state_ = ParseState::kHead;
    error_status_ = 0;
    error_message_.clear();
    empty_lines_ = 0;
    started_ = keep_alive_ = http10_ = wants_continue_ = false;
}

void RequestParser::fail(int status, std::string message) {
    state_ = ParseState::kFailed;
    error_status_ = status;
    error_message_ = std::move(message);
}

std::size_t RequestParser::feed(std::string_view bytes) {
    std::size_t used = 0;
    if (state_ == ParseState::kHead) {
        while (!started_) {
            if (bytes.size() == used) return used;
            if (bytes[used] != '\r') break;
            if (bytes.size() == used + 1) return used;
            if (bytes[used + 1] != '\n' || ++empty_lines_ > kMaxEmptyLines) {
                started_ = true;
                fail(400, "no request line");
                return used;
            }
            used += 2;
        }
        started_ = true;
        used += feed_head(bytes.substr(used));
    }
    if (state_ == ParseState::kBody) used += feed_body(bytes.substr(used));
    return used;
}

std::size_t RequestParser::feed_head(std::string_view bytes) {
    // Binary garbage (TLS on a plain port) is refused at its first byte and not after the header
    // timeout.
    if (!is_token_char(bytes[0])) {
        fail(400, "no request line");
        return 0;
    }
    const std::size_t size =
        scan_head(scan_, bytes, {limits_.max_header_bytes, limits_.max_target_bytes + 64});
    if (scan_.status != 0) {
        fail(scan_.status, scan_.message);
        return 0;
    }
    if (size == 0) return 0;

    beast_ = std::make_unique<Beast>(*this);
    error_code ec;
    const std::size_t used = beast_->put({bytes.data(), size}, ec);
    if (!ec) {
        CHECK(used == size);
        check_head();
        return used;
    }
    if (ec == http::error::body_limit) {
        fail(413, body_too_large(limits_.max_body_bytes));
    } else if (ec == http::error::header_limit) {
        fail(431, "too many headers");
    } else if (ec == http::error::bad_version) {
        const std::string_view line = bytes.substr(0, bytes.find('\r'));
        const std::string_view version = line.substr(line.rfind(' ') + 1);
        const bool other = std::ranges::count(line, ' ') == 2 && is_version(version) &&
                           version != "HTTP/1.1" && version != "HTTP/1.0";
        fail(other ? 505 : 400,
             other ? "only HTTP/1.0 and HTTP/1.1 are spoken here" : "malformed request line");
    } else {
        fail(400, ec.message());
    }
    return 0;
}

void RequestParser::check_head() {
    const Beast& b = *beast_;
    const std::string& method = request_->method;
    keep_alive_ = b.keep_alive();
    if (request_->target.size() > limits_.max_target_bytes)
        return fail(414, "request target too long");
    if (b.has_encoding_ && http10_) return fail(400, "transfer-encoding in HTTP/1.0");
    if (b.has_encoding_ && b.has_length_)
        return fail(400, "both content-length and transfer-encoding");
    if (b.encoding_unknown_) return fail(501, "transfer-encoding other than chunked");
    if (b.hosts_ > 1 || (b.hosts_ == 0 && !http10_))
        return fail(400, "exactly one valid host header is needed");
    if (method == "CONNECT") return fail(501, "CONNECT is not offered");
    if (!split_target(*request_)) return fail(400, "malformed request target");
    if (b.expect_unknown_ && !http10_) return fail(417, "unknown expectation");
    // Without a length nothing tells where the body of an HTTP/1.0 request ends.
    if (http10_ && !b.has_length_ && (method == "POST" || method == "PUT" || method == "PATCH"))
        return fail(411, "content-length is needed");
    beast_->in_body_ = true;
    if (b.is_done()) {
        state_ = ParseState::kDone;
        return;
    }
    wants_continue_ = b.expects_continue_ && !http10_;
    state_ = ParseState::kBody;
}

std::size_t RequestParser::feed_body(std::string_view bytes) {
    std::size_t used = 0;
    while (used < bytes.size()) {
        error_code ec;
        const std::size_t body_before = request_->body.size();
        const std::size_t n = beast_->put({bytes.data() + used, bytes.size() - used}, ec);
        used += n;
        // A step that gave no body read a chunk's head or the trailers.
        const std::size_t head = ec == http::error::need_more ? bytes.size() - used : n;
        if (beast_->chunked() && request_->body.size() == body_before &&
            head > kMaxChunkHeadBytes) {
            fail(400, "chunk header or trailers too large");
            return used;
        }
        if (ec == http::error::need_more) return used;
        if (ec) {
            const bool large = ec == http::error::body_limit;
            fail(large ? 413 : 400, large ? body_too_large(limits_.max_body_bytes) : ec.message());
            return used;
        }
        if (beast_->is_done()) {
            state_ = ParseState::kDone;
            return used;
        }
    }
    return used;
}

// ------------------------------------------------------------------ response

struct ResponseParser::Beast final : http::basic_parser<false> {
    Beast(ResponseParser& owner, bool head) : owner_(owner) {
        eager(false);
        skip(head);
        body_limit(boost::none);  // the caller bounds what it reads
        header_limit(64 << 10);
    }
    void on_request_impl(http::verb, View, View, int, error_code&) override {}
    void on_response_impl(int status, View, int, error_code&) override { owner_.status_ = status; }
    void on_field_impl(http::field field, View name, View value, error_code&) override {
        if (in_body_) return;
        if (field == http::field::transfer_encoding && !iequals(sv(value), "chunked"))
            encoding_unknown_ = true;
        owner_.headers_.add(sv(name), sv(value));
    }
    void on_header_impl(error_code&) override {}
    void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
    std::size_t on_body_impl(View body, error_code&) override {
        body_->append(body.data(), body.size());
        return body.size();
    }
    void on_chunk_header_impl(std::uint64_t, View, error_code&) override {}
    std::size_t on_chunk_body_impl(std::uint64_t, View body, error_code&) override {
        body_->append(body.data(), body.size());
        return body.size();
    }
    void on_finish_impl(error_code&) override {}

    ResponseParser& owner_;
    std::string* body_ = nullptr;
    bool in_body_ = false;
    bool encoding_unknown_ = false;
};

ResponseParser::ResponseParser() = default;
ResponseParser::~ResponseParser() = default;

void ResponseParser::reset(bool head) {
    beast_.reset();
    headers_.clear();
    scan_ = {};
    state_ = ParseState::kHead;
    status_ = informational_ = 0;
    error_message_.clear();
    started_ = head_done_ = keep_alive_ = false;
    head_ = head;
}

void ResponseParser::fail(std::string message) {
    state_ = ParseState::kFailed;
    error_message_ = std::move(message);
}

std::size_t ResponseParser::feed_head(std::string_view bytes) {
    const std::size_t size = scan_head(scan_, bytes, {64 << 10, 8 << 10});
    if (scan_.status != 0) {
        fail(scan_.message);
        return 0;
    }
    if (size == 0) return 0;
    headers_.clear();
    beast_ = std::make_unique<Beast>(*this, head_);
    error_code ec;
    const std::size_t used = beast_->put({bytes.data(), size}, ec);
    if (ec) {
        fail(ec.message());
        return 0;
    }
    CHECK(used == size);
    scan_ = {};
    if (status_ == 101 || status_ < 100) {
        fail("unexpected status");
    } else if (status_ < 200) {
        if (++informational_ > kMaxInformational) fail("too many informational responses");
    } else if (beast_->encoding_unknown_) {
        fail("transfer-encoding other than chunked");
    } else {
        keep_alive_ = beast_->keep_alive();
        beast_->in_body_ = head_done_ = true;
        state_ = beast_->is_done() ? ParseState::kDone : ParseState::kBody;
    }
    return used;
}

std::size_t ResponseParser::feed(std::string_view bytes, std::string& body) {
    std::size_t used = 0;
    if (!bytes.empty()) started_ = true;
    while (state_ == ParseState::kHead) {
        const std::size_t n = feed_head(bytes.substr(used));
        if (n == 0) return used;
        used += n;
    }
    while (state_ == ParseState::kBody && used < bytes.size()) {
        error_code ec;
        beast_->body_ = &body;
        const std::size_t before = body.size();
        const std::size_t n = beast_->put({bytes.data() + used, bytes.size() - used}, ec);
        used += n;
        const std::size_t head = ec == http::error::need_more ? bytes.size() - used : n;
        if (beast_->chunked() && body.size() == before && head > kMaxChunkHeadBytes) {
            fail("chunk header or trailers too large");
            break;
        }
        if (ec == http::error::need_more) break;
        if (ec) {
            fail(ec.message());
            break;
        }
        if (beast_->is_done()) state_ = ParseState::kDone;
    }
    return used;
}

void ResponseParser::feed_eof() {
    if (state_ == ParseState::kDone || state_ == ParseState::kFailed) return;
    if (state_ == ParseState::kHead) return fail("the peer closed before the end of the headers");
    error_code ec;
    beast_->put_eof(ec);
    if (ec) return fail("the peer closed in the middle of the body");
    state_ = ParseState::kDone;
}

}  // namespace nereid::io
