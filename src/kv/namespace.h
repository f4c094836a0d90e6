// What a cache node stores and how it is named: namespaces, objects, and the one function that says
// which objects belong to a prompt (DESIGN §6).
//
// A block of tokens has a model::BlockKey. Under it lie up to two objects: the *history* (what all
// layers that own KV keep of these tokens) and, at checkpoints, a *state* (sliding windows,
// compressor tails: what a sequence needs besides its history to go on from the end of this block).
// Inside a node an object is known by its ObjectKey, which folds the namespace in, so that a key
// offered under another namespace is not found at all.
//
// Pure values and functions; no I/O, any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "model/block_key.h"

namespace nereid::kv {

enum class ObjectKind : std::uint8_t { kHistory = 0, kState = 1 };

// 128 bits. Uniform, since block keys are. Both words zero is no object.
struct ObjectKey {
    std::uint64_t hi = 0;
    std::uint64_t lo = 0;
    auto operator<=>(const ObjectKey&) const = default;
    explicit operator bool() const { return (hi | lo) != 0; }
};

// The name of an object inside a node: key XOR namespace digest [XOR a constant for states]. A
// bijection within (namespace, kind), so it collides only as the block keys themselves would.
ObjectKey object_key(const model::Namespace& ns, const model::BlockKey& key, ObjectKind kind);
// Its inverse, given the namespace and kind (which a record's header holds).
model::BlockKey block_key(const model::Namespace& ns, ObjectKey key, ObjectKind kind);

// What a hit at H (tokens) needs besides contiguous history to H.
enum class ReplayPolicy : std::uint8_t {
    kNone,               // nothing: attention over history alone (llama.cpp, MHA, GQA, MLA)
    kApproximateWindow,  // [H - window, H) is run again on truncated windows; not bit-identical. A
                         // hit no longer than the window is not adopted (vLLM PR 56227)
    kExactWindow,        // [H - exact_replay, H) is run again, which rebuilds every window exactly:
                         // align(W) + (layers - 1) W tokens (SGLang PR 31713)
    kStoredState,        // a state object at exactly H
};

// Sizes and rules of one namespace. All of it must be in the layout's fingerprint (layout.h puts
// it into KvLayout::detail): two engines that differ here do not share blocks.
struct Geometry {
    TokenCount block_tokens = 0;
    ByteCount history_bytes = 0;  // of one history object, exactly
    ByteCount state_bytes = 0;    // of one state object; 0 unless kStoredState
    TokenCount keep_tokens = 1;   // a hit leaves at least so many tokens to compute; >= 1
    ReplayPolicy replay = ReplayPolicy::kNone;
    TokenCount window_tokens = 0;         // sliding window W
    TokenCount replay_tokens = 0;         // kExactWindow: tokens to run again before H
    std::uint32_t checkpoint_blocks = 0;  // kStoredState: a state every so many blocks, besides the
                                          // one at the prompt's last boundary; 0 = only that one
    bool operator==(const Geometry&) const = default;
};
// kInvalidArgument names the field: zero sizes, sizes over 1 GiB, keep 0, a policy without what it
// needs.
Result<void> check_geometry(const Geometry& geometry);

struct ObjectRef {
    std::uint32_t block = 0;  // index in the prompt, from 0; the boundary is (block + 1) tokens
    ObjectKind kind = ObjectKind::kHistory;
    bool save = false;  // a writer of this very prompt stores it; the others only may exist
    auto operator<=>(const ObjectRef&) const = default;
};

// All objects that a prompt of `prompt_tokens` may use, in the order of the prompt (a block's
// history before its state); those marked `save` are what a writer of this prompt stores. This one
// list is both the save set and the lookup set: whatever some prompt saved is in the list of every
// prompt that shares the prefix and could use it (cases K47, K13; property-tested over random
// geometries). `prompt_tokens` counts what the engine will have processed.
std::vector<ObjectRef> objects_of(const Geometry& geometry, TokenCount prompt_tokens);

// The longest usable hit, given which objects of `objects_of(geometry, prompt_tokens)` are there.
struct Hit {
    std::uint32_t blocks = 0;      // history to restore: blocks [0, blocks)
    bool state = false;            // and the state object of block blocks - 1
    TokenCount compute_from = 0;   // first token to run; below the boundary under a window policy
    std::uint32_t raw_blocks = 0;  // contiguous history there, before the rules cut it
    bool operator==(const Hit&) const = default;
};
Hit usable_hit(const Geometry& geometry, TokenCount prompt_tokens,
               std::span<const ObjectRef> objects, const std::vector<bool>& present);

// ---------------------------------------------------------------- expiry

// Time to live belongs to the put (DESIGN §6): agents 3 days, chat 7 days by default. Expiry is
// kept as an hour of Unix time modulo 2^16 (7.4 years, compared by wrapped difference).
using ExpiryHour = std::uint16_t;
ExpiryHour expiry_hour(WallTime now, Duration ttl);  // rounded up: never early
inline bool expired(ExpiryHour expiry, ExpiryHour now) {
    return static_cast<std::int16_t>(static_cast<std::uint16_t>(expiry - now)) <= 0;
}
ExpiryHour later(ExpiryHour a, ExpiryHour b);

}  // namespace nereid::kv

template <>
struct std::hash<nereid::kv::ObjectKey> {
    std::size_t operator()(const nereid::kv::ObjectKey& k) const noexcept {
        return static_cast<std::size_t>(k.lo);
    }
};
