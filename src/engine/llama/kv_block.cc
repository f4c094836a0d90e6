#include "engine/llama/kv_block.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "engine/llama/options.h"

namespace nereid::engine::llama {
namespace {

constexpr std::uint32_t kBlockMagic = 0x31424b4e;  // "NKB1"
constexpr std::uint16_t kBlockVersion = 1;

std::uint32_t crc_of(std::string_view bytes) { return crc32c(as_bytes(bytes)); }

// Appends what a cache reads of a sequence. rows(out, before, row_bytes) appends a tensor's rows;
// `before` = bytes of one token's rows in the tensors before it.
template <class Rows>
void write_state(const KvGeometry& geometry, TokenCount tokens, std::string& out, Rows&& rows) {
    ByteWriter w(out);
    w.put(geometry.streams);
    w.put(tokens);  // stream 0 carries the cells; the reader puts them into the stream of the
                    // destination
    for (TokenCount i = 0; i < tokens; ++i) {
        w.put(static_cast<std::int32_t>(i));  // position
        w.put(std::uint32_t{1});              // one sequence
        w.put(std::int32_t{0});
    }
    std::uint32_t layers = 0;
    for (const auto& t : geometry.tensors) layers += t.value ? 0 : 1;
    w.put(std::uint32_t{0});  // V is not transposed
    w.put(layers);
    std::uint64_t before = 0;
    for (const auto& t : geometry.tensors) {
        w.put(t.type);
        w.put(t.row_bytes);
        rows(out, before, t.row_bytes);
        before += t.row_bytes;
    }
    for (std::uint32_t s = 1; s < geometry.streams; ++s) w.put(std::uint32_t{0});
}

}  // namespace

std::uint64_t KvGeometry::token_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& t : tensors) sum += t.row_bytes;
    return sum;
}

std::uint64_t KvGeometry::block_bytes(TokenCount tokens) const {
    return kBlockHeaderBytes + tokens * token_bytes();
}

std::uint32_t KvGeometry::fingerprint() const {
    std::string bytes;
    ByteWriter w(bytes);
    for (const auto& t : tensors) {
        w.put(t.layer);
        w.put(static_cast<std::uint8_t>(t.value));
        w.put(t.type);
        w.put(t.row_bytes);
    }
    return crc_of(bytes);
}

namespace detail {

void begin_block(const KvGeometry& geometry, const model::BlockKey& key, TokenCount first_token,
                 TokenCount tokens, std::string& out) {
    const std::uint64_t rows = tokens * geometry.token_bytes();
    out.reserve(out.size() + kBlockHeaderBytes + rows);
    ByteWriter w(out);
    w.put(kBlockMagic);
    w.put(kBlockVersion);
    w.put(static_cast<std::uint16_t>(tokens));
    w.put(first_token);
    w.put(geometry.fingerprint());
    w.put_bytes(key.bytes);
    w.put(rows);
    for (int i = 0; i < 4; ++i) w.put(std::uint32_t{0});  // reserved
    w.put(std::uint32_t{0});                              // CRC32C of the rows
    w.put(std::uint32_t{0});                              // CRC32C of the header before this field
    out.resize(out.size() + rows);
}

void finish_block(std::string& out, std::size_t at) {
    const std::string_view block = std::string_view(out).substr(at);
    const std::uint32_t rows = crc_of(block.substr(kBlockHeaderBytes));
    std::memcpy(out.data() + at + 56, &rows, sizeof rows);
    const std::uint32_t header = crc_of(block.substr(0, 60));
    std::memcpy(out.data() + at + 60, &header, sizeof header);
}

}  // namespace detail

Result<BlockView> open_block(const KvGeometry& geometry, std::string_view bytes, bool check_rows) {
    if (bytes.size() < kBlockHeaderBytes) {
        return err(Code::kCorrupt, fmt::format("KV block: {} bytes are no header", bytes.size()));
    }
    ByteReader r(bytes.substr(0, kBlockHeaderBytes));
    BlockView view;
    const auto magic = r.get<std::uint32_t>();
    const auto version = r.get<std::uint16_t>();
    view.tokens = r.get<std::uint16_t>();
    view.first_token = r.get<TokenCount>();
    const auto fingerprint = r.get<std::uint32_t>();
    r.get_bytes(view.key.bytes);
    const auto rows = r.get<std::uint64_t>();
    for (int i = 0; i < 4; ++i) r.get<std::uint32_t>();
    const auto rows_crc = r.get<std::uint32_t>();
    const auto header_crc = r.get<std::uint32_t>();
    if (magic != kBlockMagic) return err(Code::kCorrupt, "KV block: wrong magic");
    if (version != kBlockVersion)
        return err(Code::kCorrupt, fmt::format("KV block: version {}, not 1", version));
    if (header_crc != crc_of(bytes.substr(0, 60)))
        return err(Code::kCorrupt, "KV block: header checksum");
    if (fingerprint != geometry.fingerprint())
        return err(Code::kCorrupt, "KV block: of another model or KV type");
    if (view.tokens == 0 || view.tokens > kBlockTokens || view.first_token % kBlockTokens != 0) {
        return err(Code::kCorrupt,
                   fmt::format("KV block: {} tokens at {}", view.tokens, view.first_token));
    }
    if (rows != view.tokens * geometry.token_bytes())
        return err(Code::kCorrupt, "KV block: length of the rows");
    if (rows > bytes.size() - kBlockHeaderBytes) return err(Code::kCorrupt, "KV block: cut short");
    const std::string_view body = bytes.substr(kBlockHeaderBytes, static_cast<std::size_t>(rows));
    if (check_rows && rows_crc != crc_of(body)) return err(Code::kCorrupt, "KV block: checksum");
    view.rows = as_bytes(body);
    view.size = kBlockHeaderBytes + body.size();
    return view;
}

std::string state_frame(const KvGeometry& geometry, TokenCount tokens) {
    std::string out;
    write_state(geometry, tokens, out, [](std::string&, std::uint64_t, std::uint64_t) {});
    return out;
}

void assemble_state(const KvGeometry& geometry, std::span<const BlockView> blocks,
                    std::string& out) {
    TokenCount tokens = 0;
    for (const auto& b : blocks) {
        CHECK(b.first_token == tokens && b.rows.size() == b.tokens * geometry.token_bytes());
        tokens += b.tokens;
    }
    out.clear();
    out.reserve(64 + tokens * (geometry.token_bytes() + 12) + geometry.tensors.size() * 12 +
                geometry.streams * 4);
    ByteWriter w(out);
    w.put(geometry.state_magic);
    w.put(std::int32_t{0});  // sequence id at the writer; ignored by the reader
    write_state(geometry, tokens, out,
                [blocks](std::string& to, std::uint64_t before, std::uint64_t row_bytes) {
                    for (const auto& b : blocks) {
                        ByteWriter(to).put_bytes(
                            b.rows.subspan(static_cast<std::size_t>(before * b.tokens),
                                           static_cast<std::size_t>(row_bytes * b.tokens)));
                    }
                });
}

}  // namespace nereid::engine::llama
