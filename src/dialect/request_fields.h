// Handlers of the fields that mean the same in every dialect, for the tables of field_table.h. The
// context has members `request` (model::Request&) and `limits`. Internal to dialect.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "dialect/fields.h"
#include "model/request.h"

namespace nereid::dialect {

inline constexpr std::size_t kMaxCacheSalt = 256;  // bytes

template <class C>
Result<void> temperature(const Json& v, C& c) {
    TRY(c.request.sampling.temperature, read_number(v, "temperature", 0, 2));
    return {};
}
template <class C>
Result<void> top_p(const Json& v, C& c) {
    TRY(c.request.sampling.top_p, read_number(v, "top_p", 0, 1, true));
    return {};
}
template <class C>
Result<void> top_k(const Json& v, C& c) {
    TRY(const std::int64_t k, read_int(v, "top_k", -1, std::numeric_limits<std::int32_t>::max()));
    if (k > 0) c.request.sampling.top_k = static_cast<std::int32_t>(k);  // 0 and -1 mean "off"
    return {};
}
template <class C>
Result<void> min_p(const Json& v, C& c) {
    TRY(c.request.sampling.min_p, read_number(v, "min_p", 0, 1));
    return {};
}
template <class C>
Result<void> cache_salt(const Json& v, C& c) {
    TRY(c.request.cache_salt, read_string(v, "cache_salt"));
    if (c.request.cache_salt.size() > kMaxCacheSalt)
        return bad_value("cache_salt", fmt::format("more than {} bytes.", kMaxCacheSalt));
    return {};
}
template <class C>
Result<void> priority(const Json& v, C& c) {
    TRY(c.request.priority, read_int(v, "priority", std::numeric_limits<std::int64_t>::min()));
    return {};
}
template <class C>
Result<void> frequency_penalty(const Json& v, C& c) {
    TRY(c.request.sampling.frequency_penalty, read_number(v, "frequency_penalty", -2, 2));
    return {};
}
template <class C>
Result<void> presence_penalty(const Json& v, C& c) {
    TRY(c.request.sampling.presence_penalty, read_number(v, "presence_penalty", -2, 2));
    return {};
}
template <class C>
Result<void> repetition_penalty(const Json& v, C& c) {
    TRY(c.request.sampling.repetition_penalty,
        read_number(v, "repetition_penalty", 0, std::numeric_limits<double>::infinity(), true));
    return {};
}
template <class C>
Result<void> seed(const Json& v, C& c) {
    TRY(const std::int64_t s, read_int(v, "seed", std::numeric_limits<std::int64_t>::min()));
    c.request.sampling.seed = static_cast<std::uint64_t>(s);  // two's complement: -1 is 2^64 - 1
    return {};
}

template <class C>
Result<void> logit_bias(const Json& v, C& c) {
    if (!v.is_object()) return wrong_type(v, "logit_bias", "an object");
    std::map<TokenId, float> bias;  // ordered by id, the last of equal keys wins
    for (const auto& [key, value] : v.as_object()) {
        TokenId id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc{} || end != key.data() + key.size() || id < 0) {
            return bad_value("logit_bias",
                             fmt::format("the key '{}' is not a token id.", key.substr(0, 32)));
        }
        TRY(const double b, read_number(value, member_path("logit_bias", key), -100, 100));
        bias[id] = static_cast<float>(b);
    }
    c.request.sampling.logit_bias.assign(bias.begin(), bias.end());
    return {};
}

template <class C>
Result<void> stop_token_ids(const Json& v, C& c) {
    TRY(c.request.stop_token_ids, read_token_ids(v, "stop_token_ids"));
    return {};
}
template <class C>
Result<void> ignore_eos(const Json& v, C& c) {
    TRY(c.request.ignore_eos, read_bool(v, "ignore_eos"));
    return {};
}

template <class C>
Result<void> stream(const Json& v, C& c) {
    TRY(c.request.stream, read_bool(v, "stream"));
    return {};
}
template <class C>
Result<void> model_name(const Json& v, C& c) {
    TRY(c.request.model, read_string(v, "model"));
    if (c.request.model.empty()) return bad_value("model", "it is empty.");
    return {};
}
template <class C>
Result<void> parallel_tool_calls(const Json& v, C& c) {
    TRY(c.request.parallel_tool_calls, read_bool(v, "parallel_tool_calls"));
    return {};
}
template <class C>
Result<void> template_args(const Json& v, C& c) {
    if (!v.is_object()) return wrong_type(v, "chat_template_kwargs", "an object");
    c.request.template_args = v;
    return {};
}
template <class C>
Result<void> user(const Json& v, C& c) {
    TRY(c.request.user, read_string(v, "user"));
    return {};
}
template <class C>
Result<void> safety_identifier(const Json& v, C& c) {  // after user: wins
    TRY(c.request.user, read_string(v, "safety_identifier"));
    return {};
}
template <class C>
Result<void> prompt_cache_key(const Json& v, C& c) {
    TRY(c.request.affinity_key, read_string(v, "prompt_cache_key"));
    return {};
}
template <class C>
Result<void> metadata(const Json& v, C& c) {
    if (!v.is_object()) return wrong_type(v, "metadata", "an object");
    c.request.metadata = v;
    return {};
}

template <class C>
Result<void> stop(const Json& v, C& c) {
    if (v.is_string()) {
        if (!v.as_string().empty()) c.request.stop.push_back(v.as_string());
        return {};
    }
    if (!v.is_array()) return wrong_type(v, "stop", "a string or an array of strings");
    if (v.size() > c.limits.max_stop) {
        return bad_value(
            "stop", fmt::format("{} stop strings are more than {}.", v.size(), c.limits.max_stop));
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
        TRY(std::string text, read_string(v.as_array()[i], at_index("stop", i)));
        if (!text.empty()) c.request.stop.push_back(std::move(text));
    }
    return {};
}

}  // namespace nereid::dialect
