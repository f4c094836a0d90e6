// Little-endian, length-checked byte encoding for wire messages and file headers, hex, and
// 128/256-bit digests.
//
// ByteReader never reads past its end: the first failure makes it `bad()` and every later read
// returns 0 or empty, so that a decoder checks once at the end.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace nereid {

using Digest256 = std::array<std::uint8_t, 32>;

std::string to_hex(std::span<const std::uint8_t> bytes);
bool from_hex(std::string_view hex, std::span<std::uint8_t> out);  // exact length, else false

inline std::span<const std::uint8_t> as_bytes(std::string_view s) {
    return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()};
}

class ByteWriter {
  public:
    explicit ByteWriter(std::string& out) : out_(out) {}
    template <class T>
        requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
    void put(T v) {
        static_assert(std::endian::native == std::endian::little);
        char raw[sizeof(T)];
        std::memcpy(raw, &v, sizeof(T));
        out_.append(raw, sizeof(T));
    }
    void put_bytes(std::span<const std::uint8_t> b) {
        out_.append(reinterpret_cast<const char*>(b.data()), b.size());
    }
    void put_string(std::string_view s) {
        put(static_cast<std::uint32_t>(s.size()));
        out_.append(s);
    }
    template <class T>
    void put_vector(const std::vector<T>& v) {
        static_assert(std::is_arithmetic_v<T>);
        put(static_cast<std::uint32_t>(v.size()));
        out_.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T));
    }

  private:
    std::string& out_;
};

class ByteReader {
  public:
    explicit ByteReader(std::string_view in) : in_(in) {}
    template <class T>
        requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
    T get() {
        T v{};
        if (!take(sizeof(T))) return v;
        std::memcpy(&v, in_.data() + at_ - sizeof(T), sizeof(T));
        return v;
    }
    bool get_bytes(std::span<std::uint8_t> out) {
        if (!take(out.size())) return false;
        std::memcpy(out.data(), in_.data() + at_ - out.size(), out.size());
        return true;
    }
    std::string_view get_string() {
        const auto n = get<std::uint32_t>();
        if (!take(n)) return {};
        return in_.substr(at_ - n, n);
    }
    template <class T>
    std::vector<T> get_vector() {
        static_assert(std::is_arithmetic_v<T>);
        const std::uint64_t n = get<std::uint32_t>();
        if (!take(n * sizeof(T))) return {};
        std::vector<T> v(n);
        if (n != 0) std::memcpy(v.data(), in_.data() + at_ - n * sizeof(T), n * sizeof(T));
        return v;
    }
    // For a list of variable-size items: a count that could not fit in what is left is bad.
    std::uint32_t get_count(std::size_t min_item_bytes) {
        const auto n = get<std::uint32_t>();
        if (!bad_ && static_cast<std::uint64_t>(n) * min_item_bytes > in_.size() - at_) bad_ = true;
        return bad_ ? 0 : n;
    }
    bool bad() const { return bad_; }
    bool at_end() const { return !bad_ && at_ == in_.size(); }
    std::size_t remaining() const { return in_.size() - at_; }

  private:
    bool take(std::uint64_t n) {
        if (bad_ || n > in_.size() - at_) {
            bad_ = true;
            return false;
        }
        at_ += static_cast<std::size_t>(n);
        return true;
    }
    std::string_view in_;
    std::size_t at_ = 0;
    bool bad_ = false;
};

}  // namespace nereid
