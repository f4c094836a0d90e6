// Json: an owned, ordered JSON tree for requests, tool schemas and small documents; and JsonWriter,
// an append-only serialiser for the hot path (SSE frames).
//
// Parsing is simdjson's (strict RFC 8259, UTF-8 validated, lone surrogates refused); the tree is
// ours so that it survives the input buffer and keeps the order of members (schemas and templates
// show it to the model). Duplicate keys: the last one wins in `find`. Numbers keep integer or
// double kind; integers outside int64/uint64 become double; a non-negative integer up to int64's
// maximum is always held as int64. Not thread-safe; copies are deep. Cost: one allocation per
// container or string over 15 bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace nereid {

class Json {
  public:
    using Array = std::vector<Json>;
    using Member = std::pair<std::string, Json>;
    using Object = std::vector<Member>;

    Json() = default;                                  // null
    Json(std::nullptr_t) {}                            // NOLINT(google-explicit-constructor)
    Json(bool v) : v_(v) {}                            // NOLINT(google-explicit-constructor)
    Json(int v) : v_(static_cast<std::int64_t>(v)) {}  // NOLINT(google-explicit-constructor)
    Json(std::int64_t v) : v_(v) {}                    // NOLINT(google-explicit-constructor)
    Json(std::uint32_t v)
        : v_(static_cast<std::int64_t>(v)) {}  // NOLINT(google-explicit-constructor)
    Json(std::uint64_t v) {                    // NOLINT(google-explicit-constructor)
        if (v >> 63 != 0)
            v_ = v;
        else
            v_ = static_cast<std::int64_t>(
                v);  // one form per number, so that == is equality of documents
    }
    Json(double v) : v_(v) {}                         // NOLINT(google-explicit-constructor)
    Json(std::string v) : v_(std::move(v)) {}         // NOLINT(google-explicit-constructor)
    Json(std::string_view v) : v_(std::string(v)) {}  // NOLINT(google-explicit-constructor)
    Json(const char* v) : v_(std::string(v)) {}       // NOLINT(google-explicit-constructor)
    Json(Array v) : v_(std::move(v)) {}               // NOLINT(google-explicit-constructor)
    Json(Object v) : v_(std::move(v)) {}              // NOLINT(google-explicit-constructor)

    // kInvalidArgument whose message says what is wrong at which byte ("expected ',' or '}', found
    // 'x' at byte 57, line 3"); it quotes no more of the text than that one byte. Depth over
    // max_depth, anything after the document, lone surrogates, invalid UTF-8 and numbers beyond
    // double's range are refused. Cost: about 1 ns per byte and 50 ns per node; on failure a
    // second, slower pass finds the place.
    static constexpr std::size_t kMaxDepth = 128;
    static constexpr std::size_t kDeepest = 160;  // for what we have put around what others sent
    static Result<Json> parse(std::string_view text, std::size_t max_depth = kMaxDepth);

    bool is_null() const { return std::holds_alternative<std::monostate>(v_); }
    bool is_bool() const { return std::holds_alternative<bool>(v_); }
    bool is_int() const {
        return std::holds_alternative<std::int64_t>(v_) ||
               std::holds_alternative<std::uint64_t>(v_);
    }
    bool is_number() const { return is_int() || std::holds_alternative<double>(v_); }
    bool is_string() const { return std::holds_alternative<std::string>(v_); }
    bool is_array() const { return std::holds_alternative<Array>(v_); }
    bool is_object() const { return std::holds_alternative<Object>(v_); }
    std::string_view kind_name() const;  // "null", "boolean", "number", "string", "array", "object"

    // Preconditions: the kind matches (CHECK).
    bool as_bool() const { return get<bool>(); }
    std::optional<std::int64_t> as_int()
        const;                 // also a double without fraction; nullopt when out of range
    double as_double() const;  // integers over 2^53 are rounded
    const std::string& as_string() const { return get<std::string>(); }
    const Array& as_array() const { return get<Array>(); }
    Array& as_array() { return const_cast<Array&>(get<Array>()); }
    const Object& as_object() const { return get<Object>(); }
    Object& as_object() { return const_cast<Object&>(get<Object>()); }

    // Member of an object, or nullptr (also when this is no object, or the member is absent).
    const Json* find(std::string_view key) const;
    // Sets or replaces a member; this becomes an object when null.
    Json& set(std::string_view key, Json value);
    std::size_t size() const;  // elements or members; 0 for scalars

    std::string dump() const;  // compact; invalid UTF-8 inside strings is replaced by U+FFFD
    bool operator==(const Json&) const = default;

    // Calls f with the held alternative: monostate (null), bool, int64, uint64, double, string,
    // Array or Object.
    template <class F>
    decltype(auto) visit(F&& f) const {
        return std::visit(std::forward<F>(f), v_);
    }

  private:
    template <class T>
    const T& get() const {
        const T* held = std::get_if<T>(&v_);
        CHECK_MSG(held != nullptr, kind_name());
        return *held;
    }

    std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array,
                 Object>
        v_;
};

// Appends JSON to a string. The caller keeps the grammar (begin/end pairs); commas are ours.
// Strings are escaped per RFC 8259; invalid UTF-8 becomes U+FFFD (cases A42, A45). Doubles print
// shortest round-trip, as Python's json does: always with '.' or 'e', so that they stay doubles;
// NaN and infinities print null.
class JsonWriter {
  public:
    explicit JsonWriter(std::string& out) : out_(out) {}
    JsonWriter& begin_object();
    JsonWriter& end_object();
    JsonWriter& begin_array();
    JsonWriter& end_array();
    JsonWriter& key(std::string_view k);
    JsonWriter& value(std::string_view v);
    JsonWriter& value(const std::string& v) { return value(std::string_view(v)); }
    JsonWriter& value(const char* v) { return value(std::string_view(v)); }
    JsonWriter& value(bool v);
    JsonWriter& value(std::int64_t v);
    JsonWriter& value(std::uint64_t v);
    JsonWriter& value(int v) { return value(static_cast<std::int64_t>(v)); }
    JsonWriter& value(std::uint32_t v) { return value(static_cast<std::uint64_t>(v)); }
    JsonWriter& value(double v);
    JsonWriter& value(float v);  // shortest for a float: half the digits (embeddings)
    JsonWriter& value(const Json& v);
    JsonWriter& null();
    // Already serialised JSON. Its line breaks, which can only lie between tokens, become spaces:
    // what is written is one line of JSONL or of an event stream, whoever wrote the rest.
    JsonWriter& raw(std::string_view json);
    template <class V>
    JsonWriter& member(std::string_view k, const V& v) {
        key(k);
        return value(v);
    }

  private:
    void separate();
    std::string& out_;
    bool need_comma_ = false;
};

// Appends `s` as a quoted JSON string.
void append_json_string(std::string& out, std::string_view s);

}  // namespace nereid
