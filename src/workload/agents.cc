// agents() of generators.h.
//
// A session's context is a list of segments, each with a seed of its own: the system prompt, whose
// seed is common, then what each turn appended. The id of a block is keyed by the segment of its
// last token: an append changes no whole block before it, and two sessions share exactly the whole
// blocks of their common system prompt.
#include <fmt/format.h>

#include <algorithm>
#include <queue>

#include "base/check.h"
#include "base/distributions.h"
#include "workload/draws.h"
#include "workload/generators.h"

namespace nereid::workload {

namespace {

class Agents final : public Source {
  public:
    Agents(const AgentSpec& spec, const Arrivals& arrivals, Prng prng)
        : spec_(spec), arrivals_(arrivals), prng_(prng), systems_(std::max(1U, spec.systems), 1.0) {
        next_session();
    }

    Duration next_arrival() override {
        const Duration turn = turns_.empty() ? kNever : turns_.top().at;
        return std::min(turn, session_at_);
    }
    bool exhausted() override { return running_ == 0 && session_at_ == kNever; }
    TokenCount block_tokens() const override { return spec_.block_tokens; }

    void take(Request& out) override {
        CHECK(next_arrival() != kNever);
        if (turns_.empty() || session_at_ <= turns_.top().at) begin_session();
        const Turn turn = turns_.top();
        turns_.pop();
        Session& s = sessions_[turn.slot];
        s.output = std::max<TokenCount>(1, draw_tokens(spec_.output, s.prng));
        out.id = taken_++;
        out.arrival = turn.at;
        out.input_tokens = s.context;
        out.output_tokens = s.output;
        out.session = s.id;
        out.turn = s.turn;
        out.last_turn = s.turn + 1 >= s.turns;
        out.ttl = TtlClass::kAgent;
        out.origin = 0;
        out.tag = turn.slot;
        out.images.clear();
        const TokenCount blocks = (s.context - 1) / spec_.block_tokens + 1;
        extend(s, blocks);
        out.blocks.assign(s.chain.begin(), s.chain.begin() + blocks);
    }

    void finished(const Request& request, Duration at) override {
        const auto slot = static_cast<std::size_t>(request.tag);
        CHECK(slot < sessions_.size() && sessions_[slot].output != 0);
        Session& s = sessions_[slot];
        const double think_ms = draw(spec_.tool_ms, s.prng);
        const Duration next = at + Duration(static_cast<std::int64_t>(think_ms * 1e6));
        if (++s.turn >= s.turns || next >= spec_.end) return end_session(slot);
        append(s, s.output);
        append(s, std::max<TokenCount>(1, draw_tokens(spec_.append, s.prng)));
        s.output = 0;
        if (s.context > spec_.max_context) compact(s);
        turns_.push({next, slot});
    }

    std::string describe() const override {
        return fmt::format("agents, {:g} sessions/s of {:g} turns, closed loop, seed {}",
                           spec_.arrivals.per_second, spec_.turns.mean, spec_.seed);
    }

  private:
    struct Segment {
        TokenCount begin;
        std::uint64_t seed;
    };
    struct Session {
        std::uint64_t id = 0;
        Prng prng{0};
        std::uint32_t system = 0;
        std::uint32_t turn = 0, turns = 0;
        TokenCount context = 0;
        TokenCount output = 0;  // of the running turn; 0 between turns
        std::vector<Segment> segments;
        std::vector<std::uint64_t> chain;  // ids of the prompt so far
    };
    struct Turn {
        Duration at;
        std::size_t slot;
        bool operator>(const Turn& o) const { return at != o.at ? at > o.at : slot > o.slot; }
    };

    void next_session() {
        session_at_ = kNever;
        if (spec_.sessions != 0 && begun_ >= spec_.sessions) return;
        const Duration at = arrivals_.next();
        if (at < spec_.end) session_at_ = at;
    }

    void begin_session() {
        std::size_t slot = sessions_.size();
        if (free_.empty()) {
            sessions_.emplace_back();
        } else {
            slot = free_.back();
            free_.pop_back();
        }
        Session& s = sessions_[slot];
        s = Session{};
        s.id = ++begun_;
        s.prng = prng_.fork();
        s.system = systems_.draw(s.prng);
        s.turns = std::max<TokenCount>(1, draw_tokens(spec_.turns, s.prng));
        system_prompt(s);
        append(s, std::max<TokenCount>(1, draw_tokens(spec_.task, s.prng)));
        if (s.context > spec_.max_context) compact(s);
        ++running_;
        turns_.push({session_at_, slot});
        next_session();
    }
    void end_session(std::size_t slot) {
        sessions_[slot] = Session{};
        free_.push_back(slot);
        --running_;
    }
    void system_prompt(Session& s) const {
        s.segments.clear();
        s.chain.clear();
        s.context = spec_.system_tokens;
        if (spec_.system_tokens != 0) s.segments.push_back({0, keyed_u64(spec_.seed, s.system)});
    }
    void append(Session& s, TokenCount tokens) {
        // The last block, when partial, gets another id now.
        s.chain.resize(std::min<std::size_t>(s.chain.size(), s.context / spec_.block_tokens));
        s.segments.push_back({s.context, s.prng.next()});
        s.context += tokens;
    }
    void compact(Session& s) {
        system_prompt(s);
        append(s, spec_.compacted_tokens);
    }
    void extend(Session& s, TokenCount blocks) const {
        while (s.chain.size() < blocks) {
            const auto n = static_cast<TokenCount>(s.chain.size());
            const TokenCount last = std::min(s.context, (n + 1) * spec_.block_tokens) - 1;
            const auto after = std::ranges::upper_bound(s.segments, last, {}, &Segment::begin);
            s.chain.push_back(keyed_u64(std::prev(after)->seed, n));
        }
    }

    AgentSpec spec_;
    Arrivals arrivals_;
    Prng prng_;
    Zipf systems_;
    Duration session_at_ = kNever;
    std::uint64_t begun_ = 0, taken_ = 0;
    std::size_t running_ = 0;
    std::vector<Session> sessions_;
    std::vector<std::size_t> free_;
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
};

}  // namespace

Result<std::unique_ptr<Source>> agents(const AgentSpec& spec) {
    for (const LengthSpec* l : {&spec.turns, &spec.task, &spec.append, &spec.output})
        TRY_VOID(validate_tokens(*l));
    TRY_VOID(validate(spec.tool_ms));
    if (spec.block_tokens == 0)
        return err(Code::kInvalidArgument, "block_tokens: expected at least 1", "block_tokens");
    if (spec.compacted_tokens == 0 || spec.system_tokens > 100'000'000 ||
        spec.max_context < spec.system_tokens + spec.compacted_tokens)
        return err(Code::kInvalidArgument,
                   "max_context: expected at least system_tokens + compacted_tokens",
                   "max_context");
    Prng prng(spec.seed);
    Prng for_arrivals = prng.fork();
    TRY(const Arrivals arrivals, Arrivals::make(spec.arrivals, for_arrivals));
    return std::make_unique<Agents>(spec, arrivals, prng);
}

}  // namespace nereid::workload
