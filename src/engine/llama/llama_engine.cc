// LlamaEngine: opening, commands, and how requests leave.
#include "engine/llama/llama_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/check.h"
#include "engine/llama/model_file.h"

namespace nereid::engine::llama {
namespace {

constexpr std::uint32_t kMaxTopLogprobs = 20;

Result<LlamaOptions> complete(LlamaOptions o) {
    const auto bad = [](std::string_view key, std::string_view what) {
        return err(Code::kConfig, fmt::format("engine.{}: {}", key, what));
    };
    if (o.parallel < 1 || o.parallel > kMaxParallel) {
        return bad("parallel", fmt::format("{} is outside 1..{}", o.parallel, kMaxParallel));
    }
    if (o.ubatch < 2 * kBlockTokens || o.ubatch > 2048 || o.ubatch % kBlockTokens != 0) {
        return bad("ubatch", fmt::format("{} is no multiple of 64 within 128..2048", o.ubatch));
    }
    if (o.context_tokens != 0 && o.context_tokens < 2 * kBlockTokens)
        return bad("context_tokens", "less than 128");
    if (o.kv_type != KvType::kF16 && !o.flash_attention) {
        return bad("kv_type", "q8_0 needs engine.flash_attention = true");
    }
    if (o.threads == 0) o.threads = std::max(std::thread::hardware_concurrency(), 1u);
    if (o.threads > 512) return bad("threads", "more than 512");
    if (o.model_id.empty()) o.model_id = std::filesystem::path(o.model_path).stem().string();
    return o;
}

bool out_of(const std::optional<double>& v, double low, double high) {
    return v.has_value() && !(*v >= low && *v <= high);  // NaN is out, too
}

std::optional<Error> refuse_sampling(const model::SamplingParams& p, std::uint32_t vocab_size) {
    const auto bad = [](std::string param, std::string_view range) {
        return Error{Code::kInvalidArgument, fmt::format("{} must be {}", param, range), param};
    };
    if (out_of(p.temperature, 0, 100)) return bad("temperature", "within [0, 100]");
    if (out_of(p.top_p, 1e-9, 1)) return bad("top_p", "within (0, 1]");
    if (out_of(p.min_p, 0, 1)) return bad("min_p", "within [0, 1]");
    if (out_of(p.frequency_penalty, -100, 100))
        return bad("frequency_penalty", "within [-100, 100]");
    if (out_of(p.presence_penalty, -100, 100)) return bad("presence_penalty", "within [-100, 100]");
    if (out_of(p.repetition_penalty, 1e-3, 1e3))
        return bad("repetition_penalty", "within [0.001, 1000]");
    for (const auto& [id, bias] : p.logit_bias) {
        if (id < 0 || static_cast<std::uint32_t>(id) >= vocab_size)
            return bad("logit_bias", "over ids of the vocabulary");
        if (std::isnan(bias)) return bad("logit_bias", "numbers");
    }
    return std::nullopt;
}

}  // namespace

// ---------------------------------------------------------------- opening

Result<std::unique_ptr<LlamaEngine>> LlamaEngine::open(const LlamaOptions& given) {
    TRY(LlamaOptions options, complete(given));
    silence_llama_log();
    TRY(const ModelFile file, inspect_model(options.model_path));
    TRY(const Digest256 digest, digest_file(options.model_path));
    if (options.kv_tokens != 0) {
        const TokenCount each = options.context_tokens != 0 ? options.context_tokens : 8192;
        if (options.kv_tokens < each) {
            return err(Code::kConfig,
                       fmt::format("engine.kv_tokens: {} do not hold one context of {}",
                                   options.kv_tokens, each));
        }
        options.parallel = std::min(options.parallel, options.kv_tokens / each);
    }
    // A lone row needs a neighbour stream for its padding row.
    const std::uint32_t streams = std::max(options.parallel, 2u);
    TRY(auto runtime, Runtime::open(options, streams, options.context_tokens));
    if (options.context_tokens == 0) {
        options.context_tokens =
            std::min<TokenCount>(std::max<TokenCount>(runtime->facts().trained_context, 1), 8192);
    }
    return std::make_unique<LlamaEngine>(options, std::move(runtime), digest);
}

LlamaEngine::LlamaEngine(const LlamaOptions& options, std::unique_ptr<Runtime> runtime,
                         const Digest256& model_digest)
    : options_(options),
      runtime_(std::move(runtime)),
      store_(runtime_->blocks() ? options.prefix_store_bytes : 0),
      prng_(options.seed != 0 ? options.seed : static_cast<std::uint64_t>(engine_clock().count())),
      grammars_(runtime_->vocab()),
      streams_(runtime_->streams()) {
    fill_info(model_digest);
    runtime_->wait_by_spinning(wait_.spin());
}

LlamaEngine::~LlamaEngine() = default;

void LlamaEngine::fill_info(const Digest256& model_digest) {
    const ModelFacts& facts = runtime_->facts();
    info_.engine = "llama.cpp";
    info_.engine_version = "v0.5.0";
    info_.model_id = options_.model_id;
    info_.model_digest = model_digest;
    info_.vocab_size = facts.vocab_size;
    info_.context_tokens = options_.context_tokens;
    info_.eos_ids = facts.end_ids;
    info_.roles = static_cast<std::uint8_t>(model::RoleFlag::kUnified);
    auto& layout = info_.layout;
    layout.family = "llama.cpp/kv-rows-1";
    layout.replay_tokens = kBlockTokens;
    // Under the rule the bits do not depend on the number of threads (README).
    layout.detail = fmt::format("v0.5.0; kv {}; flash attention {}; determinism {}; {}",
                                options_.kv_type == KvType::kF16 ? "f16" : "q8_0",
                                options_.flash_attention ? "on" : "off",
                                options_.determinism ? "on" : "off", facts.build);
    if (runtime_->blocks()) {
        const KvGeometry& g = runtime_->geometry();
        info_.roles |= static_cast<std::uint8_t>(model::RoleFlag::kPrefill) |
                       static_cast<std::uint8_t>(model::RoleFlag::kDecode);
        layout.block_tokens = kBlockTokens;
        layout.block_bytes = g.block_bytes(kBlockTokens);
        ByteCount offset = kBlockHeaderBytes;
        for (const auto& t : g.tensors) {
            const ByteCount length = t.row_bytes * kBlockTokens;
            layout.slices.push_back({t.layer, offset, length, t.value ? "v" : "k"});
            offset += length;
        }
    }
    info_.grammars = grammar_kinds();
    info_.logprobs = true;
    info_.max_top_logprobs = kMaxTopLogprobs;
    info_.penalties = info_.logit_bias = info_.seeds = info_.embeddings = true;
    info_.embedding_width = facts.embedding_width;
    info_.deterministic = options_.determinism;
    info_.replay = options_.determinism ? model::ReplayClass::kExact : model::ReplayClass::kBounded;
    info_.max_running = options_.parallel;
    info_.max_queued = options_.max_queued;
    info_.kv_capacity_tokens = options_.parallel * options_.context_tokens;
}

// ---------------------------------------------------------------- commands

void LlamaEngine::submit(model::Command command, TimePoint now) {
    struct Visitor {
        LlamaEngine& e;
        TimePoint now;
        void operator()(model::AddRequest& c) { e.add(std::move(c), now, std::nullopt); }
        void operator()(model::AdmitDecode& c) {
            model::AddRequest request = c.request;
            e.add(std::move(request), now, std::move(c));
        }
        void operator()(const model::AbortRequest& c) { e.abort(c.id); }
        void operator()(const model::ImportPrefix& c) { e.import_prefix(c, now); }
        void operator()(const model::ExportBlocks& c) { e.export_blocks(c); }
        void operator()(const model::Pin& c) { e.pin(c, now); }
        void operator()(const model::Release& c) { e.release(c.id); }
        void operator()(const model::Drain&) { e.draining_ = true; }
        void operator()(const model::MapRegion& c) { e.map_region(c); }
    };
    std::visit(Visitor{*this, now}, command);
}

std::optional<Error> LlamaEngine::refuse(const model::AddRequest& r) const {
    const auto bad = [](Code code, std::string message, std::string param = {}) {
        return Error{code, std::move(message), std::move(param)};
    };
    if (draining_) return bad(Code::kOverloaded, "the engine is draining");
    if (r.prompt.empty()) return bad(Code::kInvalidArgument, "the prompt is empty", "prompt");
    for (const TokenId id : r.prompt) {
        if (id < 0 || static_cast<std::uint32_t>(id) >= info_.vocab_size) {
            return bad(Code::kInvalidArgument,
                       fmt::format("token id {} is outside the vocabulary", id), "prompt");
        }
    }
    const TokenCount context = info_.context_tokens;
    if (r.prompt.size() >=
        context + (r.mode == model::AddMode::kEmbed || r.mode == model::AddMode::kScore ? 1 : 0)) {
        return bad(Code::kContextLength,
                   fmt::format("{} prompt tokens leave no room in a context of {}", r.prompt.size(),
                               context));
    }
    if (r.generated >= r.prompt.size())
        return bad(Code::kInvalidArgument, "generated must be less than the prompt", "generated");
    if (r.mode == model::AddMode::kUnified && r.max_tokens == 0)
        return bad(Code::kInvalidArgument, "max_tokens is 0", "max_tokens");
    if (!r.images.empty() || !r.image_bytes.empty())
        return bad(Code::kUnsupported, "this engine takes no images");
    if (!r.adapter.empty()) return bad(Code::kUnsupported, "this engine takes no adapters");
    if (r.grammar_kind != model::GrammarKind::kNone &&
        (grammar_kinds() & static_cast<std::uint8_t>(r.grammar_kind)) == 0) {
        return bad(Code::kUnsupported, "this engine knows no such kind of grammar", "grammar");
    }
    if (r.top_logprobs > kMaxTopLogprobs) {
        return bad(Code::kInvalidArgument, fmt::format("top_logprobs is over {}", kMaxTopLogprobs),
                   "top_logprobs");
    }
    return refuse_sampling(r.sampling, info_.vocab_size);
}

void LlamaEngine::add(model::AddRequest request, TimePoint now,
                      std::optional<model::AdmitDecode> admit) {
    const RequestId id = request.id;
    const auto refused = [&](Error error) {
        outbox_.finished.push_back({.id = id,
                                    .reason = model::EndReason::kFailed,
                                    .prompt_tokens = static_cast<TokenCount>(request.prompt.size()),
                                    .error = std::move(error)});
        drop_import(id);
    };
    if (const auto it = sequences_.find(id); it != sequences_.end()) {
        // The sender has lost track of its ids; each id ends exactly once.
        if (it->second.phase != Phase::kHeld)
            finish(it->second, model::EndReason::kFailed,
                   Error{Code::kConflict, "this id was added twice"});
        return;
    }
    if (auto error = refuse(request)) return refused(std::move(*error));
    if (admit.has_value() && !runtime_->blocks()) {
        return refused({Code::kUnsupported, "this model's KV cannot be moved"});
    }
    std::size_t room = options_.max_queued;
    for (std::uint32_t i = 0; i < options_.parallel; ++i)
        room += streams_[i].owner == nullptr ? 1 : 0;
    const auto fetching = static_cast<std::size_t>(std::ranges::count_if(
        sequences_, [](const auto& entry) { return entry.second.phase == Phase::kFetching; }));
    const std::size_t queued = queue_.size() + compiling_.size() + fetching;
    if (queued >= room)
        return refused({Code::kOverloaded, fmt::format("{} requests are queued", queued)});
    Sequence s;
    s.arrival = arrivals_++;
    s.submitted = now;
    const bool samples =
        request.mode == model::AddMode::kUnified || request.mode == model::AddMode::kPrefillOnly;
    s.prefill_end =
        static_cast<TokenCount>(request.prompt.size()) - (samples ? request.generated : 0);
    s.room = std::min(request.max_tokens,
                      info_.context_tokens - static_cast<TokenCount>(request.prompt.size()));
    const std::span<const TokenId> prompt(request.prompt);
    if (info_.layout.block_tokens != 0 && request.mode != model::AddMode::kEmbed) {
        s.chain =
            model::block_chain(request.kv_namespace, prompt.first(s.prefill_end), kBlockTokens);
    }
    s.sampler =
        Sampler(request.sampling, prng_.next(), prompt.first(s.prefill_end), info_.vocab_size);
    std::vector<TokenId> outputs;  // what the stream has put out already
    if (samples) outputs.assign(prompt.begin() + s.prefill_end, prompt.end());
    for (const TokenId generated : outputs) s.sampler.accept(generated);
    if (admit.has_value()) {
        s.transfer.emplace(admit->offset, admit->length);
        s.written.push_back(admit->first_token);
        s.sampler.accept(admit->first_token);
        outputs.push_back(admit->first_token);
    }
    if (request.grammar_kind != model::GrammarKind::kNone && samples) {
        s.grammar = grammars_.open(request.grammar_kind, std::move(request.grammar),
                                   std::move(request.grammar_trigger), std::move(outputs));
        s.phase = Phase::kCompiling;
        compiling_.push_back(id);
        look_again_ = now + kCompilePoll;
    }
    s.request = std::move(request);
    auto& placed = sequences_.emplace(id, std::move(s)).first->second;
    start_fetch(placed);
    if (placed.fetching && placed.phase == Phase::kQueued) placed.phase = Phase::kFetching;
    if (placed.phase == Phase::kQueued) queue_.insert(queue_key(placed));
}

bool LlamaEngine::compiled() const {
    if (tier_ != nullptr && tier_->has_fetched()) return true;
    return std::ranges::any_of(compiling_, [this](RequestId id) {
        return sequences_.at(id).grammar->state() != Grammar::State::kCompiling;
    });
}

// Requests whose grammar is ready and whose prefix has come are queued, in their order of arrival.
void LlamaEngine::admit_compiled() {
    take_fetched();
    const auto waiting = std::exchange(compiling_, {});
    for (const RequestId id : waiting) {
        Sequence& s = sequences_.at(id);
        switch (s.grammar->state()) {
            case Grammar::State::kCompiling:
                compiling_.push_back(id);
                break;
            case Grammar::State::kReady:
                s.phase = s.fetching ? Phase::kFetching : Phase::kQueued;
                if (!s.fetching) queue_.insert(queue_key(s));
                break;
            case Grammar::State::kFailed:
                ++counters_.refused_grammars;
                finish(s, model::EndReason::kFailed, s.grammar->error());
                break;
        }
    }
}

void LlamaEngine::abort(RequestId id) {
    drop_import(id);
    const auto it = sequences_.find(id);
    if (it == sequences_.end() || it->second.phase == Phase::kHeld) return;
    it->second.lease = {};  // nothing is held for a request that nobody wants
    finish(it->second, model::EndReason::kAborted);
}

void LlamaEngine::pin(const model::Pin& pin, TimePoint now) {
    const auto it = sequences_.find(pin.id);
    if (it == sequences_.end() || it->second.phase == Phase::kEmbed) {
        outbox_.kv_failed.push_back({pin.id, {Code::kNotFound, "no such request to pin"}});
        return;
    }
    it->second.lease = now + pin.lease;
}

void LlamaEngine::release(RequestId id) {
    drop_import(id);
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) return;
    it->second.lease = {};
    if (it->second.phase == Phase::kHeld) erase(id);
}

void LlamaEngine::map_region(const model::MapRegion& command) {
    auto region = Region::map(command.path, command.size);
    if (!region.ok()) {
        outbox_.kv_failed.push_back({RequestId{}, std::move(region.error())});
        return;
    }
    region_ = std::move(*region);
}

// ---------------------------------------------------------------- leaving

// Reports the end. The stream is freed unless the KV is to be held.
void LlamaEngine::finish(Sequence& s, model::EndReason reason, std::optional<Error> error) {
    outbox_.finished.push_back({.id = s.request.id,
                                .reason = reason,
                                .prompt_tokens = static_cast<TokenCount>(s.request.prompt.size()),
                                .cached_tokens = s.cached,
                                .output_tokens = s.outputs,
                                .queue_time = s.queue_time,
                                .restore_time = s.restore_time,
                                .prefill_time = s.prefill_time,
                                .decode_time = s.decode_time,
                                .error = std::move(error)});
    drop_import(s.request.id);
    const bool good = reason != model::EndReason::kFailed && reason != model::EndReason::kAborted;
    if (good && s.stream != kNoStream && s.lease != TimePoint{}) {
        s.phase = Phase::kHeld;
        return;
    }
    erase(s.request.id);
}

// The stream keeps the prompt's whole blocks until somebody else needs it.
void LlamaEngine::leave_stream(Sequence& s) {
    Stream& stream = streams_[s.stream];
    const auto& r = s.request;
    const bool failed_midway = runtime_->length(s.stream) < std::min(s.past, s.prefill_end);
    stream.owner = nullptr;
    stream.used = steps_;
    stream.resident.clear();
    if (runtime_->blocks() && !failed_midway) {
        if (!options_.determinism) {  // what decode wrote is shared, too
            std::vector<TokenId> all = r.prompt;
            all.insert(all.end(), s.written.begin(), s.written.end());
            all.resize(std::min<std::size_t>(all.size(), s.past));
            s.chain = model::block_chain(r.kv_namespace, all, kBlockTokens);
            store_new_blocks(s, std::min(s.past, s.prefill_end));
        }
        const auto whole = std::min<std::size_t>(s.past / kBlockTokens, s.chain.size());
        stream.resident.assign(s.chain.begin(),
                               s.chain.begin() + static_cast<std::ptrdiff_t>(whole));
    }
    runtime_->truncate(s.stream, static_cast<TokenCount>(stream.resident.size()) * kBlockTokens);
    s.stream = kNoStream;
}

void LlamaEngine::erase(RequestId id) {
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) return;
    Sequence& s = it->second;
    if (s.phase == Phase::kQueued) queue_.erase(queue_key(s));
    if (s.phase == Phase::kCompiling) std::erase(compiling_, id);
    if (s.fetching) tier_->cancel(id);
    if (s.phase == Phase::kEmbed && embedding_active_ && embedding_ == id)
        embedding_active_ = false;
    if (s.stream != kNoStream) leave_stream(s);
    sequences_.erase(it);
}

}  // namespace nereid::engine::llama
