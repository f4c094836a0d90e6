// LlamaEngine: admission to streams, one step of computing, and what comes out of it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/llama/llama_engine.h"

namespace nereid::engine::llama {
namespace {

constexpr std::uint32_t kFailuresUntilBroken = 3;

std::uint32_t common_prefix(std::span<const model::BlockKey> a,
                            std::span<const model::BlockKey> b) {
    std::uint32_t n = 0;
    while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
    return n;
}

}  // namespace

// ---------------------------------------------------------------- the step

bool LlamaEngine::has_work() const {
    bool free_stream = false;
    for (std::uint32_t i = 0; i < options_.parallel; ++i) {
        const Sequence* s = streams_[i].owner;
        if (s == nullptr) free_stream = true;
        if (s != nullptr && s->phase != Phase::kHeld) return true;
    }
    return embedding_active_ || (!queue_.empty() && free_stream) || compiled() ||
           std::any_of(queue_.begin(), queue_.end(), [&](const QueueKey& k) {
               return sequences_.at(std::get<2>(k)).request.mode == model::AddMode::kEmbed;
           });
}

TimePoint LlamaEngine::wake_at() const {
    TimePoint at = TimePoint::never();
    for (const auto& stream : streams_) {
        if (stream.owner != nullptr && stream.owner->phase == Phase::kHeld)
            at = std::min(at, stream.owner->lease);
    }
    for (const auto& [id, import] : imports_) at = std::min(at, import.expires);
    // Nobody tells when the worker is done with a grammar: look again.
    if (!compiling_.empty()) at = std::min(at, look_again_);
    return at;
}

Result<model::StepFrame> LlamaEngine::step(TimePoint now) {
    now_ = now;
    look_again_ = now + kCompilePoll;
    expire_leases(now);
    admit_compiled();
    admit_queued(now);
    start_embedding();

    PlanState state;
    state.ubatch = options_.ubatch;
    state.decode_gap = options_.decode_gap;
    state.since_decode = since_decode_;
    for (const auto& stream : streams_) {
        state.decoding += stream.owner != nullptr && stream.owner->phase == Phase::kDecode ? 1 : 0;
    }
    const std::vector<Sequence*> waiting = prefilling();
    // The first of them is begun here, so that the plan knows what is left after its restore.
    if (!waiting.empty() && !waiting.front()->begun) begin(*waiting.front(), now);
    for (const Sequence* s : waiting) state.waiting.push_back(prefill_work(*s));
    const StepPlan plan = plan_step(state, cost_);
    const Duration started = engine_clock();
    Result<void> ran;
    if (plan.kind == StepPlan::Kind::kDecode) {
        ran = run_decode();
    } else if (plan.kind == StepPlan::Kind::kPrefill) {
        ran = waiting.front()->phase == Phase::kEmbed
                  ? run_embedding(*waiting.front())
                  : run_prefill(call_members(waiting, plan), plan.rows);
    }
    if (!ran.ok()) return std::move(ran.error());
    if (plan.kind != StepPlan::Kind::kIdle) load_.last_step = engine_clock() - started;
    ++steps_;
    fill_load();
    model::StepFrame frame = std::exchange(outbox_, {});
    frame.step = StepId{steps_};
    frame.load = load_;
    return frame;
}

void LlamaEngine::expire_leases(TimePoint now) {
    std::vector<RequestId> expired;
    for (const auto& stream : streams_) {
        const Sequence* s = stream.owner;
        if (s != nullptr && s->phase == Phase::kHeld && s->lease <= now)
            expired.push_back(s->request.id);
    }
    for (const RequestId id : expired) {
        ++counters_.expired_leases;
        erase(id);
    }
    std::vector<RequestId> imports;
    for (const auto& [id, import] : imports_) {
        if (import.expires <= now) imports.push_back(id);
    }
    for (const RequestId id : imports) drop_import(id);
}

// ---------------------------------------------------------------- admission

void LlamaEngine::admit_queued(TimePoint now) {
    std::uint32_t running = 0;
    for (const auto& stream : streams_) running += stream.owner != nullptr ? 1 : 0;
    for (auto it = queue_.begin(); it != queue_.end() && running < options_.parallel;) {
        Sequence& s = sequences_.at(std::get<2>(*it));
        if (s.request.mode == model::AddMode::kEmbed) {
            ++it;
            continue;
        }
        it = queue_.erase(it);
        s.stream = choose_stream(s, running);
        s.phase = Phase::kPrefill;
        streams_[s.stream].owner = &s;
        ++running;
        if (s.transfer.has_value())
            begin(s, now);  // its bytes should not stay in the region longer than they must
    }
}

// The free stream whose content is the longest prefix of the request, if that is as good as the
// store's; otherwise a free one near the start (rows of neighbouring streams share a pass), rather
// one without content, then the oldest.
std::uint32_t LlamaEngine::choose_stream(const Sequence& s, std::uint32_t running) const {
    std::uint32_t best = kNoStream;
    std::uint32_t best_blocks = 0;
    if (!s.transfer.has_value() && !s.request.prompt_logprobs) {
        for (std::uint32_t i = 0; i < options_.parallel; ++i) {
            if (streams_[i].owner != nullptr) continue;
            const std::uint32_t blocks = common_prefix(streams_[i].resident, s.chain);
            if (blocks > best_blocks) {
                best = i;
                best_blocks = blocks;
            }
        }
        if (best != kNoStream && best_blocks >= store_.match(s.chain)) return best;
    }
    best = kNoStream;
    std::uint32_t seen = 0;
    for (std::uint32_t i = 0; i < options_.parallel && (best == kNoStream || i < running + 4);
         ++i) {
        if (streams_[i].owner != nullptr) continue;
        ++seen;
        if (best == kNoStream) {
            best = i;
            continue;
        }
        const bool empty = streams_[i].resident.empty();
        const bool best_empty = streams_[best].resident.empty();
        if ((empty && !best_empty) ||
            (!empty && !best_empty && streams_[i].used < streams_[best].used))
            best = i;
    }
    CHECK(best != kNoStream && seen > 0);
    return best;
}

// Requests with prompt left to compute, in the order of priority, then arrival.
std::vector<LlamaEngine::Sequence*> LlamaEngine::prefilling() {
    std::vector<Sequence*> out;
    for (const auto& stream : streams_) {
        if (stream.owner != nullptr && stream.owner->phase == Phase::kPrefill)
            out.push_back(stream.owner);
    }
    if (embedding_active_) out.push_back(&sequences_.at(embedding_));
    std::sort(out.begin(), out.end(),
              [&](const Sequence* a, const Sequence* b) { return queue_key(*a) < queue_key(*b); });
    return out;
}

void LlamaEngine::start_embedding() {
    if (embedding_active_) return;
    for (const QueueKey& key : queue_) {
        Sequence& s = sequences_.at(std::get<2>(key));
        if (s.request.mode != model::AddMode::kEmbed) continue;
        s.phase = Phase::kEmbed;
        embedding_ = s.request.id;
        embedding_active_ = true;
        queue_.erase(key);
        return;
    }
}

// First turn of a request: its stream gets whatever prefix is known.
void LlamaEngine::begin(Sequence& s, TimePoint now) {
    s.begun = true;
    s.queue_time = std::max(now - s.submitted, Duration{0});
    if (s.phase == Phase::kPrefill) {
        const Duration started = engine_clock();
        if (s.transfer.has_value()) {
            restore_transfer(s);
            return;  // it may be gone
        }
        restore_prefix(s);
        s.restore_time = engine_clock() - started;
        load_.prefix_hit_tokens += s.cached;
        load_.prefix_miss_tokens += s.prefill_end - s.cached;
    }
    outbox_.started.push_back({s.request.id, s.cached});
}

std::uint32_t LlamaEngine::restorable(const Sequence& s) const {
    return restorable_blocks(s.prefill_end, runtime_->stream_capacity());
}

void LlamaEngine::restore_prefix(Sequence& s) {
    Stream& stream = streams_[s.stream];
    const std::uint32_t most = s.request.prompt_logprobs ? 0 : restorable(s);
    const std::span<const model::BlockKey> chain =
        std::span(s.chain).first(std::min<std::size_t>(most, s.chain.size()));
    const std::uint32_t resident = common_prefix(stream.resident, chain);
    const std::uint32_t stored = store_.match(chain);
    stream.resident.clear();
    if (resident > 0 && resident >= stored) {
        runtime_->truncate(s.stream, resident * kBlockTokens);
        s.past = s.cached = resident * kBlockTokens;
        counters_.resident_hit_tokens += s.cached;
        store_.touch(chain.first(stored));
        return;
    }
    std::vector<BlockView> views;
    for (std::uint32_t i = 0; i < stored; ++i) {
        const std::string* bytes = store_.find(chain[i]);
        auto view = open_block(runtime_->geometry(), *bytes);
        if (!view.ok() || view->key != chain[i] || view->first_token != i * kBlockTokens) {
            ++counters_.corrupt_blocks;
            store_.drop(chain[i]);
            break;
        }
        views.push_back(*view);
    }
    if (!runtime_->restore(s.stream, views)) {
        ++counters_.failed_restores;
        views.clear();
    }
    s.past = s.cached = static_cast<TokenCount>(views.size()) * kBlockTokens;
    counters_.restored_tokens += s.cached;
    store_.touch(chain.first(views.size()));
}

// ---------------------------------------------------------------- prefill

// What plan_step needs to know of a request. One that has not begun yet is described as its restore
// will probably leave it.
PrefillWork LlamaEngine::prefill_work(const Sequence& s) const {
    PrefillWork work{.remaining = s.prefill_end - s.past, .context = s.past};
    if (s.phase == Phase::kEmbed) {
        work.limit = Embedder::kChunk;
        return work;
    }
    work.stream = s.stream;
    if (s.request.prompt_logprobs) {
        work.limit = kBlockTokens;
        return work;
    }
    const std::uint32_t most = restorable(s);
    if (!s.begun) {
        const std::uint32_t known =
            std::max(common_prefix(streams_[s.stream].resident, s.chain), store_.match(s.chain));
        work.context = std::min(known, most) * kBlockTokens;
        work.remaining = s.prefill_end - work.context;
    }
    work.joinable = work.context + options_.ubatch <= runtime_->stream_capacity();
    const std::uint32_t next = work.context / kBlockTokens;
    if (next < s.chain.size() && next < most) work.next_block = s.chain[next];
    return work;
}

// Begins the requests of a shared call, in the order of their streams. One whose restore did not go
// as the plan foresaw waits for a call of its own.
std::vector<LlamaEngine::Sequence*> LlamaEngine::call_members(const std::vector<Sequence*>& waiting,
                                                              const StepPlan& plan) {
    std::vector<Sequence*> members{waiting.front()};
    for (const std::uint32_t i : plan.joined) {
        Sequence& s = *waiting[i];
        if (!s.begun) begin(s, now_);
        const std::uint32_t own = padded_rows(s.prefill_end - s.past, s.past);
        if (own <= plan.rows && (own < kBlockTokens) == (plan.rows < kBlockTokens))
            members.push_back(&s);
    }
    std::sort(members.begin(), members.end(),
              [](const Sequence* a, const Sequence* b) { return a->stream < b->stream; });
    return members;
}

// One call: `rows` rows of each member. Rows beyond a member's prompt are padding, forgotten at
// once.
Result<void> LlamaEngine::run_prefill(std::span<Sequence* const> members, std::uint32_t rows_each) {
    std::vector<Row> rows;
    rows.reserve(members.size() * rows_each);
    TokenCount context = 0;
    std::uint32_t own = 0;
    for (const Sequence* s : members) {
        const TokenCount left = s->prefill_end - s->past;
        const bool score = s->request.prompt_logprobs;
        context = std::max(context, s->past);
        own += std::min(left, rows_each);
        for (std::uint32_t i = 0; i < rows_each; ++i) {
            const bool sampled_next = i + 1 == left && s->prefill_end == s->request.prompt.size();
            rows.push_back({.token = i < left ? s->request.prompt[s->past + i] : TokenId{0},
                            .position = s->past + i,
                            .stream = s->stream,
                            .logits = i < left && (score || sampled_next)});
        }
    }
    const Duration started = engine_clock();
    const DecodeStatus status = runtime_->decode(rows);
    const auto took = engine_clock() - started;
    if (status != DecodeStatus::kOk) return fail_step({members.begin(), members.end()}, status);
    failures_in_row_ = 0;
    since_decode_ += took;
    cost_.observe_prefill(static_cast<std::uint32_t>(rows.size()), context, took);
    ++counters_.prefill_steps;
    counters_.prefill_tokens += own;
    counters_.padding_rows += rows.size() - own;
    for (std::size_t m = 0; m < members.size(); ++m) {
        Sequence& s = *members[m];
        end_chunk(s, std::min(s.prefill_end - s.past, rows_each), m * rows_each, took);
    }
    return {};
}

// The call computed `count` more tokens of the request's prompt, from row `first_row` of it on.
void LlamaEngine::end_chunk(Sequence& s, TokenCount count, std::size_t first_row, Duration took) {
    const TokenCount before = s.past;
    s.past += count;
    s.prefill_time += took;
    runtime_->truncate(s.stream, s.past);
    if (s.request.prompt_logprobs) score_prompt(s, count, before);
    store_new_blocks(s, before);
    if (s.past != s.prefill_end) return;
    const bool sampled_next = s.prefill_end == s.request.prompt.size();
    end_prefill(s,
                sampled_next ? runtime_->logits(first_row + count - 1) : std::span<const float>{});
}

// logprobs[i] belongs to prompt token i and comes from the logits of token i - 1.
void LlamaEngine::score_prompt(Sequence& s, std::uint32_t rows, TokenCount before) {
    if (s.prompt_logprobs.empty()) s.prompt_logprobs.push_back(0.0f);
    for (std::uint32_t i = 0; i < rows && before + i + 1 < s.request.prompt.size(); ++i) {
        const auto logits = runtime_->logits(i);
        const auto next = static_cast<std::size_t>(s.request.prompt[before + i + 1]);
        s.prompt_logprobs.push_back(
            static_cast<float>(static_cast<double>(logits[next]) - log_sum_exp(logits)));
    }
}

// Whole prompt blocks that this chunk completed go to the store.
void LlamaEngine::store_new_blocks(Sequence& s, TokenCount before) {
    if (store_.capacity() == 0) return;
    const auto whole =
        static_cast<std::uint32_t>(std::min<std::size_t>(s.past / kBlockTokens, s.chain.size()));
    for (std::uint32_t i = before / kBlockTokens; i < whole; ++i) {
        if (store_.contains(s.chain[i])) continue;
        if (!store_.put(s.chain, i, sealed_block(s, i, kBlockTokens))) break;
    }
    store_.touch(std::span(s.chain).first(whole));
}

void LlamaEngine::end_prefill(Sequence& s, std::span<const float> logits) {
    using model::EndReason;
    s.phase = Phase::kDecode;
    if (s.request.prompt_logprobs) {
        s.prompt_logprobs.resize(s.request.prompt.size(), 0.0f);
        outbox_.prompt_logprobs.push_back({s.request.id, std::move(s.prompt_logprobs)});
    }
    if (s.request.mode == model::AddMode::kScore) return finish(s, EndReason::kPrefilled);
    if (!logits.empty()) emit(s, logits);
}

Result<void> LlamaEngine::run_embedding(Sequence& s) {
    if (embedder_ == nullptr) {
        auto embedder = Embedder::open(runtime_->model(), options_, options_.context_tokens);
        if (!embedder.ok()) {
            finish(s, model::EndReason::kFailed, std::move(embedder.error()));
            return {};
        }
        embedder_ = std::move(*embedder);
    }
    if (s.past == 0) embedder_->begin();
    const Duration started = engine_clock();
    const auto rows = std::min<TokenCount>(Embedder::kChunk, s.prefill_end - s.past);
    auto fed = embedder_->feed(std::span(s.request.prompt).subspan(s.past, rows));
    const Duration took = engine_clock() - started;
    s.prefill_time += took;
    since_decode_ += took;
    if (!fed.ok()) {
        finish(s, model::EndReason::kFailed, std::move(fed.error()));
        return {};
    }
    s.past += rows;
    if (s.past == s.prefill_end) {
        outbox_.embeddings.push_back({s.request.id, embedder_->finish()});
        finish(s, model::EndReason::kPrefilled);
    }
    return {};
}

// ---------------------------------------------------------------- decode

// Adds a row of no consequence behind each stream of `wanted`, keeping `rows` in stream order.
// Streams without an owner lose their content first: a short row costs less to compute. The caller
// truncates what is returned after the call.
std::vector<LlamaEngine::Padding> LlamaEngine::add_padding(
    std::vector<Row>& rows, const std::vector<std::uint32_t>& wanted) {
    std::vector<Padding> padded;
    for (const std::uint32_t i : wanted) {
        if (streams_[i].owner == nullptr) {
            runtime_->truncate(i, 0);
            streams_[i].resident.clear();
        }
        const TokenCount at = runtime_->length(i);
        if (at >= runtime_->stream_capacity()) continue;
        rows.push_back({.token = 0, .position = at, .stream = i, .logits = false});
        padded.push_back({i, at});
    }
    std::sort(rows.begin(), rows.end(),
              [](const Row& a, const Row& b) { return a.stream < b.stream; });
    counters_.padding_rows += padded.size();
    return padded;
}

Result<void> LlamaEngine::run_decode() {
    std::vector<Row> rows;
    std::vector<Sequence*> running;
    std::vector<StreamState> states(streams_.size());
    TokenCount kv_tokens = 0;
    for (std::uint32_t i = 0; i < streams_.size(); ++i) {
        Sequence* s = streams_[i].owner;
        states[i] = {.decoding = s != nullptr && s->phase == Phase::kDecode,
                     .usable = true,
                     .length = runtime_->length(i)};
        if (!states[i].decoding) continue;
        const auto& prompt = s->request.prompt;
        const bool replays = s->past < prompt.size();
        rows.push_back({.token = replays ? prompt[s->past] : s->written.back(),
                        .position = s->past,
                        .stream = i,
                        .logits = s->past + 1 >= prompt.size()});
        running.push_back(s);
        kv_tokens += s->past + 1;
    }
    const auto own = static_cast<std::uint32_t>(rows.size());
    const auto padded =
        add_padding(rows, padding_rows(states, {.pair_lone_rows = pairs_lone_rows()}));
    const Duration started = engine_clock();
    const DecodeStatus status = runtime_->decode(rows);
    const Duration took = engine_clock() - started;
    for (const Padding& p : padded) runtime_->truncate(p.stream, p.at);
    since_decode_ = Duration{0};
    if (status != DecodeStatus::kOk) return fail_step(running, status);
    failures_in_row_ = 0;
    cost_.observe_decode(own, kv_tokens, took);
    if (options_.threads > 1) {
        wait_.observe(own, took);
        runtime_->wait_by_spinning(wait_.spin());
    }
    ++counters_.decode_steps;
    counters_.decode_rows += own;
    std::size_t row = 0;
    for (Sequence* s : running) {
        while (rows[row].stream != s->stream) ++row;
        ++s->past;
        s->decode_time += took;
        if (rows[row].logits) emit(*s, runtime_->logits(row));  // may end and erase it
    }
    return {};
}

// One llama_decode failed: everybody in it ends with an error, the others go on. Several in a row:
// the engine is broken.
Result<void> LlamaEngine::fail_step(const std::vector<Sequence*>& involved, DecodeStatus status) {
    ++counters_.failed_steps;
    const std::string_view what = status == DecodeStatus::kNoSlot    ? "no free cells"
                                  : status == DecodeStatus::kAborted ? "aborted"
                                                                     : "failed";
    const std::string message =
        fmt::format("llama_decode: {} (llama.cpp: {})", what, recent_llama_log());
    for (Sequence* s : involved) {
        runtime_->truncate(s->stream, 0);
        finish(*s, model::EndReason::kFailed, Error{Code::kInternal, message});
    }
    if (++failures_in_row_ >= kFailuresUntilBroken) {
        return err(Code::kInternal, fmt::format("{} steps in a row failed; the last: {}",
                                                failures_in_row_, message));
    }
    return {};
}

// ---------------------------------------------------------------- tokens

Result<TokenId> LlamaEngine::choose_token(Sequence& s, std::span<const float> logits) {
    const std::uint64_t position = s.request.sample_position + s.written.size();
    if (s.grammar == nullptr || !s.grammar->awake()) {
        const TokenId token = s.sampler.sample(logits, position);
        if (!std::isfinite(logits[static_cast<std::size_t>(token)]))
            return err(Code::kInternal, "the model returned no finite logits");
        if (s.grammar != nullptr) TRY_VOID(s.grammar->accept(token));
        return token;
    }
    ++counters_.masked_tokens;
    TRY(const std::span<const std::uint32_t> allowed, s.grammar->mask());
    masked_.assign(logits.begin(), logits.end());
    for (std::size_t word = 0; word < allowed.size(); ++word) {
        for (std::uint32_t refused = ~allowed[word]; refused != 0; refused &= refused - 1) {
            const std::size_t id = word * 32 + static_cast<std::size_t>(std::countr_zero(refused));
            if (id >= masked_.size()) break;
            masked_[id] = -std::numeric_limits<float>::infinity();
        }
    }
    const TokenId token = s.sampler.sample(masked_, position);
    if (!std::isfinite(masked_[static_cast<std::size_t>(token)]))
        return err(Code::kInternal, "the grammar allows no token here, or no logit is finite");
    TRY_VOID(s.grammar->accept(token));
    return token;
}

void LlamaEngine::emit(Sequence& s, std::span<const float> logits) {
    using model::EndReason;
    auto token = choose_token(s, logits);
    if (!token.ok()) return finish(s, EndReason::kFailed, std::move(token.error()));
    s.sampler.accept(*token);
    s.written.push_back(*token);
    ++s.outputs;
    const auto& r = s.request;
    model::TokenOut out{.id = r.id, .token = *token, .top = {}};
    if (r.logprobs || r.top_logprobs > 0) {
        const double lse = log_sum_exp(logits);
        out.logprob =
            static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(*token)]) - lse);
        out.top = top_logprobs(logits, lse, r.top_logprobs);
    }
    outbox_.tokens.push_back(std::move(out));
    const bool end =
        !r.ignore_eos && std::binary_search(info_.eos_ids.begin(), info_.eos_ids.end(), *token);
    if (r.mode == model::AddMode::kPrefillOnly) {
        if (s.lease == TimePoint{}) s.lease = now_ + options_.hold_lease;
        return finish(s, EndReason::kPrefilled);
    }
    if (end || std::find(r.stop_ids.begin(), r.stop_ids.end(), *token) != r.stop_ids.end())
        return finish(s, EndReason::kStop);
    // Nothing but an end token may follow: the step that would sample it is saved.
    if (s.grammar != nullptr && s.grammar->complete()) return finish(s, EndReason::kStop);
    if (s.outputs >= s.room) return finish(s, EndReason::kLength);
    if (s.grammar != nullptr) s.grammar->prepare();  // while the next step computes
}

// ---------------------------------------------------------------- load

void LlamaEngine::fill_load() {
    load_.running = 0;
    load_.waiting = static_cast<std::uint32_t>(queue_.size() + compiling_.size());
    load_.waiting_uncached_tokens = 0;
    load_.kv_used_tokens = 0;
    load_.kv_total_tokens = info_.kv_capacity_tokens;
    load_.prefix_store_bytes = store_.bytes();
    std::uint32_t rows = 0;
    TokenCount rows_kv = 0;
    for (const auto& stream : streams_) {
        const Sequence* s = stream.owner;
        if (s == nullptr) continue;
        ++load_.running;
        load_.kv_used_tokens += s->past;
        load_.waiting_uncached_tokens += s->prefill_end - std::min(s->past, s->prefill_end);
        if (s->phase == Phase::kDecode) {
            ++rows;
            rows_kv += s->past + 1;
        }
    }
    for (const QueueKey& key : queue_) {
        const Sequence& s = sequences_.at(std::get<2>(key));
        const auto known =
            std::min<TokenCount>(store_.match(s.chain) * kBlockTokens, s.prefill_end);
        load_.waiting_uncached_tokens += s.prefill_end - known;
    }
    const std::vector<Sequence*> waiting = prefilling();
    load_.predicted_step = Duration{0};
    if (rows > 0)
        load_.predicted_step = cost_.decode(rows, rows_kv);
    else if (!waiting.empty()) {
        const Sequence& s = *waiting.front();
        const TokenCount left = s.prefill_end - std::min(s.past, s.prefill_end);
        if (left > 0)
            load_.predicted_step =
                cost_.prefill(padded_rows(prefill_rows(left, options_.ubatch), s.past), s.past);
    }
}

}  // namespace nereid::engine::llama
