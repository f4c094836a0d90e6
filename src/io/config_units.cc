#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "io/config.h"

namespace nereid::io {

namespace {

struct Unit {
    std::string_view name;
    std::uint64_t factor;
};
// Largest first, for the formatters.
constexpr std::array<Unit, 7> kTimes = {{{"d", 86'400'000'000'000},
                                         {"h", 3'600'000'000'000},
                                         {"m", 60'000'000'000},
                                         {"s", 1'000'000'000},
                                         {"ms", 1'000'000},
                                         {"us", 1'000},
                                         {"ns", 1}}};
constexpr std::array<Unit, 9> kSizes = {{{"TiB", 1ULL << 40},
                                         {"GiB", 1ULL << 30},
                                         {"MiB", 1ULL << 20},
                                         {"KiB", 1ULL << 10},
                                         {"TB", 1'000'000'000'000},
                                         {"GB", 1'000'000'000},
                                         {"MB", 1'000'000},
                                         {"KB", 1'000},
                                         {"B", 1}}};

// "1.5s" -> 1.5 × the factor of "s", exactly for the digits that matter; `what` is for the message.
Result<std::uint64_t> parse_with_unit(std::string_view text, std::span<const Unit> units,
                                      std::string_view what, std::string_view example) {
    const auto bad = [&](std::string_view why) {
        return Error{Code::kInvalidArgument,
                     fmt::format("\"{}\" is not a {}: {}; write for example \"{}\"", text, what,
                                 why, example)};
    };
    std::size_t at = 0;
    while (at < text.size() && ((text[at] >= '0' && text[at] <= '9') || text[at] == '.')) ++at;
    const std::string_view number = text.substr(0, at), unit = text.substr(at);
    if (number.empty()) return bad("it does not begin with a number");
    if (unit.empty()) return bad("the unit is missing");
    const auto u = std::ranges::find(units, unit, &Unit::name);
    if (u == units.end()) return bad(fmt::format("unknown unit \"{}\"", unit));
    const std::size_t point = number.find('.');
    const std::string_view whole = number.substr(0, point);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(whole.data(), whole.data() + whole.size(), value);
    if (error == std::errc::result_out_of_range ||
        value > static_cast<std::uint64_t>(INT64_MAX) / u->factor)
        return bad("too large");
    if (error != std::errc{} || end != whole.data() + whole.size()) return bad("bad number");
    value *= u->factor;
    if (point != std::string_view::npos) {
        const std::string_view fraction = number.substr(point + 1);
        if (fraction.empty() || fraction.size() > 9 || fraction.find('.') != std::string_view::npos)
            return bad("bad number");
        std::uint64_t digits = 0;
        std::from_chars(fraction.data(), fraction.data() + fraction.size(), digits);
        double part = static_cast<double>(digits) * static_cast<double>(u->factor);
        for (std::size_t i = 0; i < fraction.size(); ++i) part /= 10;
        value += static_cast<std::uint64_t>(std::llround(part));
    }
    return value;
}

std::string format_with_unit(std::uint64_t value, std::span<const Unit> units) {
    for (const auto& u : units) {
        if (value != 0 && value % u.factor == 0)
            return fmt::format("{}{}", value / u.factor, u.name);
    }
    return {};
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
    return parse_with_unit(text, kTimes, "duration", "150ms, 5s or 2m").map([](std::uint64_t ns) {
        return Duration(static_cast<std::int64_t>(ns));
    });
}

Result<ByteCount> parse_size(std::string_view text) {
    return parse_with_unit(text, kSizes, "size", "64KiB or 2GiB");
}

std::string format_duration(Duration d) {
    return d.count() == 0 ? "0s" : format_with_unit(static_cast<std::uint64_t>(d.count()), kTimes);
}

std::string format_size(ByteCount bytes) {
    return bytes == 0 ? "0B" : format_with_unit(bytes, kSizes);
}

}  // namespace nereid::io
