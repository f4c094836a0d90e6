#include "base/json.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/json_fault.h"
#include "base/utf8.h"

namespace nereid {
namespace {

constexpr std::size_t kKeptParserBytes = 1u << 20;  // a parser that grew beyond this is not kept

// simdjson's elements point into its parser; this copies them out. `levels` is how many more
// containers may nest: a container at 0 sets `too_deep` (simdjson's own bound lets one empty
// container pass beyond it).
Json to_tree(const simdjson::dom::element& element, std::size_t levels, bool& too_deep) {
    namespace dom = simdjson::dom;
    if (levels == 0 && (element.is_object() || element.is_array())) {
        too_deep = true;
        return nullptr;
    }
    switch (element.type()) {
        case dom::element_type::OBJECT: {
            Json::Object object;
            const dom::object from = element.get_object().value_unsafe();
            object.reserve(from.size());
            for (const auto [key, value] : from)
                object.emplace_back(std::string(key), to_tree(value, levels - 1, too_deep));
            return object;
        }
        case dom::element_type::ARRAY: {
            Json::Array array;
            const dom::array from = element.get_array().value_unsafe();
            array.reserve(from.size());
            for (const auto value : from) array.push_back(to_tree(value, levels - 1, too_deep));
            return array;
        }
        case dom::element_type::STRING:
            return std::string_view(element.get_string().value_unsafe());
        case dom::element_type::INT64:
            return element.get_int64().value_unsafe();
        case dom::element_type::UINT64:
            return element.get_uint64().value_unsafe();
        case dom::element_type::DOUBLE:
            return element.get_double().value_unsafe();
        case dom::element_type::BOOL:
            return element.get_bool().value_unsafe();
        case dom::element_type::NULL_VALUE:
            return nullptr;
    }
    CHECK_MSG(false, "simdjson gave an unknown type");
}

struct Attempt {
    simdjson::error_code error = simdjson::SUCCESS;
    Json tree;
};

Attempt try_parse(simdjson::dom::parser& parser, std::string_view text, std::size_t max_depth) {
    Attempt attempt;
    if (parser.capacity() == 0) {
        // Sets the depth once; parse() grows the buffers itself. simdjson's bound counts the
        // document as a level.
        attempt.error =
            parser.allocate(std::max<std::size_t>(text.size(), 4096), Json::kDeepest + 1);
        if (attempt.error != simdjson::SUCCESS) return attempt;
    }
    const auto parsed = parser.parse(text.data(), text.size());
    attempt.error = parsed.error();
    if (attempt.error != simdjson::SUCCESS) return attempt;
    bool too_deep = false;
    attempt.tree = to_tree(parsed.value_unsafe(), max_depth, too_deep);
    if (too_deep) attempt.error = simdjson::DEPTH_ERROR;
    return attempt;
}

Attempt try_parse(std::string_view text, std::size_t max_depth) {
    if (text.size() > kKeptParserBytes) {
        simdjson::dom::parser parser;
        return try_parse(parser, text, max_depth);
    }
    thread_local simdjson::dom::parser parser;
    return try_parse(parser, text, max_depth);
}

std::unexpected<Error> describe(std::string_view text, const JsonFault& fault) {
    std::string message = "not valid JSON: " + fault.what;
    if (fault.offset < text.size()) {
        const char c = text[fault.offset];
        if (c > 0x20 && c < 0x7f) message.append(", found '").append(1, c).append("'");
    } else {
        message.append(", found the end");
    }
    const auto line =
        1 +
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(fault.offset), '\n');
    message.append(" at byte ").append(std::to_string(fault.offset));
    message.append(", line ").append(std::to_string(line));
    return err(Code::kInvalidArgument, std::move(message));
}

}  // namespace

Result<Json> Json::parse(std::string_view text, std::size_t max_depth) {
    CHECK(max_depth <= kDeepest);
    Attempt attempt = try_parse(text, max_depth);
    if (attempt.error == simdjson::SUCCESS) return std::move(attempt.tree);
    if (const auto fault = find_json_fault(text, max_depth)) return describe(text, *fault);
    if (attempt.error == simdjson::MEMALLOC || attempt.error == simdjson::CAPACITY) {
        return err(Code::kTooLarge, "the JSON document is too large to parse in memory");
    }
    // What is left is a number that simdjson cannot hold: an integer over 64 bits becomes a double,
    // a double beyond its range is refused.
    attempt = try_parse(widen_big_integers(text), max_depth);
    if (attempt.error == simdjson::SUCCESS) return std::move(attempt.tree);
    return err(Code::kInvalidArgument, "not valid JSON: a number is out of range");
}

std::string_view Json::kind_name() const {
    static constexpr std::string_view kNames[] = {"null",   "boolean", "number", "number",
                                                  "number", "string",  "array",  "object"};
    return kNames[v_.index()];
}

std::optional<std::int64_t> Json::as_int() const {
    if (const auto* i = std::get_if<std::int64_t>(&v_)) return *i;
    if (std::holds_alternative<std::uint64_t>(v_)) return std::nullopt;
    const double d = get<double>();
    // 2^63 is exact in a double, 2^63 - 1 is not.
    if (!(d >= -0x1p63 && d < 0x1p63) || d != std::trunc(d)) return std::nullopt;
    return static_cast<std::int64_t>(d);
}

double Json::as_double() const {
    if (const auto* i = std::get_if<std::int64_t>(&v_)) return static_cast<double>(*i);
    if (const auto* u = std::get_if<std::uint64_t>(&v_)) return static_cast<double>(*u);
    return get<double>();
}

const Json* Json::find(std::string_view key) const {
    const auto* object = std::get_if<Object>(&v_);
    if (object == nullptr) return nullptr;
    for (auto it = object->rbegin(); it != object->rend(); ++it) {
        if (it->first == key) return &it->second;
    }
    return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
    if (is_null()) v_ = Object{};
    CHECK_MSG(is_object(), kind_name());
    auto& object = as_object();
    for (auto it = object.rbegin(); it != object.rend(); ++it) {
        if (it->first == key) {
            it->second = std::move(value);
            return *this;
        }
    }
    object.emplace_back(std::string(key), std::move(value));
    return *this;
}

std::size_t Json::size() const {
    if (const auto* array = std::get_if<Array>(&v_)) return array->size();
    if (const auto* object = std::get_if<Object>(&v_)) return object->size();
    return 0;
}

}  // namespace nereid
