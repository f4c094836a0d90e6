#include "engine/llama/grammar.h"

#include <llama.h>
#include <nereid_guidance.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "text/gbnf.h"

namespace nereid::engine::llama {
namespace {

// The message of a call that failed, and its code as ours.
Error take_error(std::int32_t code, char* message) {
    const std::string text = message == nullptr ? "" : message;
    ng_string_free(message);
    switch (code) {
        case NG_UNSUPPORTED:
            return {Code::kUnsupported, text, "grammar"};
        case NG_INVALID:
        case NG_LIMIT:
        case NG_REFUSED:
            return {Code::kInvalidArgument, text, "grammar"};
        default:
            return {Code::kInternal, "llguidance: " + text, "grammar"};
    }
}

std::string piece(const llama_vocab* vocab, TokenId id) {
    std::string text(32, '\0');
    std::int32_t size = llama_token_to_piece(vocab, id, text.data(), 32, 0, true);
    if (size < 0) {
        text.resize(static_cast<std::size_t>(-size));
        size = llama_token_to_piece(vocab, id, text.data(), -size, 0, true);
    }
    text.resize(static_cast<std::size_t>(std::max(size, 0)));
    return text;
}

}  // namespace

std::uint8_t grammar_kinds() {
    using model::GrammarKind;
    std::uint8_t bits = 0;
    for (const GrammarKind kind : {GrammarKind::kGbnf, GrammarKind::kJsonSchema,
                                   GrammarKind::kRegex, GrammarKind::kLark, GrammarKind::kEbnf})
        bits = static_cast<std::uint8_t>(bits | static_cast<std::uint8_t>(kind));
    return bits;
}

// ---------------------------------------------------------------- GrammarWorker

void GrammarWorker::stop() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void GrammarWorker::post(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
        if (!ends_ && !thread_.joinable()) thread_ = std::thread([this] { run(); });
    }
    wake_.notify_one();
}

void GrammarWorker::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        wake_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
        if (ends_) return;
        const std::function<void()> job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
        lock.lock();
    }
}

// ---------------------------------------------------------------- Grammar

Grammar::~Grammar() { ng_matcher_free(matcher_); }

void Grammar::prepare() {
    if (!awake_ || complete_ || mask_state_.load() != Mask::kNone) return;
    mask_state_.store(Mask::kPosted);
    worker_->post([weak = self_] {
        const std::shared_ptr<Grammar> grammar = weak.lock();
        Mask posted = Mask::kPosted;
        if (grammar && grammar->mask_state_.compare_exchange_strong(posted, Mask::kRunning))
            grammar->compute();
    });
}

void Grammar::compute() {
    char* message = nullptr;
    const std::int32_t code = ng_mask(matcher_, words_.data(), words_.size(), &message);
    mask_error_ = code == NG_OK ? "" : take_error(code, message).message;
    mask_state_.store(Mask::kReady, std::memory_order_release);
    mask_state_.notify_all();
}

Result<std::span<const std::uint32_t>> Grammar::mask() {
    Mask state = Mask::kNone;
    Mask posted = Mask::kPosted;
    if (mask_state_.compare_exchange_strong(state, Mask::kRunning) ||
        mask_state_.compare_exchange_strong(posted, Mask::kRunning)) {
        compute();
    } else {
        mask_state_.wait(Mask::kRunning, std::memory_order_acquire);
    }
    if (!mask_error_.empty())
        return err(Code::kInternal, "the grammar cannot go on: " + mask_error_);
    return std::span<const std::uint32_t>(words_);
}

Result<void> Grammar::advance(std::span<const TokenId> tokens) {
    std::size_t used = 0;
    while (used < tokens.size() && !awake_) {
        tail_.push_back(tokens[used++]);
        if (tail_.size() > trigger_.size()) tail_.erase(tail_.begin());
        awake_ = tail_ == trigger_;
    }
    const std::span<const TokenId> rest = tokens.subspan(used);
    if (rest.empty()) return {};
    std::vector<std::uint32_t> ids(rest.begin(), rest.end());
    std::size_t accepted = 0;
    char* message = nullptr;
    std::int32_t code = ng_accept(matcher_, ids.data(), ids.size(), &accepted, &message);
    if (code != NG_OK) return take_error(code, message);
    std::int32_t stopped = 0;
    code = ng_stopped(matcher_, &stopped, &message);
    if (code != NG_OK) return take_error(code, message);
    complete_ = stopped != 0;
    mask_state_.store(Mask::kNone);
    return {};
}

Result<void> Grammar::accept(TokenId token) { return advance(std::span(&token, 1)); }

// ---------------------------------------------------------------- Grammars

Grammars::~Grammars() {
    worker_.stop();  // a job may be using them
    for (const Kept& kept : kept_) ng_matcher_free(kept.matcher);
    ng_vocab_free(tokens_);
}

std::shared_ptr<Grammar> Grammars::open(model::GrammarKind kind, std::string source,
                                        std::vector<TokenId> trigger, std::vector<TokenId> replay) {
    std::shared_ptr<Grammar> grammar(new Grammar());
    grammar->self_ = grammar;
    grammar->worker_ = &worker_;
    grammar->awake_ = trigger.empty();
    grammar->trigger_ = std::move(trigger);
    worker_.post([this, grammar, kind, source = std::move(source), replay = std::move(replay)] {
        compile(*grammar, kind, source, replay);
    });
    return grammar;
}

void Grammars::compile(Grammar& grammar, model::GrammarKind kind, const std::string& source,
                       std::span<const TokenId> replay) {
    const auto fail = [&](Error error) {
        error.param.clear();  // which field of a request it came from only the sender knows
        grammar.error_ = std::move(error);
        grammar.state_.store(Grammar::State::kFailed, std::memory_order_release);
    };
    const Kept& kept = find(kind, source);
    if (kept.matcher == nullptr) return fail(kept.error);
    char* message = nullptr;
    const std::int32_t code = ng_matcher_clone(kept.matcher, &grammar.matcher_, &message);
    if (code != NG_OK) return fail(take_error(code, message));
    grammar.words_.resize((vocab_size_ + 31) / 32);
    auto replayed = grammar.advance(replay);
    if (!replayed.ok()) {
        return fail(
            {Code::kInvalidArgument, "the generated tokens do not follow the grammar", "grammar"});
    }
    grammar.state_.store(Grammar::State::kReady, std::memory_order_release);
}

const Grammars::Kept& Grammars::find(model::GrammarKind kind, const std::string& source) {
    const std::string keyed = std::string(1, static_cast<char>(kind)) + source;
    const Digest256 key =
        sha256({reinterpret_cast<const std::uint8_t*>(keyed.data()), keyed.size()});
    const auto it = std::ranges::find_if(kept_, [&](const Kept& kept) { return kept.key == key; });
    if (it != kept_.end()) {
        kept_.splice(kept_.begin(), kept_, it);
        return kept_.front();
    }
    kept_.push_front(make(kind, source));
    kept_.front().key = key;
    ++compiled_;
    if (kept_.size() > kKept) {
        ng_matcher_free(kept_.back().matcher);
        kept_.pop_back();
    }
    return kept_.front();
}

Grammars::Kept Grammars::make(model::GrammarKind kind, const std::string& source) {
    Kept kept;
    if (auto made = make_vocabulary(); !made.ok()) {
        kept.error = std::move(made.error());
        return kept;
    }
    std::int32_t as = NG_LARK;
    std::string lark;
    switch (kind) {
        case model::GrammarKind::kJsonSchema:
            as = NG_JSON_SCHEMA;
            break;
        case model::GrammarKind::kRegex:
            as = NG_REGEX;
            break;
        case model::GrammarKind::kLark:
        case model::GrammarKind::kNone:
            break;
        case model::GrammarKind::kGbnf:
        case model::GrammarKind::kEbnf: {
            auto translated = text::lark_of_gbnf(source);
            if (!translated.ok()) {
                kept.error = std::move(translated.error());
                return kept;
            }
            lark = std::move(*translated);
            break;
        }
    }
    const std::string& given = lark.empty() ? source : lark;
    char* message = nullptr;
    const std::int32_t code =
        ng_compile(tokens_, as, given.data(), given.size(), &kept.matcher, &message);
    if (code != NG_OK) kept.error = take_error(code, message);
    return kept;
}

// Reads every token's bytes once, when the first grammar comes.
Result<void> Grammars::make_vocabulary() {
    if (tokens_ != nullptr) return {};
    const std::int32_t count = llama_vocab_n_tokens(vocab_);
    std::string bytes;
    std::vector<std::uint64_t> ends;
    std::vector<std::uint8_t> special;
    std::vector<std::uint32_t> eos;
    for (TokenId id = 0; id < count; ++id) {
        const auto attributes = static_cast<std::uint32_t>(llama_vocab_get_attr(vocab_, id));
        const bool control =
            (attributes & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0;
        bytes += piece(vocab_, id);
        ends.push_back(bytes.size());
        special.push_back(control ? 1 : 0);
        if (llama_vocab_is_eog(vocab_, id)) eos.push_back(static_cast<std::uint32_t>(id));
    }
    char* message = nullptr;
    const std::int32_t code = ng_vocab_new(
        static_cast<std::uint32_t>(count), reinterpret_cast<const std::uint8_t*>(bytes.data()),
        ends.data(), special.data(), eos.data(), eos.size(), &tokens_, &message);
    if (code != NG_OK) return take_error(code, message);
    vocab_size_ = static_cast<std::size_t>(count);
    return {};
}

}  // namespace nereid::engine::llama
