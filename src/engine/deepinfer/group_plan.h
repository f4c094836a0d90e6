// Decisions about a group of data-parallel ranks that looks like one engine: pure.
//
// DeepInfer has one process per data-parallel rank, all in lockstep, so the group is the unit of
// failure and of placement (facts/deepinfer.md 3.6). Towards the gateway it is one engine: the
// router below picks the rank of a request, frames of ranks are merged.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/engine_port.h"

namespace nereid::engine::deepinfer {

// What `python -m nereid_deepinfer --print-environment` says: how to start one rank.
struct RankLaunch {
    std::uint32_t rank = 0;
    std::uint32_t of = 1;  // ranks of the group, on all machines
    std::string python;
    std::vector<std::pair<std::string, std::string>> environment;
};
// Lines "rank N SIZE PYTHON", each followed by NAME=VALUE lines. kConfig for anything else and for
// no rank at all.
Result<std::vector<RankLaunch>> parse_launches(std::string_view text);

// One engine out of its ranks' greetings. kConfig when they differ in what must be equal (version,
// model, layout, roles): then they are not of one group.
Result<model::EngineInfo> merge_infos(std::span<const model::EngineInfo> infos);

// Sums; of step times the longest.
model::Load merge_loads(std::span<const model::Load> loads);

// Appends what `from` says to `into`; the load and the step number are not touched.
void merge_frame(model::StepFrame& into, model::StepFrame&& from);

// Which rank has which request. A request goes to the rank with the least to do: prompt tokens that
// are not computed yet by our own count, plus a row's weight for each request.
// Cost: O(ranks) to place, O(log requests) else.
class GroupRouter {
  public:
    static constexpr std::uint64_t kRowWeight = 64;    // tokens of prefill that one row is worth
    static constexpr std::size_t kRemembered = 65536;  // ended prefills whose rank is still known
    explicit GroupRouter(std::size_t ranks) : ranks_(ranks) {}
    std::size_t place(const model::AddRequest& request);
    // The rank of a request that has not ended, or that was prefilled and may still be exported.
    std::optional<std::size_t> rank_of(RequestId id) const;
    void on_frame(std::size_t rank, const model::StepFrame& frame);
    // Forgets a prefilled request. The rank that has it, if any.
    std::optional<std::size_t> release(RequestId id);
    void clear();
    std::size_t in_flight() const { return requests_.size(); }
    std::size_t in_flight(std::size_t rank) const { return ranks_[rank].rows; }

  private:
    struct Rank {
        std::uint64_t tokens = 0;
        std::size_t rows = 0;
    };
    struct Placed {
        std::size_t rank = 0;
        std::uint64_t tokens = 0;  // 0 once it has started
    };
    std::vector<Rank> ranks_;
    std::map<RequestId, Placed> requests_;
    std::map<RequestId, std::size_t> prefilled_;
    std::deque<RequestId> prefilled_order_;
};

}  // namespace nereid::engine::deepinfer
