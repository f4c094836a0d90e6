#include "dialect/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nereid::dialect {

std::string at_index(std::string_view path, std::size_t index) {
    return fmt::format("{}[{}]", path, index);
}

std::string member_path(std::string_view path, std::string_view name) {
    return fmt::format("{}.{}", path, name);
}

std::unexpected<Error> wrong_type(const Json& value, const std::string& path,
                                  std::string_view expected) {
    return err(
        Code::kInvalidArgument,
        fmt::format("Invalid type for '{}': expected {}, but got {} instead.", path, expected,
                    value.is_null()
                        ? "null"
                        : fmt::format("{} {}", value.is_array() || value.is_object() ? "an" : "a",
                                      value.kind_name())),
        path);
}

std::unexpected<Error> bad_value(const std::string& path, std::string message) {
    return err(Code::kInvalidArgument, fmt::format("Invalid value for '{}': {}", path, message),
               path);
}

std::unexpected<Error> missing(const std::string& path) {
    return err(Code::kInvalidArgument, fmt::format("Missing required parameter: '{}'.", path),
               path);
}

std::unexpected<Error> unsupported(const std::string& path, std::string message) {
    return err(Code::kUnsupported, fmt::format("Unsupported parameter: '{}': {}", path, message),
               path);
}

Result<bool> read_bool(const Json& value, const std::string& path) {
    if (!value.is_bool()) return wrong_type(value, path, "a boolean");
    return value.as_bool();
}

Result<std::string> read_string(const Json& value, const std::string& path) {
    if (!value.is_string()) return wrong_type(value, path, "a string");
    return value.as_string();
}

Result<double> read_number(const Json& value, const std::string& path, double min, double max,
                           bool open) {
    if (!value.is_number()) return wrong_type(value, path, "a number");
    const double number = value.as_double();
    if (!(open ? number > min : number >= min) || !(number <= max)) {
        if (std::isinf(max))
            return bad_value(
                path, fmt::format("{} is not {} {}.", number, open ? "above" : "at least", min));
        return bad_value(
            path, fmt::format("{} is not in {}{}, {}].", number, open ? '(' : '[', min, max));
    }
    return number;
}

Result<std::int64_t> read_int(const Json& value, const std::string& path, std::int64_t min,
                              std::int64_t max) {
    if (!value.is_number()) return wrong_type(value, path, "an integer");
    const auto number = value.as_int();
    if (!number) return bad_value(path, "expected an integer of 64 bits.");
    if (*number < min)
        return bad_value(path, fmt::format("{} is below the minimum value {}.", *number, min));
    if (*number > max)
        return bad_value(path, fmt::format("{} is above the maximum value {}.", *number, max));
    return *number;
}

Result<TokenCount> read_count(const Json& value, const std::string& path, std::int64_t min) {
    constexpr std::int64_t kMax = std::numeric_limits<TokenCount>::max();
    if (value.is_number() && !value.as_int() && value.as_double() > static_cast<double>(kMax))
        return static_cast<TokenCount>(kMax);
    TRY(const std::int64_t count, read_int(value, path, min));
    return static_cast<TokenCount>(std::min(count, kMax));
}

Result<std::vector<TokenId>> read_token_ids(const Json& value, const std::string& path) {
    if (!value.is_array()) return wrong_type(value, path, "an array of token ids");
    std::vector<TokenId> ids;
    ids.reserve(value.size());
    for (const Json& element : value.as_array()) {
        // The path is made only for a bad element: prompts of 100,000 ids are common.
        const auto id = element.is_number() ? element.as_int() : std::nullopt;
        if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
            const std::string where = at_index(path, ids.size());
            if (!element.is_number()) return wrong_type(element, where, "a token id");
            return bad_value(where, "not a token id.");
        }
        ids.push_back(static_cast<TokenId>(*id));
    }
    return ids;
}

const Json* given(const Json& object, std::string_view name) {
    const Json* value = object.find(name);
    return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::string> required_string(const Json& object, std::string_view name,
                                    const std::string& path) {
    const Json* value = given(object, name);
    if (value == nullptr) return missing(member_path(path, name));
    return read_string(*value, member_path(path, name));
}

Result<std::string> optional_string(const Json& object, std::string_view name,
                                    const std::string& path) {
    const Json* value = given(object, name);
    if (value == nullptr) return std::string();
    return read_string(*value, member_path(path, name));
}

}  // namespace nereid::dialect
