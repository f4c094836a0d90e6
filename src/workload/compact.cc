#include "workload/compact.h"

#include <fmt/format.h>

#include <unordered_map>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"

namespace nereid::workload {

namespace {

constexpr std::string_view kMagic = "NTRACE1\n";

void put_varint(std::string& out, std::uint64_t v) {
    while (v >= 0x80) {
        out.push_back(static_cast<char>(v | 0x80));
        v >>= 7;
    }
    out.push_back(static_cast<char>(v));
}

std::uint64_t get_varint(ByteReader& in, bool& bad) {
    std::uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        const auto byte = in.get<std::uint8_t>();
        v |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            bad |= in.bad() || (shift == 63 && byte > 1);
            return v;
        }
    }
    bad = true;
    return 0;
}

}  // namespace

// A chain is written as what it shares with an earlier request (how many requests back, how many
// ids) and how many ids follow. Ids that follow and occur for the first time are consecutive
// numbers and cost nothing; an id seen before at the same position but behind another prefix cannot
// exist in a chain, so nothing else is needed. A trace whose ids are no chains would lose its
// equalities; summarise before and after shows it, and write_compact's test does.
std::string write_compact(const Trace& trace) {
    std::string out(kMagic);
    put_varint(out, trace.block_tokens());
    put_varint(out, trace.size());
    struct Place {
        std::size_t entry;
        std::size_t length;  // ids up to and with this one
    };
    std::unordered_map<std::uint64_t, Place> seen;
    std::int64_t before_us = 0;
    const auto& entries = trace.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const Trace::Entry& e = entries[i];
        const std::int64_t us = e.arrival.count() / 1000;
        CHECK_MSG(us >= before_us, "a compact trace is written from a sorted one");
        put_varint(out, static_cast<std::uint64_t>(us - before_us));
        before_us = us;
        put_varint(out, e.input_tokens);
        put_varint(out, e.output_tokens);
        put_varint(out, e.session);
        if (e.session != 0) put_varint(out, e.turn);
        const auto chain = trace.blocks(e);
        std::size_t shared = 0;
        std::size_t back = 0;
        for (std::size_t n = chain.size(); n > 0 && shared == 0; --n) {
            const auto found = seen.find(chain[n - 1]);
            if (found == seen.end() || found->second.length != n) continue;
            shared = n;
            back = i - found->second.entry;
        }
        put_varint(out, chain.size() - shared);
        put_varint(out, shared);
        if (shared != 0) put_varint(out, back);
        for (std::size_t n = shared; n < chain.size(); ++n) seen[chain[n]] = {i, n + 1};
        if (shared != 0) seen[chain[shared - 1]].entry = i;  // nearest: small numbers
    }
    const std::uint32_t crc = crc32c(as_bytes(out));
    ByteWriter(out).put(crc);
    return out;
}

Result<Trace> read_compact(std::string_view bytes) {
    const auto corrupt = [](std::string_view what) {
        return err(Code::kCorrupt, fmt::format("compact trace: {}", what));
    };
    if (!bytes.starts_with(kMagic)) return corrupt("wrong magic");
    if (bytes.size() < kMagic.size() + 4) return corrupt("too short");
    const std::string_view body = bytes.substr(0, bytes.size() - 4);
    if (ByteReader(bytes.substr(body.size())).get<std::uint32_t>() != crc32c(as_bytes(body)))
        return corrupt("checksum differs");
    ByteReader in(body.substr(kMagic.size()));
    bool bad = false;
    const std::uint64_t block_tokens = get_varint(in, bad);
    const std::uint64_t count = get_varint(in, bad);
    if (bad || block_tokens > 1 << 20 || count > in.remaining()) return corrupt("bad header");
    if (count == 0) return err(Code::kInvalidArgument, "the trace holds no request");
    Trace trace(static_cast<TokenCount>(block_tokens));
    std::vector<std::uint64_t> chain;
    std::uint64_t next_id = 0;
    std::uint64_t us = 0;
    std::uint64_t ids = 0;
    constexpr std::uint64_t kMaxUs = 9'000'000'000'000'000;  // 285 years: a Duration
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto at = [&](std::string_view what) {
            return corrupt(fmt::format("request {}: {}", i, what));
        };
        const std::uint64_t delta = get_varint(in, bad);
        const std::uint64_t input = get_varint(in, bad);
        const std::uint64_t output = get_varint(in, bad);
        const std::uint64_t session = get_varint(in, bad);
        const std::uint64_t turn = session == 0 ? 0 : get_varint(in, bad);
        const std::uint64_t fresh = get_varint(in, bad);
        const std::uint64_t shared = get_varint(in, bad);
        const std::uint64_t back = shared == 0 ? 0 : get_varint(in, bad);
        constexpr std::uint64_t kMax32 = 0xffff'ffff;
        if (bad || delta > kMaxUs || us + delta > kMaxUs) return at("cut off or out of range");
        if (input == 0 || input > kMax32 || output == 0 || output > kMax32 || turn > kMax32)
            return at("a length out of range");
        us += delta;
        if (fresh > kMaxCompactIds || shared > kMaxCompactIds || back > i) return at("a bad chain");
        ids += fresh + shared;
        if (ids > kMaxCompactIds || (fresh + shared != 0 && block_tokens == 0) ||
            (block_tokens != 0 && fresh + shared > input / block_tokens + 1))
            return at("too many ids");
        chain.clear();
        if (shared != 0) {
            if (back == 0) return at("a bad chain");
            const auto from = trace.blocks(trace.entries()[static_cast<std::size_t>(i - back)]);
            if (shared > from.size()) return at("shares more than there is");
            chain.assign(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(shared));
        }
        for (std::uint64_t n = 0; n < fresh; ++n) chain.push_back(next_id++);
        trace.add(Duration(static_cast<std::int64_t>(us) * 1000), static_cast<TokenCount>(input),
                  static_cast<TokenCount>(output), chain, session,
                  static_cast<std::uint32_t>(turn));
    }
    if (!in.at_end()) return corrupt("bytes after the last request");
    return trace;
}

}  // namespace nereid::workload
