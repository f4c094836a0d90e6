#include "gateway/auth.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "base/hash.h"

namespace nereid::gateway {
namespace {

constexpr std::string_view kMend =
    "a line is `name:sha256-hex[:max_concurrency]`; `nereid keys new NAME` writes one";
constexpr std::int64_t kMaxConcurrency = 1'000'000;

bool good_name(std::string_view name) {
    const auto good = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == '-';
    };
    return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, good);
}

std::string_view trim(std::string_view s) {
    while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
    while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r'))
        s.remove_suffix(1);
    return s;
}

// What is wrong with the line, or nothing. The line itself is never quoted: somebody may have put
// the key there.
std::string_view parse_line(std::string_view line, ApiKey& out) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return "there is no ':'";
    const std::string_view name = trim(line.substr(0, colon));
    std::string_view digest = line.substr(colon + 1);
    std::string_view limit;
    if (const auto second = digest.find(':'); second != std::string_view::npos) {
        limit = trim(digest.substr(second + 1));
        if (limit.empty()) return "the limit after the second ':' is empty";
        digest = digest.substr(0, second);
    }
    if (!good_name(name)) return "the name must be 1 to 64 of A-Z a-z 0-9 . _ -";
    if (!from_hex(trim(digest), out.digest))
        return "the digest must be 64 hex digits (SHA-256 of the key, never the key itself)";
    if (!limit.empty()) {
        const auto [end, ec] =
            std::from_chars(limit.data(), limit.data() + limit.size(), out.max_concurrency);
        const bool whole = ec == std::errc() && end == limit.data() + limit.size();
        if (!whole || out.max_concurrency < 0 || out.max_concurrency > kMaxConcurrency) {
            return "max_concurrency must be a number from 0 (no limit) to 1000000";
        }
    }
    out.name = name;
    return {};
}

void take_counter(ApiKey& key, const KeyTable* previous) {
    if (previous != nullptr) {
        const auto same = std::ranges::find(previous->keys(), key.name, &ApiKey::name);
        if (same != previous->keys().end()) key.in_flight = same->in_flight;
    }
    if (!key.in_flight) key.in_flight = std::make_shared<std::atomic<std::int64_t>>(0);
}

}  // namespace

Result<std::shared_ptr<const KeyTable>> KeyTable::parse(std::string_view text,
                                                        std::string_view origin,
                                                        const KeyTable* previous) {
    auto table = std::make_shared<KeyTable>();
    std::size_t number = 0;
    while (!text.empty()) {
        const auto end = text.find('\n');
        const std::string_view line = trim(text.substr(0, end));
        text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
        ++number;
        if (line.empty() || line.front() == '#') continue;
        ApiKey key;
        if (const auto wrong = parse_line(line, key); !wrong.empty()) {
            return err(Code::kConfig,
                       fmt::format("{}:{}: {}. Mend: {}.", origin, number, wrong, kMend));
        }
        for (const ApiKey& other : table->keys_) {
            if (other.name != key.name && other.digest != key.digest) continue;
            const auto what = other.name == key.name ? "name" : "digest";
            return err(
                Code::kConfig,
                fmt::format(
                    "{}:{}: the {} of key \"{}\" appears a second time. Mend: remove one line.",
                    origin, number, what, other.name));
        }
        take_counter(key, previous);
        table->keys_.push_back(std::move(key));
    }
    if (table->keys_.empty())
        return err(Code::kConfig,
                   fmt::format("{}: there are no keys in it, so nobody could call. Mend: {}.",
                               origin, kMend));
    std::ranges::sort(table->keys_, {}, &ApiKey::digest);
    return std::shared_ptr<const KeyTable>(std::move(table));
}

const ApiKey* KeyTable::find(std::string_view presented) const {
    if (presented.empty()) return nullptr;
    const Digest256 digest = sha256(as_bytes(presented));
    const auto at = std::ranges::lower_bound(keys_, digest, {}, &ApiKey::digest);
    if (at == keys_.end() || !equal_constant_time(at->digest, digest)) return nullptr;
    return &*at;
}

std::string_view presented_key(const io::Headers& headers) {
    constexpr std::string_view kScheme = "bearer ";
    const std::string_view value = headers.get("authorization");
    if (value.size() > kScheme.size()) {
        const auto same = [](char ours, char theirs) { return ours == (theirs | 0x20); };
        if (std::equal(kScheme.begin(), kScheme.end() - 1, value.begin(), same) &&
            value[kScheme.size() - 1] == ' ') {
            return trim(value.substr(kScheme.size()));
        }
    }
    return trim(headers.get("x-api-key"));
}

Result<NewKey> make_key_line(std::string_view name, std::int64_t max_concurrency,
                             std::span<const std::uint8_t, 32> entropy) {
    if (!good_name(name))
        return err(Code::kInvalidArgument, "the name must be 1 to 64 of A-Z a-z 0-9 . _ -", "name");
    if (max_concurrency < 0 || max_concurrency > kMaxConcurrency) {
        return err(Code::kInvalidArgument, "max_concurrency must be from 0 (no limit) to 1000000",
                   "max_concurrency");
    }
    NewKey out;
    out.key = "sk-nereid-" + to_hex(entropy);
    out.line = fmt::format("{}:{}", name, to_hex(sha256(as_bytes(out.key))));
    if (max_concurrency != 0) out.line += fmt::format(":{}", max_concurrency);
    return out;
}

}  // namespace nereid::gateway
