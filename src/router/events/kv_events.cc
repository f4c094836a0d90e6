#include "router/events/kv_events.h"

#include <algorithm>
#include <bit>

#include "router/events/msgpack.h"

namespace nereid::router {
namespace {

constexpr std::uint32_t kMaxDepth = 16;

// What an event says, whichever form it came in.
struct Fields {
    std::string_view type;
    std::vector<EngineHash> blocks;
    std::optional<EngineHash> parent;
    std::vector<TokenId> tokens;
    std::int64_t block_size = 0;
    std::string_view medium = "GPU";
    std::int64_t group = 0;
    std::string_view kind;
    std::string_view lora_name;
    std::optional<std::int64_t> lora_id;
    std::vector<std::string> extra;  // per block, msgpack
};

class Reader {
  public:
    explicit Reader(std::string_view bytes) : in_(bytes) {}
    Result<KvEventBatch> batch();

  private:
    Result<void> event(KvEventBatch& out);
    Result<void> event_map(std::uint32_t count, Fields& f);
    Result<void> event_array(std::uint32_t count, Fields& f);
    Result<void> field(std::string_view name, Fields& f);
    Result<void> accept(Fields& f, KvEventBatch& out);
    Result<EngineHash> hash();
    Result<void> hashes(std::vector<EngineHash>& out);
    Result<void> tokens(std::vector<TokenId>& out);
    Result<void> extra_keys(std::vector<std::string>& out);
    std::unexpected<Error> corrupt(std::string_view what) const {
        return err(Code::kCorrupt,
                   "KV events: " + std::string(what) + " at byte " + std::to_string(in_.offset()));
    }
    MsgpackReader in_;
};

// An integer, or bytes of which the last 8 count.
Result<EngineHash> Reader::hash() {
    switch (in_.peek()) {
        case MsgpackType::kUnsigned:
            return in_.unsigned_integer();
        case MsgpackType::kSigned:  // Python's hash() may be negative
            return static_cast<EngineHash>(in_.signed_integer());
        case MsgpackType::kBinary:
        case MsgpackType::kString: {
            const std::string_view bytes = in_.bytes();
            if (in_.bad() || bytes.empty()) return corrupt("a block hash is empty");
            EngineHash h = 0;
            for (const char c :
                 bytes.substr(bytes.size() - std::min<std::size_t>(8, bytes.size()))) {
                h = h << 8u | static_cast<std::uint8_t>(c);
            }
            return h;
        }
        default:
            return corrupt("a block hash is neither a number nor bytes");
    }
}

Result<void> Reader::hashes(std::vector<EngineHash>& out) {
    const std::uint32_t n = in_.array();
    if (in_.bad()) return corrupt("block_hashes is no list");
    out.reserve(n);  // bounded: each takes a byte at least, which array() has checked
    for (std::uint32_t i = 0; i < n; ++i) {
        TRY(const EngineHash h, hash());
        out.push_back(h);
    }
    return {};
}

Result<void> Reader::tokens(std::vector<TokenId>& out) {
    const std::uint32_t n = in_.array();
    if (in_.bad()) return corrupt("token_ids is no list");
    out.reserve(n);
    for (std::uint32_t i = 0; i < n; ++i) {
        if (in_.peek() == MsgpackType::kArray) {  // SGLang's bigram keys: [id, next id]
            const std::uint32_t pair = in_.array();
            if (pair == 0) return corrupt("an empty token");
            out.push_back(static_cast<TokenId>(in_.signed_integer()));
            for (std::uint32_t k = 1; k < pair; ++k) in_.skip(kMaxDepth);
        } else {
            const std::int64_t id = in_.signed_integer();
            if (id < 0 || id > std::numeric_limits<TokenId>::max()) return corrupt("a token id");
            out.push_back(static_cast<TokenId>(id));
        }
        if (in_.bad()) return corrupt("a token id");
    }
    return {};
}

// A list with one entry per block, nil for most. Only nil: nothing is kept.
Result<void> Reader::extra_keys(std::vector<std::string>& out) {
    const std::uint32_t n = in_.array();
    bool says = false;
    for (std::uint32_t i = 0; i < n && !in_.bad(); ++i) {
        const bool nil = in_.peek() == MsgpackType::kNil;
        const std::string_view raw = in_.skip(kMaxDepth);
        out.emplace_back(nil ? std::string_view{} : raw);
        says = says || !nil;
    }
    if (in_.bad()) return corrupt("extra_keys");
    if (!says) out.clear();
    return {};
}

Result<void> Reader::field(std::string_view name, Fields& f) {
    if (in_.peek() == MsgpackType::kNil) {
        in_.skip(kMaxDepth);
        return {};
    }
    if (name == "type") {
        f.type = in_.bytes();
    } else if (name == "block_hashes") {
        return hashes(f.blocks);
    } else if (name == "parent_block_hash") {
        TRY(f.parent, hash());
    } else if (name == "token_ids") {
        return tokens(f.tokens);
    } else if (name == "block_size") {
        f.block_size = in_.signed_integer();
    } else if (name == "medium") {
        f.medium = in_.bytes();
    } else if (name == "group_idx") {
        f.group = in_.signed_integer();
    } else if (name == "kv_cache_spec_kind") {
        f.kind = in_.bytes();
    } else if (name == "lora_name") {
        f.lora_name = in_.bytes();
    } else if (name == "lora_id") {
        f.lora_id = in_.signed_integer();
    } else if (name == "extra_keys") {
        return extra_keys(f.extra);
    } else {
        in_.skip(kMaxDepth);
    }
    if (in_.bad()) return corrupt(name);
    return {};
}

Result<void> Reader::event_map(std::uint32_t count, Fields& f) {
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::string_view name = in_.bytes();
        if (in_.bad()) return corrupt("a field's name");
        TRY_VOID(field(name, f));
    }
    return {};
}

// SGLang 0.5.10 and older vLLM: the class's fields in their order.
Result<void> Reader::event_array(std::uint32_t count, Fields& f) {
    constexpr std::array<std::string_view, 6> kStored{
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"};
    constexpr std::array<std::string_view, 2> kRemoved{"block_hashes", "medium"};
    if (count == 0) return corrupt("an empty event");
    f.type = in_.bytes();
    if (in_.bad()) return corrupt("an event's type");
    std::span<const std::string_view> names;
    if (f.type == "BlockStored") names = kStored;
    if (f.type == "BlockRemoved") names = kRemoved;
    for (std::uint32_t i = 1; i < count; ++i) {
        TRY_VOID(field(i <= names.size() ? names[i - 1] : std::string_view{}, f));
    }
    return {};
}

Result<void> Reader::accept(Fields& f, KvEventBatch& out) {
    if (f.type == "AllBlocksCleared") {
        out.events.emplace_back(AllBlocksCleared{});
        return {};
    }
    const bool stored = f.type == "BlockStored";
    const bool main_group =
        f.group == 0 && (f.kind.empty() || f.kind == "full_attention" || f.kind == "mla_attention");
    if ((!stored && f.type != "BlockRemoved") || !main_group || f.medium != "GPU") {
        ++out.skipped;
        return {};
    }
    if (!stored) {
        out.events.emplace_back(BlockRemoved{std::move(f.blocks)});
        return {};
    }
    if (f.block_size <= 0 || f.block_size > 1 << 20) return corrupt("block_size");
    const auto size = static_cast<std::uint64_t>(f.block_size);
    if (!f.tokens.empty() && f.tokens.size() != f.blocks.size() * size) {
        return corrupt("token_ids do not fill the blocks");
    }
    if (!f.extra.empty() && f.extra.size() != f.blocks.size()) return corrupt("extra_keys");
    BlockStored event{.blocks = std::move(f.blocks),
                      .parent = f.parent,
                      .tokens = std::move(f.tokens),
                      .block_size = static_cast<TokenCount>(size),
                      .lora = std::string(f.lora_name),
                      .extra = std::move(f.extra)};
    if (event.lora.empty() && f.lora_id) event.lora = std::to_string(*f.lora_id);
    out.events.emplace_back(std::move(event));
    return {};
}

Result<void> Reader::event(KvEventBatch& out) {
    Fields f;
    switch (in_.peek()) {
        case MsgpackType::kMap: {
            const std::uint32_t n = in_.map();
            if (in_.bad()) return corrupt("an event");
            TRY_VOID(event_map(n, f));
            break;
        }
        case MsgpackType::kArray: {
            const std::uint32_t n = in_.array();
            if (in_.bad()) return corrupt("an event");
            TRY_VOID(event_array(n, f));
            break;
        }
        default:
            return corrupt("an event is neither a map nor a list");
    }
    return accept(f, out);
}

Result<KvEventBatch> Reader::batch() {
    KvEventBatch out;
    const std::uint32_t parts = in_.array();
    if (in_.bad() || parts < 2) return corrupt("no batch");
    out.timestamp = in_.number();
    const std::uint32_t events = in_.array();
    if (in_.bad()) return corrupt("no list of events");
    for (std::uint32_t i = 0; i < events; ++i) TRY_VOID(event(out));
    for (std::uint32_t i = 2; i < parts; ++i) {
        if (i == 2 && in_.peek() == MsgpackType::kUnsigned) {
            const std::uint64_t rank = in_.unsigned_integer();
            if (rank > 0xffff) return corrupt("dp_rank");
            out.dp_rank = static_cast<std::uint32_t>(rank);
        } else {
            in_.skip(kMaxDepth);
        }
        if (in_.bad()) return corrupt("the batch's tail");
    }
    if (!in_.at_end()) return corrupt("bytes after the batch");
    return out;
}

}  // namespace

Result<KvEventBatch> decode_kv_events(std::string_view payload) {
    if (payload.size() > kMaxEventBytes) {
        return err(Code::kCorrupt,
                   "KV events: a message of " + std::to_string(payload.size()) + " bytes");
    }
    return Reader(payload).batch();
}

Result<std::uint64_t> decode_sequence(std::string_view frame) {
    if (frame.size() != 8) return err(Code::kCorrupt, "KV events: a sequence has 8 bytes");
    std::uint64_t n = 0;
    for (const char c : frame) n = n << 8u | static_cast<std::uint8_t>(c);
    return n;
}

std::string encode_replay_request(std::uint64_t start) {
    std::string out;
    for (int shift = 56; shift >= 0; shift -= 8) {
        out.push_back(static_cast<char>(start >> static_cast<unsigned>(shift) & 0xffu));
    }
    return out;
}

EventSequence::Decision EventSequence::observe(std::uint64_t sequence, Source source) {
    Decision d;
    if (source == Source::kLive) {
        if (has_live_ && sequence < last_live_) {  // live numbers only rise: the engine began again
            d.clear_first = true;
            next_ = 0;
            replaying_ = false;
            broken_ = false;
        }
        has_live_ = true;
        last_live_ = sequence;
    }
    const bool lost = sequence > next_ && (broken_ || source == Source::kReplay);
    if (lost) {  // neither here nor in the engine's buffer: go on from this one
        d.clear_first = d.clear_first || known_;
        next_ = sequence;
        broken_ = false;
    }
    if (d.clear_first) {
        ++resets_;
        known_ = false;
    }
    if (sequence == next_) {
        ++next_;
        known_ = true;
    } else if (sequence < next_) {
        d.verdict = Verdict::kRepeat;
    } else {
        d.verdict = Verdict::kGap;
        if (!replaying_) {
            ++gaps_;
            replaying_ = true;
            replay_from_ = next_;
        }
    }
    return d;
}

bool EventSequence::replay_ended() {
    if (!replaying_) return false;
    replaying_ = false;
    if (!has_live_ || next_ > last_live_) return false;
    if (next_ == replay_from_) {
        broken_ = true;
        return false;
    }
    replaying_ = true;
    replay_from_ = next_;
    return true;
}

}  // namespace nereid::router
