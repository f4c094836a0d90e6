// Result<T>: a value or an Error{code, message}; and the one closed list of codes.
//
// Every fallible function of Nereid returns Result. Exceptions of third-party code stop in the
// adapter that calls it. `CHECK` (base/check.h) is for our own bugs, an Error is for the world. A
// new code is added only if some caller would act differently on it (docs/adr/0002).
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace nereid {

enum class Code : std::uint8_t {
    kInvalidArgument,  // the caller must change the request
    kUnsupported,  // well formed, but this engine or build cannot do it; the caller must change the
                   // request
    kContextLength,     // prompt (+ requested output) does not fit the model's context
    kUnauthenticated,   // no valid credential
    kPermissionDenied,  // a valid credential without this right
    kNotFound,          // no such model, route, object
    kConflict,          // state of the object forbids it
    kTooLarge,          // body, header or batch over a configured bound
    kRateLimited,       // the caller's own limit (per-key concurrency, rate); wait and retry
    kOverloaded,        // our queue is full or we are draining; retry elsewhere or later
    kUnavailable,       // the engine or a dependency is not there (yet); retry
    kWorkerLost,        // the worker died after it had produced output; the work is lost
    kCancelled,         // the caller went away or asked for it
    kDeadlineExceeded,  // the deadline passed
    kCorrupt,           // bytes fail their check (checksum, length, magic)
    kNoSpace,           // disk or arena full
    kIo,                // the operating system refused a read, write, connect, spawn
    kConfig,            // start-up: file, key and mend are in the message
    kInternal,          // our own bug, contained
};

// What a code means to the three who react to it.
struct CodeInfo {
    std::string_view name;  // snake_case, stable: logs, metrics, wire
    int http_status;        // status of a response that has not begun
    bool retryable;         // can the same request succeed later without a change?
    std::string_view who;   // who must react: "caller", "operator", "nobody"
};
const CodeInfo& code_info(Code code);
// The inverse of code_info(code).name; kInternal for an unknown name.
Code code_from_name(std::string_view name);

struct Error {
    Code code = Code::kInternal;
    std::string message;     // for people; never contains secrets
    std::string param = {};  // the caller's field at fault ("messages[2].content"), empty when none

    bool operator==(const Error&) const = default;
};

inline std::unexpected<Error> err(Code code, std::string message, std::string param = {}) {
    return std::unexpected<Error>(Error{code, std::move(message), std::move(param)});
}

// libstdc++ 12's std::expected has no monadic members; ours has the two that we use.
template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
  public:
    using Base = std::expected<T, Error>;
    using Base::Base;
    Result(const Error& e)
        : Base(std::unexpected<Error>(e)) {}  // NOLINT(google-explicit-constructor)
    Result(Error&& e)
        : Base(std::unexpected<Error>(std::move(e))) {}  // NOLINT(google-explicit-constructor)

    bool ok() const { return this->has_value(); }
    Code code() const { return this->error().code; }

    // f(T) -> Result<U>
    template <class F>
    auto and_then(F&& f) && -> std::invoke_result_t<F, T&&> {
        if (!ok()) return std::unexpected<Error>(std::move(this->error()));
        return std::forward<F>(f)(std::move(**this));
    }
    // f(T) -> U
    template <class F>
    auto map(F&& f) && -> Result<std::invoke_result_t<F, T&&>> {
        if (!ok()) return std::unexpected<Error>(std::move(this->error()));
        return std::forward<F>(f)(std::move(**this));
    }
};

template <>
class [[nodiscard]] Result<void> : public std::expected<void, Error> {
  public:
    using Base = std::expected<void, Error>;
    using Base::Base;
    Result(const Error& e)
        : Base(std::unexpected<Error>(e)) {}  // NOLINT(google-explicit-constructor)
    Result(Error&& e)
        : Base(std::unexpected<Error>(std::move(e))) {}  // NOLINT(google-explicit-constructor)

    bool ok() const { return this->has_value(); }
    Code code() const { return this->error().code; }
};

// TRY(auto x, f()): x = value of f(), or return its error from this function.
// CO_TRY: the same inside a coroutine. TRY_VOID / CO_TRY_VOID for Result<void>.
#define NEREID_CAT2(a, b) a##b
#define NEREID_CAT(a, b) NEREID_CAT2(a, b)
#define NEREID_TRY_IMPL(ret, tmp, decl, expr)                                           \
    auto tmp = (expr);                                                                  \
    if (!tmp.has_value()) ret std::unexpected<::nereid::Error>(std::move(tmp.error())); \
    decl = std::move(*tmp)
#define TRY(decl, expr) NEREID_TRY_IMPL(return, NEREID_CAT(nereid_try_, __LINE__), decl, expr)
#define CO_TRY(decl, expr) NEREID_TRY_IMPL(co_return, NEREID_CAT(nereid_try_, __LINE__), decl, expr)
#define NEREID_TRYV_IMPL(ret, tmp, expr)                                                    \
    do {                                                                                    \
        auto tmp = (expr);                                                                  \
        if (!tmp.has_value()) ret std::unexpected<::nereid::Error>(std::move(tmp.error())); \
    } while (false)
#define TRY_VOID(expr) NEREID_TRYV_IMPL(return, NEREID_CAT(nereid_try_, __LINE__), expr)
#define CO_TRY_VOID(expr) NEREID_TRYV_IMPL(co_return, NEREID_CAT(nereid_try_, __LINE__), expr)

}  // namespace nereid
