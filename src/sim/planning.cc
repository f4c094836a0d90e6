#include "sim/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/page.h"
#include "report/plot.h"
#include "sim/capacity/cluster.h"

namespace nereid::sim {

namespace {

class Search {
  public:
    Search(const Scenario& scenario, const workload::Trace* trace, const PlanningOptions& options,
           const std::function<void(const PlanningPoint&)>& tried)
        : scenario_(scenario), trace_(trace), options_(options), tried_(tried) {}

    Result<Planning> run();

  private:
    // The point of these units, simulated unless it was before.
    Result<std::size_t> point(std::uint32_t prefill, std::uint32_t decode);
    Result<void> bound();

    const Scenario& scenario_;
    const workload::Trace* trace_;
    const PlanningOptions& options_;
    const std::function<void(const PlanningPoint&)>& tried_;
    Planning out_;
};

Result<void> Search::bound() {
    Scenario one = scenario_;
    one.prefill.units = one.decode.units = 1;
    TRY(const ClusterSpec spec, one.cluster());
    TRY(const auto source, one.source(trace_));
    out_.oracle = oracle_of(spec, *source);
    TRY(const auto counted, one.source(trace_));
    double requests = 0;
    workload::Request request;
    while (counted->next_arrival() != workload::Source::kNever &&
           counted->next_arrival() <= scenario_.end) {
        counted->take(request);
        requests += request.arrival >= scenario_.warmup ? 1 : 0;
    }
    out_.offered_per_second = requests / to_seconds(scenario_.end - scenario_.warmup);
    if (requests == 0)
        return err(Code::kConfig, "no request arrives between run.warmup and run.end");
    if (out_.oracle.requests_per_second <= 0)
        return err(Code::kConfig,
                   "the objective cannot be met by any number of units: slo.itl is shorter "
                   "than an empty decode step");
    const auto units = [&](double per_unit) {
        return static_cast<std::uint32_t>(
            std::max(1.0, std::ceil(out_.offered_per_second / per_unit)));
    };
    out_.bound_prefill = units(out_.oracle.prefill_per_second);
    out_.bound_decode = units(out_.oracle.decode_per_second);
    return {};
}

Result<std::size_t> Search::point(std::uint32_t prefill, std::uint32_t decode) {
    for (std::size_t i = 0; i < out_.tried.size(); ++i)
        if (out_.tried[i].prefill_units == prefill && out_.tried[i].decode_units == decode)
            return i;
    Scenario s = scenario_;
    s.prefill.units = prefill;
    s.decode.units = decode;
    TRY(const ClusterSpec spec, s.cluster());
    TRY(const auto source, s.source(trace_));
    PlanningPoint p;
    p.prefill_units = prefill;
    p.decode_units = decode;
    p.gpus = prefill * spec.prefill.unit.ranks + decode * spec.decode.unit.ranks;
    p.cost_per_hour = p.gpus * options_.price_per_gpu_hour;
    Cluster cluster(spec, *source);
    TRY(p.result, cluster.run());
    const double tokens_per_hour = p.result.output_tokens_per_second * 3600;
    p.cost_per_million_tokens = tokens_per_hour > 0 ? p.cost_per_hour / tokens_per_hour * 1e6 : 0;
    p.enough = p.result.attainment >= options_.attainment;
    if (tried_) tried_(p);
    out_.tried.push_back(std::move(p));
    return out_.tried.size() - 1;
}

Result<Planning> Search::run() {
    if (scenario_.workload == "population" || scenario_.workload == "agents")
        return err(Code::kConfig,
                   "workload.kind: planning needs an open loop (trace or synthetic)");
    if (scenario_.prefill.units == 0 || scenario_.decode.units == 0)
        return err(
            Code::kConfig,
            "planning sizes a prefill and a decode pool: set the units of both to 1 or more");
    TRY_VOID(bound());
    std::uint32_t prefill = out_.bound_prefill, decode = out_.bound_decode;
    TRY(std::size_t at, point(prefill, decode));
    while (!out_.tried[at].enough && out_.tried.size() < options_.most_runs) {
        const RunResult& r = out_.tried[at].result;
        const bool decode_short =
            r.missed_itl > r.missed_ttft || r.decode.preempted > r.missed_ttft;
        // Far off: a tenth more at once.
        const bool far = r.attainment < 0.5 * options_.attainment;
        std::uint32_t& grown = decode_short ? decode : prefill;
        grown += far ? std::max(1u, grown / 10) : 1;
        TRY(at, point(prefill, decode));
    }
    if (!out_.tried[at].enough) {
        const RunResult& r = out_.tried[at].result;
        return err(
            Code::kConfig,
            fmt::format(
                "after {} simulations {:.1f} % of requests are within the objective ({} miss "
                "slo.ttft, {} miss slo.itl); loosen the objective or start with larger units",
                out_.tried.size(), r.attainment * 100, r.missed_ttft, r.missed_itl));
    }
    for (bool smaller = true; smaller && out_.tried.size() < options_.most_runs;) {
        smaller = false;
        for (const bool from_decode : {true, false}) {
            std::uint32_t& n = from_decode ? decode : prefill;
            if (n <= (from_decode ? out_.bound_decode : out_.bound_prefill)) continue;
            TRY(const std::size_t less,
                from_decode ? point(prefill, decode - 1) : point(prefill - 1, decode));
            if (!out_.tried[less].enough) continue;
            --n;
            smaller = true;
        }
    }
    for (std::size_t i = 0; i < out_.tried.size(); ++i) {
        if (!out_.tried[i].enough) continue;
        if (!out_.best || out_.tried[i].cost_per_hour < out_.tried[*out_.best].cost_per_hour)
            out_.best = i;
    }
    return std::move(out_);
}

Json point_json(const PlanningPoint& p) {
    Json json;
    json.set("prefill_units", p.prefill_units);
    json.set("decode_units", p.decode_units);
    json.set("gpus", p.gpus);
    json.set("cost_per_hour", p.cost_per_hour);
    json.set("cost_per_million_output_tokens", p.cost_per_million_tokens);
    json.set("attainment", p.result.attainment);
    json.set("goodput_per_second", p.result.goodput_per_second);
    json.set("ttft_p50_ms", p.result.ttft_ms.p50);
    json.set("ttft_p99_ms", p.result.ttft_ms.p99);
    json.set("itl_p50_ms", p.result.itl_ms.p50);
    json.set("prefill_efficiency", p.result.prefill.efficiency);
    json.set("decode_efficiency", p.result.decode.efficiency);
    json.set("enough", p.enough);
    return json;
}

}  // namespace

Result<Planning> plan_capacity(const Scenario& scenario, const workload::Trace* trace,
                               const PlanningOptions& options,
                               const std::function<void(const PlanningPoint&)>& tried) {
    return Search(scenario, trace, options, tried).run();
}

Json to_json(const Planning& planning, const PlanningOptions& options) {
    Json json;
    json.set("offered_per_second", planning.offered_per_second);
    json.set("target_attainment", options.attainment);
    json.set("price_per_gpu_hour", options.price_per_gpu_hour);
    json.set("bound_prefill_units", planning.bound_prefill);
    json.set("bound_decode_units", planning.bound_decode);
    if (planning.best) json.set("plan", point_json(planning.tried[*planning.best]));
    Json list = Json::Array{};
    for (const PlanningPoint& p : planning.tried) list.as_array().push_back(point_json(p));
    json.set("tried", std::move(list));
    return json;
}

std::string planning_text(const Planning& planning, const PlanningOptions& options) {
    std::string out = fmt::format(
        "{:.2f} requests/s offered; by the offline oracle at least {} prefill and {} decode units\n"
        "prefill decode  GPUs   cost/h  in SLO  TTFT50  TTFT99  ITL50\n",
        planning.offered_per_second, planning.bound_prefill, planning.bound_decode);
    for (const PlanningPoint& p : planning.tried)
        out += fmt::format("{:7} {:6} {:5} {:8.2f} {:6.1f}% {:7.0f} {:7.0f} {:6.1f}{}\n",
                           p.prefill_units, p.decode_units, p.gpus, p.cost_per_hour,
                           p.result.attainment * 100, p.result.ttft_ms.p50, p.result.ttft_ms.p99,
                           p.result.itl_ms.p50, p.enough ? "  enough" : "");
    if (!planning.best) return out;
    const PlanningPoint& p = planning.tried[*planning.best];
    const double ranks_p = p.result.prefill.ranks, ranks_d = p.result.decode.ranks;
    out += fmt::format(
        "plan: {} prefill units and {} decode units, {} GPUs (prefill : decode = {:.2f} : 1), "
        "{:.2f} an hour, "
        "{:.3f} per million output tokens, {:.1f} % within the objective (target {:.1f} %)\n",
        p.prefill_units, p.decode_units, p.gpus, ranks_d > 0 ? ranks_p / ranks_d : 0,
        p.cost_per_hour, p.cost_per_million_tokens, p.result.attainment * 100,
        options.attainment * 100);
    return out;
}

std::string planning_page(const Scenario& scenario, const Planning& planning,
                          const PlanningOptions& options, const std::string& command,
                          const std::string& toml) {
    report::Page page(scenario.name, "nereid sim plan");
    page.section("Plan");
    if (planning.best) {
        const PlanningPoint& p = planning.tried[*planning.best];
        page.figures(
            {{"prefill units", std::to_string(p.prefill_units)},
             {"decode units", std::to_string(p.decode_units)},
             {"GPUs", std::to_string(p.gpus)},
             {"cost per hour", fmt::format("{:.2f}", p.cost_per_hour)},
             {"per million output tokens", fmt::format("{:.3f}", p.cost_per_million_tokens)},
             {"within the objective", fmt::format("{:.1f} %", p.result.attainment * 100)}});
    }
    page.parameters(
        {{"offered", fmt::format("{:.2f} requests/s", planning.offered_per_second)},
         {"target", fmt::format("{:.1f} % within the objective", options.attainment * 100)},
         {"price per GPU and hour", fmt::format("{:g}", options.price_per_gpu_hour)},
         {"least by the offline oracle",
          fmt::format("{} prefill, {} decode units", planning.bound_prefill,
                      planning.bound_decode)}});
    report::Table table{{"prefill units", "decode units", "GPUs", "cost/h", "within SLO",
                         "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "prefill eff.", "decode eff."},
                        {},
                        "Every size that was simulated, in order."};
    report::LinePlot plot;
    plot.title = "Objective and cost";
    plot.x.label = "cost per hour";
    plot.y.label = "requests within the objective (%)";
    plot.series.push_back({"simulated sizes", {}, false, false, true});
    for (const PlanningPoint& p : planning.tried) {
        table.rows.push_back({std::to_string(p.prefill_units), std::to_string(p.decode_units),
                              std::to_string(p.gpus), fmt::format("{:.2f}", p.cost_per_hour),
                              fmt::format("{:.1f} %", p.result.attainment * 100),
                              fmt::format("{:.0f}", p.result.ttft_ms.p50),
                              fmt::format("{:.0f}", p.result.ttft_ms.p99),
                              fmt::format("{:.1f}", p.result.itl_ms.p50),
                              fmt::format("{:.3f}", p.result.prefill.efficiency),
                              fmt::format("{:.3f}", p.result.decode.efficiency)});
        plot.series[0].points.emplace_back(p.cost_per_hour, p.result.attainment * 100);
    }
    std::ranges::sort(plot.series[0].points);
    plot.marks.push_back({options.attainment * 100, false, "target"});
    page.table(table).plot(report::draw(plot));
    if (planning.best) {
        const RunResult& r = planning.tried[*planning.best].result;
        report::CdfPlot ttft{"Time to first token of the plan",
                             {.label = "ms", .log = true, .min = {}, .max = {}},
                             {{"TTFT", r.ttft_samples}},
                             {{to_ms(scenario.slo_ttft), true, "SLO"}},
                             {}};
        report::CdfPlot itl{"Mean gap of tokens of the plan",
                            {.label = "ms", .log = true, .min = {}, .max = {}},
                            {{"ITL", r.itl_samples}},
                            {{to_ms(scenario.slo_itl), true, "SLO"}},
                            {}};
        page.plot(report::draw(ttft)).plot(report::draw(itl));
    }
    page.section("How it was made").folded("command", command).folded("scenario, all knobs", toml);
    return page.finish();
}

}  // namespace nereid::sim
