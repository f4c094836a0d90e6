// A reader of msgpack (github.com/msgpack/msgpack/blob/master/spec.md): what KV events need, no
// more. It never reads past its end, allocates nothing, and checks counts against what is left; the
// first failure makes it bad() and every later read returns nothing, so that a caller may check
// once.
#pragma once

#include <cstdint>
#include <string_view>

namespace nereid::router {

enum class MsgpackType : std::uint8_t {
    kNil,
    kBool,
    kUnsigned,
    kSigned,
    kFloat,
    kString,
    kBinary,
    kArray,
    kMap,
    kExtension,
    kNone,  // at the end, or an unused code
};

class MsgpackReader {
  public:
    explicit MsgpackReader(std::string_view bytes) : in_(bytes) {}

    MsgpackType peek() const;
    std::uint64_t unsigned_integer();  // also a signed one that is not negative
    std::int64_t signed_integer();     // any integer that fits
    double number();                   // float or integer
    std::string_view bytes();          // string or binary
    std::uint32_t array();             // its count; each item takes a byte at least
    std::uint32_t map();               // its count of pairs
    // Skips one value with all it holds and returns its bytes. Nesting over `depth` is bad.
    std::string_view skip(std::uint32_t depth);

    bool bad() const { return bad_; }
    bool at_end() const { return !bad_ && at_ == in_.size(); }
    std::size_t offset() const { return at_; }

  private:
    std::uint8_t next();
    std::uint64_t big_endian(std::size_t bytes);
    std::string_view take(std::uint64_t bytes);
    std::uint32_t count(std::uint64_t n, std::uint64_t least_bytes);
    void fail() { bad_ = true; }

    std::string_view in_;
    std::size_t at_ = 0;
    bool bad_ = false;
};

}  // namespace nereid::router
