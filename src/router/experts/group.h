// GroupPlanner: the Rebalancer at work on a running group of ranks that tells its loads and takes
// plans as files (docs/ops/deepinfer.md): a report per rank in, at most one plan out.
//
//   report  {"rank": 3, "balancers": [{"tokens": [layer][expert], "physical_to_logical":
//   [layer][slot]}]} plan    {"balancer": 0, "physical_to_logical": [layer][slot]}
//
// A balancer is one model of the engine (0 the backbone, 1 a draft model). Tokens are of the
// engine's own window and of the rank's own slots; their sum over the ranks is the load. A plan is
// under way until every rank reports its map; one that has not come after `patience` rounds is
// given up. Whoever else changes the map is followed, not fought.
//
// Pure: reading, writing and the time between rounds are the caller's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "router/experts/rebalance.h"

namespace nereid::router::experts {

struct RankReport {
    std::uint32_t rank = 0;
    struct Balancer {
        std::uint32_t layers = 0, experts = 0;
        std::vector<std::uint32_t> tokens;  // [layers][experts]; more than 2^32 - 1 counts as that
        std::vector<ExpertId> slots;        // [layers][slots]
    };
    std::vector<Balancer> balancers;
};
// kInvalidArgument says what is wrong where.
Result<RankReport> read_report(std::string_view json);

class GroupPlanner {
  public:
    struct Options {
        BudgetOptions budget = {};
        double act_below = 0.97;  // as RebalancerOptions
        double min_gain = 0.005;
        std::uint32_t patience = 10;  // rounds
    };
    explicit GroupPlanner(const Options& options) : options_(options) {}

    struct Outcome {
        std::optional<std::string> plan;  // to be written as plan.json
        std::vector<std::string> notes;   // for people, one line per balancer
    };
    // One report of each rank. kInvalidArgument: they do not fit together (a rank is missing,
    // shapes differ). kUnavailable: ranks report different maps; a plan is being installed just
    // now.
    Result<Outcome> round(std::span<const RankReport> reports);

  private:
    struct Model {
        Rebalancer rebalancer;
        std::vector<LayerStage> under_way;
        std::vector<ExpertId> target;  // the map when it is done
        std::uint32_t waited = 0;
    };
    void follow(std::optional<Model>& model, const Placement& reported) const;

    Options options_;
    std::vector<std::optional<Model>> models_;
};

}  // namespace nereid::router::experts
