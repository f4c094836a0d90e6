#include "model/block_key.h"

#include <cstddef>

#include "base/check.h"
#include "base/hash.h"
#include "model/engine_port.h"

namespace nereid::model {
namespace {

constexpr std::string_view kNamespaceDomain = "nereid-kv-ns\1";
constexpr std::string_view kLayoutDomain = "nereid-kv-layout\1";

BlockKey truncate(const Digest256& digest) {
    BlockKey key;
    std::memcpy(key.bytes.data(), digest.data(), key.bytes.size());
    return key;
}

}  // namespace

Namespace make_namespace(const NamespaceParts& parts) {
    std::string text(kNamespaceDomain);
    ByteWriter w(text);
    w.put_bytes(parts.model_digest);
    w.put_bytes(parts.layout_fingerprint);
    w.put_string(parts.salt);
    w.put(static_cast<std::uint8_t>(parts.determinism ? 1 : 0));
    return Namespace{sha256(as_bytes(text))};
}

std::vector<BlockKey> block_chain(const Namespace& ns, std::span<const TokenId> tokens,
                                  TokenCount block_tokens, std::span<const ImageRef> images,
                                  std::string_view adapter) {
    CHECK(block_tokens >= 1);
    HmacSha256 mac(ns.digest);
    BlockKey key = truncate(mac.update(as_bytes("root")).finish());

    const std::size_t blocks = tokens.size() / block_tokens;
    std::vector<BlockKey> chain;
    chain.reserve(blocks);
    std::string text;
    std::size_t image = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
        const std::size_t first = b * block_tokens;
        std::size_t image_end = image;
        while (image_end < images.size() && images[image_end].position < first + block_tokens) {
            CHECK_MSG(images[image_end].position >= first, "images are not sorted by position");
            ++image_end;
        }
        text.clear();
        ByteWriter w(text);
        w.put_bytes(key.bytes);
        w.put(block_tokens);
        text.append(reinterpret_cast<const char*>(tokens.data() + first),
                    block_tokens * sizeof(TokenId));
        w.put(static_cast<std::uint32_t>(image_end - image));
        for (; image < image_end; ++image) {
            w.put(static_cast<std::uint32_t>(images[image].position - first));
            w.put_bytes(images[image].digest);
        }
        w.put_string(adapter);
        key = truncate(mac.update(as_bytes(text)).finish());
        chain.push_back(key);
    }
    return chain;
}

Digest256 KvLayout::fingerprint() const {
    std::string text(kLayoutDomain);
    ByteWriter w(text);
    w.put_string(family);
    w.put(block_tokens);
    w.put(block_bytes);
    w.put(state_bytes);
    w.put(replay_tokens);
    w.put_string(detail);
    w.put(static_cast<std::uint32_t>(slices.size()));
    for (const KvSlice& slice : slices) {
        w.put(slice.layer);
        w.put(slice.offset);
        w.put(slice.length);
        w.put_string(slice.role);
    }
    return sha256(as_bytes(text));
}

}  // namespace nereid::model
