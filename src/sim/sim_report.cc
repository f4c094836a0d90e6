#include "sim/sim_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/page.h"
#include "report/plot.h"

namespace nereid::sim {

namespace {

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

void add_pool(report::Table& table, std::string_view name, const PoolResult& p) {
    if (p.units == 0) return;
    table.rows.push_back({std::string(name), fmt::format("{} × {}", p.units, p.ranks / p.units),
                          fmt::format("{:.4f}", p.efficiency), percent(p.busy), percent(p.useful),
                          percent(p.barrier_idle), fmt::format("{:.1f}", p.step_ms),
                          fmt::format("{:.1f}", p.requests_per_rank), report::human(p.kv_per_rank),
                          report::human(p.tokens_per_second), std::to_string(p.preempted)});
}

report::Table pool_table(const RunResult& r) {
    report::Table table{
        {"pool", "units × ranks", "balance efficiency", "busy", "useful", "barrier idle", "step ms",
         "requests/rank", "KV/rank", "tokens/s", "preempted"},
        {},
        "Balance efficiency is Σ T balanced / Σ T actual over busy steps."};
    add_pool(table, "prefill", r.prefill);
    add_pool(table, "decode", r.decode);
    add_pool(table, "unified", r.unified);
    return table;
}

void add_heat_map(report::Page& page, const std::string& title, const std::string& label,
                  const std::vector<std::vector<double>>& cells, double seconds) {
    if (cells.empty() || cells.front().size() < 2) return;
    report::HeatMap map;
    map.title = title;
    map.row_label = "rank";
    map.value_label = label;
    map.x.label = "simulated time (s)";
    map.x.min = 0;
    map.x.max = seconds * static_cast<double>(cells.front().size());
    map.cells = cells;
    page.plot(report::draw(map));
}

void add_distribution(report::Page& page, const std::string& title, const std::string& label,
                      std::vector<std::pair<std::string, std::vector<double>>> samples,
                      double slo) {
    std::erase_if(samples, [](const auto& s) { return s.second.empty(); });
    if (samples.empty()) return;
    report::CdfPlot plot;
    plot.title = title;
    plot.x = {.label = label, .log = true, .min = {}, .max = {}};
    plot.samples = std::move(samples);
    if (slo > 0) plot.marks.push_back({slo, true, "SLO"});
    page.plot(report::draw(plot));
}

void add_lines(report::Page& page, const RunResult& r) {
    for (const RunResult::Line& line : r.lines) {
        if (line.points.size() < 2) continue;
        report::LinePlot plot;
        plot.title = line.name;
        plot.x.label = "simulated time (s)";
        plot.y.label = line.name;
        plot.size.height = 220;
        plot.series.push_back({line.name, line.points});
        page.plot(report::draw(plot));
    }
}

std::vector<std::pair<std::string, std::string>> headline(const RunResult& r) {
    std::vector<std::pair<std::string, std::string>> items;
    if (r.prefill.units > 0)
        items.emplace_back("prefill efficiency", fmt::format("{:.3f}", r.prefill.efficiency));
    if (r.decode.units > 0)
        items.emplace_back("decode efficiency", fmt::format("{:.3f}", r.decode.efficiency));
    if (r.unified.units > 0)
        items.emplace_back("efficiency", fmt::format("{:.3f}", r.unified.efficiency));
    items.emplace_back("goodput, requests/s", fmt::format("{:.2f}", r.goodput_per_second));
    items.emplace_back("within the SLO", percent(r.attainment));
    items.emplace_back("TTFT p50 / p99, ms",
                       fmt::format("{:.0f} / {:.0f}", r.ttft_ms.p50, r.ttft_ms.p99));
    items.emplace_back("ITL p50 / p99, ms",
                       fmt::format("{:.1f} / {:.1f}", r.itl_ms.p50, r.itl_ms.p99));
    return items;
}

}  // namespace

std::string run_page(const Scenario& scenario, const RunResult& r, const std::string& command,
                     const std::string& toml) {
    report::Page page(scenario.name, "nereid sim run");
    page.section("Result").figures(headline(r)).table(pool_table(r));
    report::Table counts{{"arrived", "finished", "rejected", "unfinished", "good", "hit share",
                          "migrations per step", "refused", "forwarded", "lost to faults"},
                         {},
                         {}};
    counts.rows.push_back({std::to_string(r.arrived), std::to_string(r.finished),
                           std::to_string(r.rejected), std::to_string(r.unfinished),
                           std::to_string(r.good), percent(r.hit_share),
                           fmt::format("{:.3f}", r.migrations_per_step), std::to_string(r.refused),
                           std::to_string(r.forwarded), std::to_string(r.lost_to_faults)});
    page.table(counts);
    page.section("Latency");
    add_distribution(page, "Time to first token", "ms", {{"TTFT", r.ttft_samples}},
                     to_ms(scenario.slo_ttft));
    add_distribution(page, "Mean gap of a request's tokens", "ms", {{"ITL", r.itl_samples}},
                     to_ms(scenario.slo_itl));
    page.section("Over time");
    add_lines(page, r);
    page.section("Per rank");
    add_heat_map(page, "KV of decode ranks", "KV tokens", r.kv_by_rank, r.sample_seconds);
    add_heat_map(page, "Prefill queues", "tokens queued", r.queue_by_rank, r.sample_seconds);
    page.section("How it was made")
        .folded("command", command)
        .folded("scenario, all knobs", toml)
        .folded("result as JSON", to_json(r).dump());
    return page.finish();
}

std::string comparison_page(const Scenario& scenario, std::span<const LabelledRun> runs,
                            const std::string& command, const std::string& toml) {
    report::Page page(scenario.name, "nereid sim compare");
    report::Table table{{"run", "good/s", "within SLO", "prefill eff.", "decode eff.", "TTFT p50",
                         "TTFT p99", "ITL p50", "ITL p99", "hit share", "rejected"},
                        {},
                        "Milliseconds; good/s are requests per second within the SLO."};
    report::BarPlot bars;
    bars.title = "Goodput";
    bars.value.label = "requests/s within the SLO";
    bars.series.push_back({"goodput", {}});
    std::vector<std::pair<std::string, std::vector<double>>> ttft, itl;
    for (const LabelledRun& run : runs) {
        const RunResult& r = run.result;
        table.rows.push_back(
            {run.label, fmt::format("{:.2f}", r.goodput_per_second), percent(r.attainment),
             fmt::format("{:.3f}", r.prefill.efficiency),
             fmt::format("{:.3f}", r.decode.efficiency), fmt::format("{:.0f}", r.ttft_ms.p50),
             fmt::format("{:.0f}", r.ttft_ms.p99), fmt::format("{:.1f}", r.itl_ms.p50),
             fmt::format("{:.1f}", r.itl_ms.p99), percent(r.hit_share),
             std::to_string(r.rejected)});
        bars.categories.push_back(run.label);
        bars.series.front().bars.push_back({r.goodput_per_second, {}});
        ttft.emplace_back(run.label, r.ttft_samples);
        itl.emplace_back(run.label, r.itl_samples);
    }
    page.section("Comparison").table(table).plot(report::draw(bars));
    add_distribution(page, "Time to first token", "ms", std::move(ttft), to_ms(scenario.slo_ttft));
    add_distribution(page, "Mean gap of a request's tokens", "ms", std::move(itl),
                     to_ms(scenario.slo_itl));
    page.section("How it was made").folded("command", command).folded("scenario, all knobs", toml);
    return page.finish();
}

std::string run_text(const RunResult& r) {
    std::string out = fmt::format(
        "{} requests arrived, {} finished, {} rejected, {} still running\n"
        "goodput {:.2f}/s of {:.2f}/s offered ({:.1f} % within the SLO); prompt tokens restored "
        "{:.1f} %\n"
        "TTFT ms  p50 {:.0f}  p90 {:.0f}  p99 {:.0f}      ITL ms  p50 {:.1f}  p90 {:.1f}  p99 "
        "{:.1f}\n",
        r.arrived, r.finished, r.rejected, r.unfinished, r.goodput_per_second, r.offered_per_second,
        r.attainment * 100, r.hit_share * 100, r.ttft_ms.p50, r.ttft_ms.p90, r.ttft_ms.p99,
        r.itl_ms.p50, r.itl_ms.p90, r.itl_ms.p99);
    const auto pool = [&](std::string_view name, const PoolResult& p) {
        if (p.units == 0) return;
        out += fmt::format(
            "{:8} {} x {} ranks: balance efficiency {:.4f}, busy {:.1f} %, step {:.1f} ms, {:.1f} "
            "requests and {:.0f} KV tokens a rank, {:.0f} tokens/s\n",
            name, p.units, p.ranks / p.units, p.efficiency, p.busy * 100, p.step_ms,
            p.requests_per_rank, p.kv_per_rank, p.tokens_per_second);
    };
    pool("prefill", r.prefill);
    pool("decode", r.decode);
    pool("unified", r.unified);
    if (r.migrations > 0)
        out += fmt::format("{} migrations, {:.3f} a step\n", r.migrations, r.migrations_per_step);
    return out;
}

std::string comparison_text(std::span<const LabelledRun> runs) {
    std::size_t width = 8;
    for (const LabelledRun& run : runs) width = std::max(width, run.label.size());
    std::string out = fmt::format(
        "{:{}}  good/s  in SLO  P eff  D eff  TTFT50   TTFT99  ITL50  hits\n", "run", width);
    for (const auto& [label, r] : runs)
        out += fmt::format(
            "{:{}} {:7.2f} {:6.1f}%  {:.3f}  {:.3f} {:7.0f} {:8.0f} {:6.1f} {:4.1f}%\n", label,
            width, r.goodput_per_second, r.attainment * 100, r.prefill.efficiency,
            r.decode.efficiency, r.ttft_ms.p50, r.ttft_ms.p99, r.itl_ms.p50, r.hit_share * 100);
    return out;
}

}  // namespace nereid::sim
