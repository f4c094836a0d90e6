#include "router/experts/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <queue>

#include "base/check.h"

namespace nereid::router::experts {

namespace {

std::unexpected<Error> bad(const char* field, const std::string& what) {
    return err(Code::kInvalidArgument, fmt::format("{}: {}", field, what), field);
}

}  // namespace

Result<void> validate(const Shape& s) {
    if (s.experts < 1 || s.experts > 0xffff) return bad("experts", "expected 1 to 65535");
    if (s.slots < s.experts || s.slots > (1U << 20))
        return bad("slots", fmt::format("{} cannot hold {} experts", s.slots, s.experts));
    if (s.ranks < 1 || s.slots % s.ranks != 0)
        return bad("ranks", fmt::format("{} slots do not divide among {} ranks", s.slots, s.ranks));
    if (s.groups < 1 || s.nodes < 1)
        return bad(s.groups < 1 ? "groups" : "nodes", "expected at least 1");
    if (!s.hierarchical()) return {};
    if (s.experts % s.groups != 0)
        return bad("groups",
                   fmt::format("{} experts do not divide among {} groups", s.experts, s.groups));
    if (s.ranks % s.nodes != 0 || s.slots % s.nodes != 0)
        return bad("nodes", fmt::format("{} ranks and {} slots do not divide among {} nodes",
                                        s.ranks, s.slots, s.nodes));
    return {};
}

Placement initial_placement(const Shape& shape, std::uint32_t layers) {
    Placement p{.shape = shape, .layers = layers, .slots = {}};
    const std::uint32_t nodes = shape.hierarchical() ? shape.nodes : 1;
    const std::uint32_t experts = shape.experts / nodes;
    p.slots.reserve(std::size_t{layers} * shape.slots);
    for (std::uint32_t l = 0; l < layers; ++l) {
        for (std::uint32_t s = 0; s < shape.slots; ++s) {
            const std::uint32_t node = s / (shape.slots / nodes);
            p.slots.push_back(
                static_cast<ExpertId>(node * experts + s % (shape.slots / nodes) % experts));
        }
    }
    return p;
}

Result<void> check(const Placement& p) {
    TRY_VOID(validate(p.shape));
    if (p.slots.size() != std::size_t{p.layers} * p.shape.slots)
        return bad("slots", "their number is not layers x slots");
    for (std::uint32_t l = 0; l < p.layers; ++l) {
        std::vector<std::uint32_t> count(p.shape.experts);
        std::vector<std::uint32_t> node_of_group(p.shape.groups, ~0U);
        const auto slots = p.layer(l);
        for (std::uint32_t s = 0; s < p.shape.slots; ++s) {
            if (slots[s] >= p.shape.experts)
                return bad("slots", fmt::format("layer {}, slot {}: no expert {}", l, s, slots[s]));
            ++count[slots[s]];
            if (!p.shape.hierarchical()) continue;
            const std::uint32_t node = s / (p.shape.slots / p.shape.nodes);
            std::uint32_t& home = node_of_group[slots[s] / (p.shape.experts / p.shape.groups)];
            if (home == ~0U) home = node;
            if (home != node)
                return bad(
                    "slots",
                    fmt::format("layer {}: the group of expert {} lies on two nodes", l, slots[s]));
        }
        const auto none = std::ranges::find(count, 0U);
        if (none != count.end())
            return bad("slots",
                       fmt::format("layer {}: expert {} has no slot", l, none - count.begin()));
    }
    return {};
}

double balancedness(const Shape& shape, std::span<const float> load,
                    std::span<const ExpertId> slots) {
    CHECK(load.size() == shape.experts && slots.size() == shape.slots);
    std::vector<double> count(shape.experts);
    for (const ExpertId e : slots) ++count[e];
    double total = 0;
    double largest = 0;
    for (std::uint32_t r = 0; r < shape.ranks; ++r) {
        double sum = 0;
        for (const ExpertId e :
             slots.subspan(std::size_t{r} * shape.slots_per_rank(), shape.slots_per_rank()))
            sum += sane(load[e]) / count[e];
        total += sum;
        largest = std::max(largest, sum);
    }
    return largest <= 0 ? 1 : total / shape.ranks / largest;
}

double balancedness(const Placement& p, const Loads& loads) {
    CHECK(loads.layers == p.layers && loads.experts == p.shape.experts);
    if (p.layers == 0) return 1;
    double sum = 0;
    for (std::uint32_t l = 0; l < p.layers; ++l)
        sum += balancedness(p.shape, loads.layer(l), p.layer(l));
    return sum / p.layers;
}

// Giving each further slot to the expert with the largest part is optimal for the largest part: a
// T below the result would need more slots than were given.
double slot_bound(std::span<const float> load, std::uint32_t slots) {
    CHECK(slots >= load.size() && !load.empty());
    struct Part {
        double load;
        double count;
        bool operator<(const Part& o) const { return load / count < o.load / o.count; }
    };
    std::priority_queue<Part> parts;
    for (const float w : load) parts.push({sane(w), 1});
    for (std::size_t s = load.size(); s < slots; ++s) {
        Part largest = parts.top();
        parts.pop();
        ++largest.count;
        parts.push(largest);
    }
    return parts.top().load / parts.top().count;
}

double balancedness_bound(const Shape& shape, std::span<const float> load) {
    double total = 0;
    for (const float w : load) total += sane(w);
    if (total <= 0) return 1;
    const double mean = total / shape.ranks;
    return mean / std::max(mean, slot_bound(load, shape.slots));
}

std::uint32_t choose_slots(const Loads& loads, std::uint32_t ranks, double target,
                           std::uint32_t max_slots) {
    CHECK(ranks >= 1 && max_slots >= loads.experts && loads.experts >= 1);
    const std::uint32_t first = (loads.experts + ranks - 1) / ranks;
    const std::uint32_t last = max_slots / ranks;
    for (std::uint32_t per_rank = first; per_rank < last; ++per_rank) {
        const Shape shape{.experts = loads.experts, .slots = per_rank * ranks, .ranks = ranks};
        double sum = 0;
        for (std::uint32_t l = 0; l < loads.layers; ++l)
            sum += balancedness_bound(shape, loads.layer(l));
        if (sum >= target * loads.layers) return shape.slots;
    }
    return std::max(first, last) * ranks;
}

std::vector<std::vector<std::uint32_t>> replicas(const Shape& shape,
                                                 std::span<const ExpertId> slots) {
    std::vector<std::vector<std::uint32_t>> of(shape.experts);
    for (std::uint32_t s = 0; s < shape.slots; ++s) of[slots[s]].push_back(s);
    return of;
}

}  // namespace nereid::router::experts
