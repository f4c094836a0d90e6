// LlamaEngine: KV blocks in and out of the shared region. Nothing here trusts the bytes it is
// given.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/llama/llama_engine.h"

namespace nereid::engine::llama {
namespace {

constexpr Duration kImportLease{
    60'000'000'000};  // imported blocks wait this long for their request

}  // namespace

std::string LlamaEngine::sealed_block(const Sequence& s, std::uint32_t index,
                                      TokenCount tokens) const {
    std::string out;
    const model::BlockKey key =
        index < s.chain.size() && tokens == kBlockTokens ? s.chain[index] : model::BlockKey{};
    const TokenCount first = index * kBlockTokens;
    seal_block(runtime_->geometry(), key, first, tokens, out, [&](std::span<std::uint8_t> rows) {
        runtime_->read_rows(s.stream, first, tokens, rows);
    });
    return out;
}

// ---------------------------------------------------------------- in

void LlamaEngine::import_prefix(const model::ImportPrefix& command, TimePoint now) {
    auto taken = take_blocks(command, now);
    if (!taken.ok()) {
        outbox_.kv_failed.push_back({command.id, std::move(taken.error())});
        return;
    }
    outbox_.kv_ready.push_back({command.id, command.first_block,
                                static_cast<std::uint32_t>(command.keys.size()), command.offset,
                                command.length});
}

// All blocks are checked before the first is stored. They are pinned until the request begins.
Result<void> LlamaEngine::take_blocks(const model::ImportPrefix& command, TimePoint now) {
    if (store_.capacity() == 0)
        return err(Code::kUnsupported, "no prefix store: KV blocks cannot be imported");
    TRY(const auto range, region_.range(command.offset, command.length));
    const auto it = sequences_.find(command.id);
    if (it != sequences_.end() && it->second.begun)
        return err(Code::kConflict, "the request has begun already");
    const auto known = imports_.find(command.id);
    const std::size_t have = known == imports_.end() ? 0 : known->second.keys.size();
    if (command.keys.empty() || command.first_block != have) {
        return err(Code::kInvalidArgument,
                   fmt::format("blocks from {} do not follow the {} imported ones",
                               command.first_block, have));
    }
    std::string_view rest(reinterpret_cast<const char*>(range.data()), range.size());
    std::vector<std::string> blocks;
    for (std::size_t i = 0; i < command.keys.size(); ++i) {
        // Copied first: the region is shared, its bytes may change after the check.
        std::string bytes(
            rest.substr(0, std::min<std::size_t>(rest.size(), info_.layout.block_bytes)));
        TRY(const BlockView view, open_block(runtime_->geometry(), bytes));
        const TokenCount first = (command.first_block + static_cast<TokenCount>(i)) * kBlockTokens;
        if (view.key != command.keys[i] || view.tokens != kBlockTokens ||
            view.first_token != first) {
            return err(Code::kCorrupt, fmt::format("KV block {} is another one than announced",
                                                   command.first_block + i));
        }
        rest.remove_prefix(view.size);
        blocks.push_back(std::move(bytes));
    }
    Import& import = imports_[command.id];
    import.expires = now + kImportLease;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        import.keys.push_back(command.keys[i]);
        const auto index = static_cast<std::uint32_t>(import.keys.size() - 1);
        const bool stored = store_.put(import.keys, index, std::move(blocks[i]));
        if (!stored) {
            import.keys.pop_back();
            return err(Code::kNoSpace,
                       fmt::format("the prefix store of {} bytes has no room for block {}",
                                   store_.capacity(), index));
        }
        store_.pin(std::span(import.keys).subspan(index, 1));
    }
    return {};
}

void LlamaEngine::drop_import(RequestId id) {
    const auto it = imports_.find(id);
    if (it == imports_.end()) return;
    store_.unpin(it->second.keys);
    imports_.erase(it);
}

// The blocks of a whole-sequence state, as views into the region.
Result<std::vector<BlockView>> LlamaEngine::read_transfer(const Sequence& s) const {
    TRY(const auto range, region_.range(s.transfer->first, s.transfer->second));
    std::string_view rest(reinterpret_cast<const char*>(range.data()), range.size());
    std::vector<BlockView> views;
    TokenCount tokens = 0;
    while (tokens < s.request.prompt.size()) {
        TRY(const BlockView view, open_block(runtime_->geometry(), rest));
        const std::size_t index = views.size();
        const bool whole = view.tokens == kBlockTokens;
        const bool named = !whole || index >= s.chain.size() || view.key == s.chain[index];
        const bool last = tokens + view.tokens == s.request.prompt.size();
        if (view.first_token != tokens || !named || !(whole || last)) {
            return err(
                Code::kCorrupt,
                fmt::format("KV block {} of the state is another one than the prompt's", index));
        }
        views.push_back(view);
        tokens += view.tokens;
        rest.remove_prefix(view.size);
    }
    if (tokens != s.request.prompt.size())
        return err(Code::kCorrupt, "the state is longer than the prompt");
    return views;
}

void LlamaEngine::restore_transfer(Sequence& s) {
    const Duration started = engine_clock();
    streams_[s.stream].resident.clear();
    auto views = read_transfer(s);
    if (!views.ok()) {
        runtime_->truncate(s.stream, 0);
        return finish(s, model::EndReason::kFailed, std::move(views.error()));
    }
    if (!runtime_->restore(s.stream, *views)) {
        ++counters_.failed_restores;
        return finish(s, model::EndReason::kFailed,
                      Error{Code::kCorrupt, "llama.cpp refused the sequence's state"});
    }
    s.past = s.cached = s.prefill_end = static_cast<TokenCount>(s.request.prompt.size());
    counters_.restored_tokens += s.cached;
    s.restore_time = engine_clock() - started;
    s.phase = Phase::kDecode;
    outbox_.started.push_back({s.request.id, s.cached});
    const auto& r = s.request;
    const TokenId first = s.written.back();
    const bool end =
        !r.ignore_eos && std::binary_search(info_.eos_ids.begin(), info_.eos_ids.end(), first);
    if (end || std::find(r.stop_ids.begin(), r.stop_ids.end(), first) != r.stop_ids.end()) {
        return finish(s, model::EndReason::kStop);
    }
    s.room = s.room > 0 ? s.room - 1 : 0;  // the first token was sampled elsewhere
    if (s.room == 0) finish(s, model::EndReason::kLength);
}

// ---------------------------------------------------------------- out

void LlamaEngine::export_blocks(const model::ExportBlocks& command) {
    const auto it = sequences_.find(command.id);
    if (it == sequences_.end() || it->second.stream == kNoStream) {
        outbox_.kv_failed.push_back(
            {command.id, {Code::kNotFound, "no KV of this request is here"}});
        return;
    }
    auto written = write_blocks(it->second, command);
    if (!written.ok()) {
        outbox_.kv_failed.push_back({command.id, std::move(written.error())});
        return;
    }
    outbox_.kv_ready.push_back(
        {command.id, command.first_block, command.count, command.offset, *written});
}

// The last block of the prompt may be a partial one; it has no key.
Result<ByteCount> LlamaEngine::write_blocks(const Sequence& s, const model::ExportBlocks& command) {
    if (!runtime_->blocks()) return err(Code::kUnsupported, "this model's KV cannot be moved");
    const auto prompt = static_cast<TokenCount>(s.request.prompt.size());
    const std::uint64_t last = std::uint64_t{command.first_block} + command.count;
    if (command.count == 0 || last > (std::uint64_t{prompt} + kBlockTokens - 1) / kBlockTokens) {
        return err(Code::kInvalidArgument, "these blocks are not of the prompt");
    }
    const auto end = static_cast<TokenCount>(std::min<std::uint64_t>(last * kBlockTokens, prompt));
    if (s.past < end) return err(Code::kConflict, "these blocks are not computed yet");
    const TokenCount tokens = end - command.first_block * kBlockTokens;
    const ByteCount need = command.count * std::uint64_t{kBlockHeaderBytes} +
                           tokens * runtime_->geometry().token_bytes();
    if (need > command.capacity)
        return err(Code::kTooLarge,
                   fmt::format("{} bytes do not fit into {}", need, command.capacity));
    TRY(auto range, region_.range(command.offset, need));
    for (std::uint32_t i = 0; i < command.count; ++i) {
        const std::uint32_t index = command.first_block + i;
        const TokenCount count = std::min(kBlockTokens, end - index * kBlockTokens);
        const std::string block = sealed_block(s, index, count);
        std::memcpy(range.data(), block.data(), block.size());
        range = range.subspan(block.size());
    }
    return need;
}

}  // namespace nereid::engine::llama
