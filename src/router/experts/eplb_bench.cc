// A process around the solver for bench/eplb.py and studies: one JSON request a line, one JSON
// answer a line. Times are measured here, around the solver alone.
//
//   {"experts":256,"slots":288,"ranks":32,"groups":1,"nodes":1,"method":"greedy"|"refined"|"initial","repeat":5,
//    "loads":[[...],...]}                       ->
//    {"ms":[...],"balancedness":b,"bound":b,"slots":[[...],...]}
//   {..., "method":"rebalance","moved_share":0.1,"old":[[...],...]}  -> also "before", "moved"
//   {..., "method":"evaluate","old":[[...],...]}                     -> balancedness of a given map
#include <chrono>
#include <cstdio>
#include <iostream>

#include "base/json.h"
#include "base/units.h"
#include "router/experts/rebalance.h"
#include "router/experts/solver.h"

namespace {

using namespace nereid;
using namespace nereid::router::experts;

std::uint32_t number(const Json& request, std::string_view key, std::uint32_t otherwise) {
    const Json* v = request.find(key);
    return v == nullptr ? otherwise : static_cast<std::uint32_t>(v->as_int().value_or(0));
}

double now_ms() {
    // tidy: allow clock because a benchmark measures
    return to_ms(std::chrono::steady_clock::now().time_since_epoch());
}

Placement read_map(const Json& rows, const Shape& shape) {
    Placement p{.shape = shape, .layers = static_cast<std::uint32_t>(rows.size()), .slots = {}};
    for (const Json& row : rows.as_array()) {
        for (const Json& e : row.as_array())
            p.slots.push_back(static_cast<ExpertId>(e.as_int().value_or(0xffff)));
    }
    return p;
}

Result<Json> answer(const Json& request) {
    const Shape shape{.experts = number(request, "experts", 0),
                      .slots = number(request, "slots", 0),
                      .ranks = number(request, "ranks", 0),
                      .groups = number(request, "groups", 1),
                      .nodes = number(request, "nodes", 1)};
    TRY_VOID(validate(shape));
    const Json* rows = request.find("loads");
    const Json* method = request.find("method");
    if (rows == nullptr || method == nullptr)
        return err(Code::kInvalidArgument, "loads and method are needed");
    std::vector<float> values;
    for (const Json& row : rows->as_array()) {
        for (const Json& w : row.as_array()) values.push_back(static_cast<float>(w.as_double()));
    }
    const Loads loads{static_cast<std::uint32_t>(rows->size()), shape.experts, values};
    if (values.size() != std::size_t{loads.layers} * shape.experts)
        return err(Code::kInvalidArgument, "loads: a row is not as long as there are experts");
    Placement old = initial_placement(shape, loads.layers);
    if (const Json* map = request.find("old")) {
        old = read_map(*map, shape);
        TRY_VOID(check(old));
        if (old.layers != loads.layers)
            return err(Code::kInvalidArgument, "old and loads differ in layers");
    }
    Json out;
    Json::Array times;
    Placement result = old;
    const std::string& how = method->as_string();
    Solver solver(shape);
    for (std::uint32_t i = 0; i < number(request, "repeat", 1); ++i) {
        const double begin = now_ms();
        if (how == "greedy" || how == "refined") {
            result = solver.solve(loads, how == "greedy" ? Method::kGreedy : Method::kRefined);
        } else if (how == "rebalance") {
            const Json* share = request.find("moved_share");
            Rebalanced next =
                rebalance(old, loads, {.moved_share = share == nullptr ? 0.1 : share->as_double()});
            out.set("before", next.before).set("moved", next.moved);
            result = std::move(next.placement);
        }
        times.emplace_back(now_ms() - begin);
    }
    double bound = 0;
    for (std::uint32_t l = 0; l < loads.layers; ++l)
        bound += balancedness_bound(shape, loads.layer(l)) / loads.layers;
    out.set("ms", std::move(times))
        .set("balancedness", balancedness(result, loads))
        .set("bound", bound);
    Json::Array map;
    for (std::uint32_t l = 0; l < result.layers; ++l) {
        Json::Array row;
        for (const ExpertId e : result.layer(l)) row.emplace_back(static_cast<std::uint32_t>(e));
        map.emplace_back(std::move(row));
    }
    out.set("slots", std::move(map));
    return out;
}

}  // namespace

int main() {
    std::string line;
    while (std::getline(std::cin, line)) {
        const auto request = Json::parse(line);
        Result<Json> reply =
            request.ok() && request->is_object()
                ? answer(*request)
                : Result<Json>(err(Code::kInvalidArgument, "a line is no JSON object"));
        Json failed;
        if (!reply.ok()) failed.set("error", reply.error().message);
        std::puts((reply.ok() ? *reply : failed).dump().c_str());
        std::fflush(stdout);
    }
    return 0;
}
