#include "router/events/msgpack.h"

#include <bit>
#include <limits>

namespace nereid::router {

MsgpackType MsgpackReader::peek() const {
    if (bad_ || at_ == in_.size()) return MsgpackType::kNone;
    const auto c = static_cast<std::uint8_t>(in_[at_]);
    if (c <= 0x7f || (c >= 0xcc && c <= 0xcf)) return MsgpackType::kUnsigned;
    if (c >= 0xe0 || (c >= 0xd0 && c <= 0xd3)) return MsgpackType::kSigned;
    if (c <= 0x8f || c == 0xde || c == 0xdf) return MsgpackType::kMap;
    if (c <= 0x9f || c == 0xdc || c == 0xdd) return MsgpackType::kArray;
    if (c <= 0xbf || (c >= 0xd9 && c <= 0xdb)) return MsgpackType::kString;
    if (c == 0xc0) return MsgpackType::kNil;
    if (c == 0xc2 || c == 0xc3) return MsgpackType::kBool;
    if (c >= 0xc4 && c <= 0xc6) return MsgpackType::kBinary;
    if (c == 0xca || c == 0xcb) return MsgpackType::kFloat;
    return c == 0xc1 ? MsgpackType::kNone : MsgpackType::kExtension;  // c7-c9, d4-d8
}

std::uint8_t MsgpackReader::next() {
    if (bad_ || at_ == in_.size()) {
        fail();
        return 0xc1;
    }
    return static_cast<std::uint8_t>(in_[at_++]);
}

std::string_view MsgpackReader::take(std::uint64_t bytes) {
    if (bad_ || bytes > in_.size() - at_) {
        fail();
        return {};
    }
    const std::string_view out = in_.substr(at_, static_cast<std::size_t>(bytes));
    at_ += out.size();
    return out;
}

std::uint64_t MsgpackReader::big_endian(std::size_t bytes) {
    std::uint64_t v = 0;
    for (const char c : take(bytes)) v = v << 8u | static_cast<std::uint8_t>(c);
    return v;
}

std::uint64_t MsgpackReader::unsigned_integer() {
    const std::int64_t most = std::numeric_limits<std::int64_t>::max();
    if (peek() == MsgpackType::kSigned) {
        const std::int64_t v = signed_integer();
        if (v < 0) fail();
        return v < 0 ? 0 : static_cast<std::uint64_t>(v & most);
    }
    const std::uint8_t c = next();
    if (c <= 0x7f) return c;
    if (c >= 0xcc && c <= 0xcf) return big_endian(std::size_t{1} << (c - 0xccu));
    fail();
    return 0;
}

std::int64_t MsgpackReader::signed_integer() {
    if (peek() == MsgpackType::kUnsigned) {
        const std::uint64_t v = unsigned_integer();
        if (v > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) fail();
        return bad_ ? 0 : static_cast<std::int64_t>(v);
    }
    const std::uint8_t c = next();
    if (c >= 0xe0) return static_cast<std::int8_t>(c);
    switch (c) {
        case 0xd0:
            return static_cast<std::int8_t>(big_endian(1));
        case 0xd1:
            return static_cast<std::int16_t>(big_endian(2));
        case 0xd2:
            return static_cast<std::int32_t>(big_endian(4));
        case 0xd3:
            return static_cast<std::int64_t>(big_endian(8));
        default:
            fail();
            return 0;
    }
}

double MsgpackReader::number() {
    if (peek() != MsgpackType::kFloat) return static_cast<double>(signed_integer());
    if (next() == 0xca) return std::bit_cast<float>(static_cast<std::uint32_t>(big_endian(4)));
    return std::bit_cast<double>(big_endian(8));
}

std::string_view MsgpackReader::bytes() {
    const std::uint8_t c = next();
    if (c >= 0xa0 && c <= 0xbf) return take(c & 0x1fu);
    switch (c) {
        case 0xc4:
        case 0xd9:
            return take(big_endian(1));
        case 0xc5:
        case 0xda:
            return take(big_endian(2));
        case 0xc6:
        case 0xdb:
            return take(big_endian(4));
        default:
            fail();
            return {};
    }
}

std::uint32_t MsgpackReader::count(std::uint64_t n, std::uint64_t least_bytes) {
    if (bad_ || n * least_bytes > in_.size() - at_) {
        fail();
        return 0;
    }
    return static_cast<std::uint32_t>(n);
}

std::uint32_t MsgpackReader::array() {
    const std::uint8_t c = next();
    if (c >= 0x90 && c <= 0x9f) return count(c & 0x0fu, 1);
    if (c == 0xdc) return count(big_endian(2), 1);
    if (c == 0xdd) return count(big_endian(4), 1);
    fail();
    return 0;
}

std::uint32_t MsgpackReader::map() {
    const std::uint8_t c = next();
    if (c >= 0x80 && c <= 0x8f) return count(c & 0x0fu, 2);
    if (c == 0xde) return count(big_endian(2), 2);
    if (c == 0xdf) return count(big_endian(4), 2);
    fail();
    return 0;
}

std::string_view MsgpackReader::skip(std::uint32_t depth) {
    const std::size_t start = at_;
    switch (peek()) {
        case MsgpackType::kNil:
        case MsgpackType::kBool:
            next();
            break;
        case MsgpackType::kUnsigned:
            unsigned_integer();
            break;
        case MsgpackType::kSigned:
            signed_integer();
            break;
        case MsgpackType::kFloat:
            number();
            break;
        case MsgpackType::kString:
        case MsgpackType::kBinary:
            bytes();
            break;
        case MsgpackType::kArray:
        case MsgpackType::kMap: {
            const bool pairs = peek() == MsgpackType::kMap;
            const std::uint64_t n = pairs ? std::uint64_t{map()} * 2 : array();
            if (depth == 0) fail();
            for (std::uint64_t i = 0; i < n && !bad_; ++i) skip(depth - 1);
            break;
        }
        case MsgpackType::kExtension: {
            const std::uint8_t c = next();  // fixext 1..16, or ext 8, 16, 32; then the type's byte
            const std::uint64_t n = c >= 0xd4 ? std::uint64_t{1} << (c - 0xd4u)
                                              : big_endian(std::size_t{1} << (c - 0xc7u));
            take(n);
            take(1);
            break;
        }
        case MsgpackType::kNone:
            fail();
            break;
    }
    return bad_ ? std::string_view{} : in_.substr(start, at_ - start);
}

}  // namespace nereid::router
