// replay() of trace.h: copies, repeats, speed, jitter over one trace in memory.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "workload/trace.h"

namespace nereid::workload {

namespace {

class Replay final : public Source {
  public:
    Replay(const Trace& trace, const ReplayOptions& options) : trace_(trace), options_(options) {
        CHECK(options.speed > 0 && options.copies >= 1 && options.repeats >= 1);
        order_.reserve(trace.size());
        Prng prng(options.seed);
        for (std::uint32_t i = 0; i < trace.size(); ++i) {
            order_.push_back({trace.entries()[i].arrival + below(options.jitter, prng), i});
        }
        std::ranges::sort(order_, {}, [](const Slot& s) { return std::pair(s.at, s.entry); });
        last_turns();
        for (std::uint32_t c = 0; c < options.copies; ++c) {
            offsets_.push_back(c == 0 ? Duration{0} : below(options.copy_offset, prng));
            if (!order_.empty()) push(c, 0);
        }
        // A repeat begins when the one before has ended, a mean gap later.
        period_ = order_.empty() ? Duration{0}
                                 : order_.back().at +
                                       order_.back().at / static_cast<std::int64_t>(order_.size());
    }

    Duration next_arrival() override { return heap_.empty() ? kNever : heap_.top().at; }
    bool exhausted() override { return heap_.empty(); }
    TokenCount block_tokens() const override { return trace_.block_tokens(); }

    void take(Request& out) override {
        CHECK(!heap_.empty());
        const Head head = heap_.top();
        heap_.pop();
        const std::uint64_t in_copy = head.index % order_.size();
        const std::uint32_t i = order_[static_cast<std::size_t>(in_copy)].entry;
        const Trace::Entry& e = trace_.entries()[i];
        // Which instance of the trace this is; instance 0 keeps the ids of the file.
        const std::uint64_t instance =
            std::uint64_t{head.copy} * options_.repeats + head.index / order_.size();
        out.id = next_id_++;
        out.arrival = head.at;
        out.input_tokens = e.input_tokens;
        out.output_tokens = e.output_tokens;
        out.session = e.session == 0 ? 0 : distinct(e.session, instance);
        out.turn = e.turn;
        out.last_turn = last_[i];
        out.ttl = TtlClass::kChat;
        out.origin = 0;
        out.images.clear();
        const auto chain = trace_.blocks(e);
        out.blocks.resize(chain.size());
        for (std::size_t n = 0; n < chain.size(); ++n) out.blocks[n] = distinct(chain[n], instance);
        push(head.copy, head.index + 1);
    }

    std::string describe() const override {
        return fmt::format("trace of {} requests over {:.0f} s, {} copies, {} repeats, speed {:g}",
                           trace_.size(), to_seconds(trace_.span()), options_.copies,
                           options_.repeats, options_.speed);
    }

  private:
    struct Slot {
        Duration at;
        std::uint32_t entry;
    };
    struct Head {
        Duration at;  // workload time
        std::uint32_t copy;
        std::uint64_t index;
        bool operator>(const Head& o) const {
            return at != o.at ? at > o.at : copy != o.copy ? copy > o.copy : index > o.index;
        }
    };

    static Duration below(Duration most, Prng& prng) {
        return most.count() <= 0 ? Duration{0}
                                 : Duration(static_cast<std::int64_t>(
                                       prng.below(static_cast<std::uint64_t>(most.count()))));
    }
    // Distinct instances get unrelated ids (64 bits: 10^8 ids collide with probability 3e-4).
    static std::uint64_t distinct(std::uint64_t id, std::uint64_t instance) {
        return instance == 0 ? id : keyed_u64(instance, id) | (std::uint64_t{1} << 63);
    }
    void push(std::uint32_t copy, std::uint64_t index) {
        if (index >= order_.size() * options_.repeats) return;
        const auto repeat = static_cast<std::int64_t>(index / order_.size());
        const Duration in_trace = order_[static_cast<std::size_t>(index % order_.size())].at +
                                  offsets_[copy] + period_ * repeat;
        const double ns = static_cast<double>(in_trace.count()) / options_.speed;
        if (ns >= static_cast<double>(options_.end.count())) return;  // sorted: nothing later fits
        heap_.push({Duration(static_cast<std::int64_t>(ns)), copy, index});
    }
    void last_turns() {
        last_.assign(trace_.size(), true);
        std::unordered_map<std::uint64_t, std::size_t> latest;  // looked up only
        for (std::size_t i = 0; i < trace_.size(); ++i) {
            const std::uint64_t session = trace_.entries()[i].session;
            if (session == 0) continue;
            const auto [it, first] = latest.try_emplace(session, i);
            if (!first) last_[std::exchange(it->second, i)] = false;
        }
    }

    const Trace& trace_;
    ReplayOptions options_;
    std::vector<Slot> order_;
    std::vector<bool> last_;
    std::vector<Duration> offsets_;
    Duration period_{0};
    std::uint64_t next_id_ = 0;
    std::priority_queue<Head, std::vector<Head>, std::greater<>> heap_;
};

}  // namespace

std::unique_ptr<Source> replay(const Trace& trace, ReplayOptions options) {
    return std::make_unique<Replay>(trace, options);
}

}  // namespace nereid::workload
