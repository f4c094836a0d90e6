// One table per endpoint says what happens to each field of a body; this is the loop over it.
//
// Context is the endpoint's own: what a handler may look at besides its value. Handlers run in the
// order of the table, whatever the order in the body; of equal keys the last wins; null is "not
// given". The tables are compared with the documentation by tests (Documentation.*). Internal to
// dialect.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/result.h"
#include "dialect/fields.h"

namespace nereid::dialect {

enum class Policy : std::uint8_t {
    kImplement,  // the vendor's field, acted on
    kExtra,      // a field of the engines (vLLM, SGLang, llama.cpp, DeepSeek), acted on
    kAccept,     // means nothing here; listed in Request::ignored_fields
    kRefuse,     // kUnsupported: ignoring it would change the answer
};

struct FieldPolicy {
    std::string_view name;
    Policy policy;
};

template <class Context>
struct Field {
    std::string_view name;
    Policy policy;
    Result<void> (*handler)(const Json&,
                            Context&) = nullptr;  // kImplement; a check of the others
    bool required = false;
};

// Names of fields that are accepted and not acted on, each once; bounded, as clients invent them.
inline void note_ignored(std::string_view name, std::vector<std::string>& ignored) {
    constexpr std::size_t kMaxIgnored = 64;
    name = name.substr(0, 64);
    if (ignored.size() < kMaxIgnored && std::ranges::find(ignored, name) == ignored.end())
        ignored.emplace_back(name);
}

// Applies `table` to `body`. kInvalidArgument / kUnsupported naming the field. `strict`: an unknown
// member is kInvalidArgument instead of a line in `ignored`. One pass over the body, whatever its
// size.
template <class Context>
Result<void> read_fields(const Json& body, std::span<const Field<Context>> table, bool strict,
                         std::vector<std::string>& ignored, Context& context) {
    if (!body.is_object()) {
        return err(Code::kInvalidArgument,
                   fmt::format("The body must be a JSON object, not {}.", body.kind_name()));
    }
    std::array<const Json*, 96> found{};  // no allocation on the way of every request
    CHECK(table.size() <= found.size());
    for (const auto& [name, value] : body.as_object()) {
        const auto field = std::ranges::find(table, std::string_view(name), &Field<Context>::name);
        if (field != table.end()) {
            found[static_cast<std::size_t>(field - table.begin())] = &value;
            continue;
        }
        if (strict) {
            return err(
                Code::kInvalidArgument,
                fmt::format("Unrecognized request argument supplied: {}", name.substr(0, 64)),
                name.substr(0, 64));
        }
        if (!value.is_null()) note_ignored(name, ignored);
    }
    for (std::size_t i = 0; i < table.size(); ++i) {
        const Field<Context>& field = table[i];
        if (found[i] == nullptr || found[i]->is_null()) {  // SDKs send null for "not given"
            if (field.required) return missing(std::string(field.name));
            continue;
        }
        if (field.handler != nullptr) {
            TRY_VOID(field.handler(*found[i], context));
        } else if (field.policy == Policy::kRefuse) {
            return unsupported(std::string(field.name), "it is not supported.");
        } else {
            note_ignored(field.name, ignored);
        }
    }
    return {};
}

template <class Context>
std::vector<FieldPolicy> policies(std::span<const Field<Context>> table) {
    std::vector<FieldPolicy> out;
    for (const auto& field : table) out.push_back({field.name, field.policy});
    return out;
}

}  // namespace nereid::dialect
