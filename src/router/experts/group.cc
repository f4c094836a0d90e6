#include "router/experts/group.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/json.h"

namespace nereid::router::experts {
namespace {

Error bad(std::string what) { return {Code::kInvalidArgument, std::move(what)}; }

// A member that is an array of equally long arrays of non-negative numbers at most `most` (greater
// ones count as that); returns their length.
template <class T>
Result<std::size_t> read_rows(const Json& object, std::string_view key, std::uint64_t most,
                              std::vector<T>& out) {
    const std::string name(key);
    const Json* rows = object.find(key);
    if (rows == nullptr || !rows->is_array() || rows->size() == 0)
        return bad(name + " is no array of layers");
    std::size_t width = 0;
    for (const Json& row : rows->as_array()) {
        if (!row.is_array() || row.size() == 0 || (width != 0 && row.size() != width))
            return bad(name + ": its layers are not equally long arrays");
        width = row.size();
        for (const Json& v : row.as_array()) {
            if (!v.is_number() || v.as_double() < 0) return bad(name + " holds no count");
            out.push_back(static_cast<T>(std::min(v.as_double(), static_cast<double>(most))));
        }
    }
    return width;
}

Result<RankReport::Balancer> read_balancer(const Json& json) {
    RankReport::Balancer out;
    TRY(const std::size_t experts,
        read_rows(json, "tokens", std::numeric_limits<std::uint32_t>::max(), out.tokens));
    out.experts = static_cast<std::uint32_t>(experts);
    out.layers = static_cast<std::uint32_t>(out.tokens.size() / experts);
    TRY(const std::size_t slots,
        read_rows(json, "physical_to_logical", std::numeric_limits<ExpertId>::max(), out.slots));
    if (out.slots.size() / slots != out.layers)
        return bad("tokens and physical_to_logical have different numbers of layers");
    return out;
}

// What all ranks say of one balancer: the sum of their loads, and the one map that they have.
struct Together {
    Placement placement;
    std::vector<std::uint32_t> tokens;
};
Result<Together> together(std::span<const RankReport> reports, std::size_t index) {
    const RankReport::Balancer& first = reports[0].balancers[index];
    Together out;
    out.tokens.assign(first.tokens.size(), 0);
    for (const RankReport& r : reports) {
        const RankReport::Balancer& b = r.balancers[index];
        if (b.layers != first.layers || b.experts != first.experts ||
            b.slots.size() != first.slots.size())
            return bad("ranks report different shapes");
        if (b.slots != first.slots)
            return err(Code::kUnavailable, "ranks report different maps: a plan is on its way");
        for (std::size_t i = 0; i < b.tokens.size(); ++i) {
            const std::uint64_t sum = std::uint64_t{out.tokens[i]} + b.tokens[i];
            out.tokens[i] = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(sum, std::numeric_limits<std::uint32_t>::max()));
        }
    }
    out.placement.shape = {.experts = first.experts,
                           .slots = static_cast<std::uint32_t>(first.slots.size() / first.layers),
                           .ranks = static_cast<std::uint32_t>(reports.size())};
    out.placement.layers = first.layers;
    out.placement.slots = first.slots;
    TRY_VOID(validate(out.placement.shape));
    TRY_VOID(check(out.placement));
    return out;
}

std::string plan_json(std::size_t balancer, const Placement& shape,
                      std::span<const ExpertId> slots) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("balancer", std::uint64_t{balancer}).key("physical_to_logical");
    w.begin_array();
    for (std::uint32_t l = 0; l < shape.layers; ++l) {
        w.begin_array();
        for (const ExpertId e :
             slots.subspan(std::size_t{l} * shape.shape.slots, shape.shape.slots))
            w.value(static_cast<std::uint32_t>(e));
        w.end_array();
    }
    w.end_array().end_object();
    return out;
}

std::string text(const char* format, std::size_t balancer, double a, double b, double c = 0,
                 double d = 0, double e = 0) {
    std::array<char, 200> line{};
    std::snprintf(line.data(), line.size(), format, balancer, a, b, c, d, e);
    return line.data();
}

}  // namespace

Result<RankReport> read_report(std::string_view json) {
    TRY(const Json parsed, Json::parse(json));
    RankReport out;
    const Json* rank = parsed.find("rank");
    const auto number = rank != nullptr && rank->is_number() ? rank->as_int() : std::nullopt;
    if (!number || *number < 0 || *number > 65'535) return bad("rank is no number of a rank");
    out.rank = static_cast<std::uint32_t>(*number);
    const Json* balancers = parsed.find("balancers");
    if (balancers == nullptr || !balancers->is_array()) return bad("balancers is no array");
    for (const Json& b : balancers->as_array()) {
        TRY(RankReport::Balancer read, read_balancer(b));
        out.balancers.push_back(std::move(read));
    }
    return out;
}

// What the ranks have, against what we think of them.
void GroupPlanner::follow(std::optional<Model>& model, const Placement& reported) const {
    const bool same_shape = model && model->rebalancer.placement().shape == reported.shape &&
                            model->rebalancer.placement().layers == reported.layers;
    if (same_shape && !model->under_way.empty() && reported.slots == model->target) {
        for (const LayerStage& layer : model->under_way) model->rebalancer.applied(layer);
        model->under_way.clear();
    } else if (same_shape && reported == model->rebalancer.placement()) {
        if (model->under_way.empty() || ++model->waited <= options_.patience) return;
        model->rebalancer.abandon();
        model->under_way.clear();
    } else {
        model.emplace(Model{.rebalancer = Rebalancer(reported,
                                                     {.budget = options_.budget,
                                                      .min_steps = 1,
                                                      .act_below = options_.act_below,
                                                      .min_gain = options_.min_gain},
                                                     1, 1),
                            .under_way = {},
                            .target = {}});
    }
}

Result<GroupPlanner::Outcome> GroupPlanner::round(std::span<const RankReport> reports) {
    if (reports.empty()) return bad("no rank reports");
    std::vector<RankReport> ranks(reports.begin(), reports.end());
    std::ranges::sort(ranks, {}, &RankReport::rank);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (ranks[i].rank != i) return bad("rank " + std::to_string(i) + " does not report");
        if (ranks[i].balancers.size() != ranks[0].balancers.size())
            return bad("ranks report different balancers");
    }
    models_.resize(ranks[0].balancers.size());
    Outcome out;
    for (std::size_t b = 0; b < models_.size(); ++b) {
        TRY(const Together now, together(ranks, b));
        follow(models_[b], now.placement);
        Model& model = *models_[b];
        model.rebalancer.add(now.tokens);
        if (!model.under_way.empty()) {
            out.notes.push_back(
                text("balancer %zu: waiting for the ranks to install the plan "
                     "(round %.0f of %.0f)",
                     b, model.waited, options_.patience));
            continue;
        }
        if (out.plan) continue;  // one at a time
        auto stages = model.rebalancer.decide();
        const Rebalancer::Counters& c = model.rebalancer.counters();
        if (!stages) {
            out.notes.push_back(text("balancer %zu: balancedness %.3f of at most %.3f: left alone",
                                     b, c.balancedness, c.bound));
            continue;
        }
        Placement next = now.placement;
        std::size_t moved = 0;
        for (const LayerStage& layer : *stages) {
            std::ranges::copy(layer.slots, next.layer(layer.layer).begin());
            moved += layer.transfers.size();
        }
        const std::vector<float> loads(now.tokens.begin(), now.tokens.end());
        const double after =
            balancedness(next, {next.layers, next.shape.experts, std::span<const float>(loads)});
        out.notes.push_back(
            text("balancer %zu: balancedness %.3f of at most %.3f; a plan moves "
                 "%.0f slots in %.0f layers, to %.3f",
                 b, c.balancedness, c.bound, static_cast<double>(moved),
                 static_cast<double>(stages->size()), after));
        out.plan = plan_json(b, next, next.slots);
        model.target = next.slots;
        model.under_way = std::move(*stages);
        model.waited = 0;
    }
    return out;
}

}  // namespace nereid::router::experts
