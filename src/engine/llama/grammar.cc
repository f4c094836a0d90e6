#include "engine/llama/grammar.h"

#include <cmath>
#include <exception>
#include <limits>

#include <llama.h>
#include "engine/llama/runtime.h"

namespace nereid::engine::llama {
namespace {

// The parser descends once per parenthesis; the bounds keep its stack and the number of rules
// small.
constexpr std::size_t kMaxGrammarBytes = 256u << 10;
constexpr int kMaxNesting = 200;

bool nested_too_deep(const std::string& text) {
    int depth = 0;
    for (const char c : text) {
        if (c == '(') ++depth;
        if (c == ')' && depth > 0) --depth;
        if (depth > kMaxNesting) return true;
    }
    return false;
}

}  // namespace

Result<std::unique_ptr<Grammar>> Grammar::create(const llama_vocab* vocab, const std::string& gbnf,
                                                 std::vector<TokenId> trigger) {
    if (gbnf.empty()) return err(Code::kInvalidArgument, "the grammar is empty", "grammar");
    if (gbnf.size() > kMaxGrammarBytes || nested_too_deep(gbnf) ||
        gbnf.find('\0') != std::string::npos) {
        return err(Code::kInvalidArgument, "the grammar is too large or nested too deeply",
                   "grammar");
    }
    llama_sampler* sampler = nullptr;
    try {
        sampler = llama_sampler_init_grammar(vocab, gbnf.c_str(), "root");
    } catch (const std::exception&) {
        sampler = nullptr;
    }
    if (sampler == nullptr) {
        return err(
            Code::kInvalidArgument,
            "not a GBNF grammar with a rule \"root\" (llama.cpp: " + recent_llama_log() + ")",
            "grammar");
    }
    return std::unique_ptr<Grammar>(new Grammar(sampler, std::move(trigger)));
}

Grammar::Grammar(llama_sampler* sampler, std::vector<TokenId> trigger)
    : sampler_(sampler), trigger_(std::move(trigger)), awake_(trigger_.empty()) {}

Grammar::~Grammar() { llama_sampler_free(sampler_); }

bool Grammar::allows(TokenId token) {
    if (!awake_) return true;
    llama_token_data one{.id = token, .logit = 0.0f, .p = 0.0f};
    llama_token_data_array array{.data = &one, .size = 1, .selected = -1, .sorted = false};
    llama_sampler_apply(sampler_, &array);
    return std::isfinite(one.logit);
}

void Grammar::mask(std::span<float> logits) {
    if (!awake_) return;
    std::vector<llama_token_data> all(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
        all[i] = {static_cast<llama_token>(i), 0.0f, 0.0f};
    llama_token_data_array array{
        .data = all.data(), .size = all.size(), .selected = -1, .sorted = false};
    llama_sampler_apply(sampler_, &array);
    for (const auto& t : all) {
        if (!std::isfinite(t.logit))
            logits[static_cast<std::size_t>(t.id)] = -std::numeric_limits<float>::infinity();
    }
}

Result<void> Grammar::accept(TokenId token) {
    if (!awake_) {
        tail_.push_back(token);
        if (tail_.size() > trigger_.size()) tail_.erase(tail_.begin());
        awake_ = tail_ == trigger_;
        return {};
    }
    try {
        llama_sampler_accept(sampler_, token);
    } catch (const std::exception& e) {
        return err(Code::kInternal, std::string("grammar: ") + e.what());
    }
    return {};
}

}  // namespace nereid::engine::llama
