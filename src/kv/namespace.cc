#include "kv/namespace.h"

#include <cstring>
#include <limits>

#include "base/check.h"

namespace nereid::kv {
namespace {

// First 16 bytes of SHA-256("nereid-kv-state"): pinned by a test.
constexpr ObjectKey kStateMask{0xd807d40b6b6700af, 0x67c70ddb1ce468eb};
constexpr ByteCount kMaxObjectBytes = 1ULL << 30;
constexpr std::int64_t kHourSeconds = 3600;

ObjectKey words(const std::uint8_t* bytes) {
    ObjectKey k;
    std::memcpy(&k.hi, bytes, 8);
    std::memcpy(&k.lo, bytes + 8, 8);
    return k;
}

ObjectKey mask(const model::Namespace& ns, ObjectKind kind) {
    ObjectKey m = words(ns.digest.data());
    if (kind == ObjectKind::kState) {
        m.hi ^= kStateMask.hi;
        m.lo ^= kStateMask.lo;
    }
    return m;
}

// Blocks that a prompt may take from the cache at all: whole ones that leave `keep` tokens.
std::uint32_t most_blocks(const Geometry& g, TokenCount prompt_tokens) {
    if (prompt_tokens < g.keep_tokens) return 0;
    return (prompt_tokens - g.keep_tokens) / g.block_tokens;
}

// Is this boundary on the grid of checkpoints that every prompt through it saves?
bool on_grid(const Geometry& g, std::uint32_t blocks) {
    return g.checkpoint_blocks != 0 && blocks % g.checkpoint_blocks == 0;
}

}  // namespace

ObjectKey object_key(const model::Namespace& ns, const model::BlockKey& key, ObjectKind kind) {
    const ObjectKey k = words(key.bytes.data());
    const ObjectKey m = mask(ns, kind);
    return {k.hi ^ m.hi, k.lo ^ m.lo};
}

model::BlockKey block_key(const model::Namespace& ns, ObjectKey key, ObjectKind kind) {
    const ObjectKey m = mask(ns, kind);
    const std::uint64_t hi = key.hi ^ m.hi;
    const std::uint64_t lo = key.lo ^ m.lo;
    model::BlockKey out;
    std::memcpy(out.bytes.data(), &hi, 8);
    std::memcpy(out.bytes.data() + 8, &lo, 8);
    return out;
}

Result<void> check_geometry(const Geometry& g) {
    const auto bad = [](std::string message, std::string param) {
        return err(Code::kInvalidArgument, std::move(message), std::move(param));
    };
    if (g.block_tokens == 0 || g.block_tokens > (1U << 20)) {
        return bad("a block has 1 to 1,048,576 tokens", "block_tokens");
    }
    if (g.history_bytes == 0 || g.history_bytes > kMaxObjectBytes) {
        return bad("a history object has 1 B to 1 GiB", "history_bytes");
    }
    if (g.state_bytes > kMaxObjectBytes) return bad("a state has at most 1 GiB", "state_bytes");
    if (g.keep_tokens == 0) return bad("a hit leaves at least one token", "keep_tokens");
    switch (g.replay) {
        case ReplayPolicy::kNone:
            break;
        case ReplayPolicy::kApproximateWindow:
            if (g.window_tokens == 0) return bad("the policy needs a window", "window_tokens");
            break;
        case ReplayPolicy::kExactWindow:
            if (g.replay_tokens == 0) return bad("the policy needs its length", "replay_tokens");
            break;
        case ReplayPolicy::kStoredState:
            if (g.state_bytes == 0) return bad("the policy needs a state", "state_bytes");
            break;
        default:
            return bad("no such replay policy", "replay");
    }
    if (g.replay != ReplayPolicy::kStoredState && g.state_bytes != 0) {
        return bad("a state that no policy uses", "state_bytes");
    }
    return {};
}

std::vector<ObjectRef> objects_of(const Geometry& g, TokenCount prompt_tokens) {
    const bool states = g.replay == ReplayPolicy::kStoredState;
    // Histories of all whole blocks are worth saving, for longer prompts to come; states only up to
    // the last boundary at which a prompt of this length may resume.
    const std::uint32_t blocks = prompt_tokens / g.block_tokens;
    const std::uint32_t most = most_blocks(g, prompt_tokens);
    std::vector<ObjectRef> objects;
    objects.reserve(states ? 2 * std::size_t{blocks} : blocks);
    for (std::uint32_t b = 0; b < blocks; ++b) {
        objects.push_back({b, ObjectKind::kHistory, true});
        // Another prompt's last boundary may be any: the state may exist at each, though this
        // prompt saves few.
        const std::uint32_t boundary = b + 1;
        if (states && boundary <= most) {
            objects.push_back({b, ObjectKind::kState, on_grid(g, boundary) || boundary == most});
        }
    }
    return objects;
}

Hit usable_hit(const Geometry& g, TokenCount prompt_tokens, std::span<const ObjectRef> objects,
               const std::vector<bool>& present) {
    CHECK(objects.size() == present.size());
    std::uint32_t contiguous = 0;
    for (std::size_t i = 0; i < objects.size(); ++i) {
        if (objects[i].kind != ObjectKind::kHistory) continue;
        if (objects[i].block != contiguous || !present[i]) break;
        ++contiguous;
    }
    Hit hit;
    hit.raw_blocks = contiguous;
    const std::uint32_t most = std::min(contiguous, most_blocks(g, prompt_tokens));
    const auto boundary = [&](std::uint32_t blocks) { return blocks * g.block_tokens; };
    switch (g.replay) {
        case ReplayPolicy::kNone:
            hit.blocks = most;
            hit.compute_from = boundary(most);
            break;
        case ReplayPolicy::kApproximateWindow:
            if (boundary(most) > g.window_tokens) {
                hit.blocks = most;
                hit.compute_from = boundary(most) - g.window_tokens;
            }
            break;
        case ReplayPolicy::kExactWindow:
            if (boundary(most) > g.replay_tokens) {
                hit.blocks = most;
                hit.compute_from = boundary(most) - g.replay_tokens;
            }
            break;
        case ReplayPolicy::kStoredState:
            for (std::size_t i = 0; i < objects.size(); ++i) {
                if (objects[i].kind == ObjectKind::kState && present[i] &&
                    objects[i].block < most && objects[i].block + 1 > hit.blocks) {
                    hit.blocks = objects[i].block + 1;
                    hit.state = true;
                    hit.compute_from = boundary(hit.blocks);
                }
            }
            break;
    }
    return hit;
}

ExpiryHour expiry_hour(WallTime now, Duration ttl) {
    // Half of the circle is the past: longer lives are cut there (3.7 years).
    constexpr std::int64_t kLongest = std::numeric_limits<std::int16_t>::max() - 1;
    const std::int64_t seconds = now.seconds() + ttl.count() / 1'000'000'000;
    const std::int64_t hour = seconds / kHourSeconds + 1;
    const std::int64_t current = now.seconds() / kHourSeconds;
    return static_cast<ExpiryHour>(std::min(hour, current + kLongest));
}

ExpiryHour later(ExpiryHour a, ExpiryHour b) {
    return static_cast<std::int16_t>(static_cast<std::uint16_t>(a - b)) >= 0 ? a : b;
}

}  // namespace nereid::kv
