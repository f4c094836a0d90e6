// Grammars: which tokens a request's grammar allows next, through llguidance (ffi/guidance). JSON
// schema, regex and Lark; GBNF and EBNF as Lark (text/gbnf.h).
//
// One worker thread per engine compiles grammars and computes the masks of the tokens to come while
// llama_decode runs; a mask that the worker has not begun when it is needed is computed by the
// caller, so nobody waits in a queue. Compiled grammars are kept by SHA-256 of kind and source (the
// vocabulary is the engine's); so are the reasons why others were refused.
//
// A grammar costs memory as its lexer learns states: some 100 kB, 40 MB at most
// (ng_vocab_new's limit); kKept of them are held.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/units.h"
#include "model/engine_port.h"

struct llama_vocab;
struct ng_vocab;
struct ng_matcher;

namespace nereid::engine::llama {

// Kinds that can be enforced: bits of model::GrammarKind.
std::uint8_t grammar_kinds();

// A thread with a queue of jobs. Jobs of one submitter run in order.
class GrammarWorker {
  public:
    GrammarWorker() = default;
    ~GrammarWorker() { stop(); }
    GrammarWorker(const GrammarWorker&) = delete;
    GrammarWorker& operator=(const GrammarWorker&) = delete;
    void post(std::function<void()> job);  // starts the thread when it is the first
    void stop();  // the job that runs is finished, the others are dropped; later ones never run

  private:
    void run();
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> jobs_;
    bool ends_ = false;
    std::thread thread_;
};

// The grammar of one request, at the place where its output is. Methods are for the engine's
// thread, and only once state() is kReady, but for state() and error().
class Grammar {
  public:
    enum class State : std::uint8_t { kCompiling, kReady, kFailed };

    State state() const { return state_.load(std::memory_order_acquire); }
    const Error& error() const { return error_; }  // when kFailed

    // Asleep until the output ends with exactly the trigger's tokens: then everything is allowed.
    bool awake() const { return awake_; }
    // The worker may compute the next mask now.
    void prepare();
    // Bit i of word i / 32: token i is allowed. Valid until accept. kInternal when the grammar
    // cannot go on (its limits).
    Result<std::span<const std::uint32_t>> mask();
    // kInvalidArgument when the grammar refuses the token.
    Result<void> accept(TokenId token);
    // The output is complete: nothing may follow but an end token.
    bool complete() const { return complete_; }

    ~Grammar();
    Grammar(const Grammar&) = delete;
    Grammar& operator=(const Grammar&) = delete;

  private:
    friend class Grammars;
    enum class Mask : std::uint8_t { kNone, kPosted, kRunning, kReady };
    Grammar() = default;
    void compute();  // by whoever moved mask_state_ to kRunning
    Result<void> advance(std::span<const TokenId> tokens);

    std::weak_ptr<Grammar> self_;
    GrammarWorker* worker_ = nullptr;
    ng_matcher* matcher_ = nullptr;
    std::atomic<State> state_ = State::kCompiling;
    Error error_;
    std::vector<TokenId> trigger_;
    std::vector<TokenId> tail_;  // the last trigger_.size() outputs while asleep
    bool awake_ = true;
    bool complete_ = false;
    std::atomic<Mask> mask_state_ = Mask::kNone;
    std::vector<std::uint32_t> words_;
    std::string mask_error_;
};

class Grammars {
  public:
    static constexpr std::size_t kKept = 32;

    // `vocab` must outlive this.
    explicit Grammars(const llama_vocab* vocab) : vocab_(vocab) {}
    ~Grammars();
    Grammars(const Grammars&) = delete;
    Grammars& operator=(const Grammars&) = delete;

    // Returns at once; the worker compiles, then feeds `replay` (what the stream has put out
    // already). Watch state(). A failure is kInvalidArgument or kUnsupported, without param
    // and with a message for the caller of the API that names the keyword; kInternal is a defect.
    std::shared_ptr<Grammar> open(model::GrammarKind kind, std::string source,
                                  std::vector<TokenId> trigger, std::vector<TokenId> replay);
    std::uint64_t compiled() const { return compiled_.load(); }  // not found in the cache

  private:
    struct Kept {
        Digest256 key;
        ng_matcher* matcher = nullptr;  // null: refused
        Error error;
    };
    // By the worker.
    void compile(Grammar& grammar, model::GrammarKind kind, const std::string& source,
                 std::span<const TokenId> replay);
    const Kept& find(model::GrammarKind kind, const std::string& source);
    Kept make(model::GrammarKind kind, const std::string& source);
    Result<void> make_vocabulary();

    const llama_vocab* vocab_;
    ng_vocab* tokens_ = nullptr;
    std::size_t vocab_size_ = 0;
    std::list<Kept> kept_;  // the last used first
    std::atomic<std::uint64_t> compiled_ = 0;
    GrammarWorker worker_;
};

}  // namespace nereid::engine::llama
