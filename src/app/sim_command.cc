#include "app/sim_command.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "cli/command.h"
#include "io/config.h"
#include "router/policy.h"
#include "sim/capacity/cluster.h"
#include "sim/capacity/oracle.h"
#include "sim/planning.h"
#include "sim/scenario.h"
#include "sim/sim_report.h"

namespace nereid::app {

namespace {

constexpr std::string_view kUsage =
    "nereid sim: whole clusters in simulated time, routed by the production code\n\n"
    "usage: nereid sim run SCENARIO.toml [--KEY=VALUE ...]\n"
    "       nereid sim compare SCENARIO.toml --policies nereid,round_robin,... [--speeds "
    "1,1.2,...]\n"
    "       nereid sim plan SCENARIO.toml --price 2.5 [--attainment 0.95]\n\n"
    "  --json FILE    the result as JSON (\"-\": standard output, and nothing else there)\n"
    "  --html FILE    a self-contained page with plots\n"
    "  --quiet        no progress on standard error\n\n"
    "Knobs of a scenario, in the file or as options:\n";

struct Request {
    std::string verb, scenario, json, html, command;
    std::vector<std::string> policies, knobs;
    std::vector<double> speeds;
    double price = 2, attainment = 0.95;
    bool quiet = false, help = false;
};

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::string part;
    for (const char c : text + ",") {
        if (c != ',') {
            part += c;
        } else if (!part.empty()) {
            parts.push_back(std::move(part));
            part.clear();
        }
    }
    return parts;
}

Result<double> number(const std::string& text) {
    try {
        std::size_t used = 0;
        const double v = std::stod(text, &used);
        if (used == text.size()) return v;
    } catch (const std::exception&) {  // not a number: said below
    }
    return err(Code::kConfig, "'" + text + "' is no number");
}

Result<Request> parse(std::span<const std::string> args) {
    Request r;
    r.command = "nereid sim";
    for (const std::string& a : args) r.command += " " + a;
    if (args.empty()) return err(Code::kConfig, "say what: nereid sim run|compare|plan (--help)");
    std::size_t i = 0;
    if (!args[0].starts_with("-")) r.verb = args[i++];
    const std::string_view verbs[] = {"run", "compare", "plan"};
    if (!r.verb.empty() && std::ranges::find(verbs, r.verb) == std::end(verbs)) {
        const std::string near(cli::nearest(r.verb, verbs));
        return err(Code::kConfig, "sim does not know '" + r.verb + "'" +
                                      (near.empty() ? "" : "; did you mean '" + near + "'?"));
    }
    for (; i < args.size(); ++i) {
        const std::string& a = args[i];
        const auto take = [&](std::string_view name) -> std::optional<Result<std::string>> {
            if (a.starts_with(name) && a.size() > name.size() && a[name.size()] == '=')
                return Result<std::string>(a.substr(name.size() + 1));
            if (a != name) return std::nullopt;
            if (i + 1 == args.size())
                return Result<std::string>(err(Code::kConfig, a + " needs a value"));
            return Result<std::string>(args[++i]);
        };
        if (a == "--help" || a == "-h") {
            r.help = true;
        } else if (a == "--quiet") {
            r.quiet = true;
        } else if (auto v = take("--json")) {
            TRY(r.json, std::move(*v));
        } else if (auto v2 = take("--html")) {
            TRY(r.html, std::move(*v2));
        } else if (auto v3 = take("--policies")) {
            TRY(const std::string text, std::move(*v3));
            r.policies = split(text);
        } else if (auto v4 = take("--speeds")) {
            TRY(const std::string text, std::move(*v4));
            for (const std::string& part : split(text)) {
                TRY(const double speed, number(part));
                r.speeds.push_back(speed);
            }
        } else if (auto v5 = take("--price")) {
            TRY(const std::string text, std::move(*v5));
            TRY(r.price, number(text));
        } else if (auto v6 = take("--attainment")) {
            TRY(const std::string text, std::move(*v6));
            TRY(r.attainment, number(text));
        } else if (a.starts_with("--")) {
            r.knobs.push_back(a);
            if (a.find('=') == std::string::npos && i + 1 < args.size() &&
                !args[i + 1].starts_with("--"))
                r.knobs.push_back(args[++i]);
        } else if (r.scenario.empty()) {
            r.scenario = a;
        } else {
            return err(Code::kConfig, "one scenario at a time: '" + a + "' is a second one");
        }
    }
    return r;
}

Result<std::string> read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return err(Code::kConfig, path + ": cannot be read; name an existing file");
    return std::string(std::istreambuf_iterator<char>(in), {});
}

Result<void> write_file(const std::string& path, const std::string& text) {
    if (path == "-") {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fputc('\n', stdout);
        return {};
    }
    std::ofstream out(path, std::ios::binary);
    out << text;
    out.close();
    if (!out) return err(Code::kIo, path + ": cannot be written");
    return {};
}

struct Loaded {
    sim::Scenario scenario;
    std::optional<workload::Trace> trace;
    std::string toml;
};

Result<Loaded> load(const Request& request) {
    Loaded l;
    const auto bind = [&l](io::ConfigBinder& b) { l.scenario.bind(b); };
    TRY_VOID(io::load_config(bind, {request.scenario, request.knobs, {}}));
    l.toml = io::config_toml(bind);
    if (l.scenario.workload == "trace") {
        TRY(const auto format, workload::trace_format_of(l.scenario.trace));
        TRY(const std::string text, read_file(l.scenario.trace));
        TRY(l.trace, workload::parse_trace(format, text));
    }
    return l;
}

struct Timed {
    sim::RunResult result;
    sim::Oracle oracle;  // empty for closed loops
    double seconds = 0;  // of this process
};

Result<Timed> simulate(const sim::Scenario& scenario, const workload::Trace* trace, bool quiet,
                       const std::string& label) {
    TRY(const sim::ClusterSpec spec, scenario.cluster());
    TRY(const auto source, scenario.source(trace));
    sim::Cluster cluster(spec, *source);
    const auto begin = std::chrono::steady_clock::now();
    auto shown = begin;
    const auto progress = [&](double second, std::uint64_t finished) {
        const auto now = std::chrono::steady_clock::now();
        if (!quiet && now - shown > std::chrono::seconds(1)) {
            shown = now;
            std::fprintf(stderr, "\r%s: %.0f of %.0f s, %llu requests finished   ", label.c_str(),
                         second, to_seconds(scenario.end),
                         static_cast<unsigned long long>(finished));
        }
        return true;
    };
    TRY(sim::RunResult result, cluster.run(progress));
    if (!quiet && shown != begin) std::fputs("\r\033[K", stderr);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    Timed timed{std::move(result), {}, took.count()};
    const bool open_loop = scenario.workload == "trace" || scenario.workload == "synthetic";
    if (open_loop && spec.prefill.units > 0 && spec.decode.units > 0) {
        TRY(const auto again, scenario.source(trace));
        timed.oracle = sim::oracle_of(spec, *again);
    }
    return timed;
}

Json timed_json(const Timed& t, const sim::ClusterSpec& spec) {
    Json json = sim::to_json(t.result);
    const double ranks = spec.prefill.units * spec.prefill.unit.ranks +
                         spec.decode.units * spec.decode.unit.ranks +
                         spec.unified.units * spec.unified.unit.ranks;
    json.set("wall_seconds", t.seconds);
    if (t.oracle.requests_per_second > 0) {
        json.set("oracle_per_second", t.oracle.requests_per_second);
        json.set("oracle_prefill_per_second", t.oracle.prefill_per_second);
        json.set("oracle_decode_per_second", t.oracle.decode_per_second);
        json.set("oracle_hit_share", t.oracle.hit_share);
        json.set("load", t.result.offered_per_second / t.oracle.requests_per_second);
        json.set("goodput_over_oracle", t.result.goodput_per_second / t.oracle.requests_per_second);
    }
    json.set("gpu_hours_per_core_second",
             ranks * t.result.simulated_seconds / 3600 / std::max(1e-9, t.seconds));
    return json;
}

Result<void> run(const Request& request) {
    TRY(const Loaded l, load(request));
    TRY(const sim::ClusterSpec spec, l.scenario.cluster());
    TRY(const Timed t,
        simulate(l.scenario, l.trace ? &*l.trace : nullptr, request.quiet, l.scenario.name));
    if (request.json != "-") {
        std::fputs(sim::run_text(t.result).c_str(), stdout);
        if (t.oracle.requests_per_second > 0)
            std::fputs(
                fmt::format("offline oracle: {:.2f} requests/s (prefill {:.2f}, decode {:.2f}); "
                            "offered {:.1f} % of it, good {:.1f} %\n",
                            t.oracle.requests_per_second, t.oracle.prefill_per_second,
                            t.oracle.decode_per_second,
                            100 * t.result.offered_per_second / t.oracle.requests_per_second,
                            100 * t.result.goodput_per_second / t.oracle.requests_per_second)
                    .c_str(),
                stdout);
    }
    if (!request.json.empty()) TRY_VOID(write_file(request.json, timed_json(t, spec).dump()));
    if (!request.html.empty())
        TRY_VOID(
            write_file(request.html, sim::run_page(l.scenario, t.result, request.command, l.toml)));
    return {};
}

Result<void> compare(const Request& request) {
    TRY(Loaded l, load(request));
    std::vector<std::string> policies = request.policies;
    if (policies.empty())
        return err(Code::kConfig, "compare what? --policies nereid,round_robin,least_requests");
    std::vector<double> speeds = request.speeds;
    const bool swept = !speeds.empty();
    if (!swept) speeds.push_back(l.scenario.speed);
    std::vector<sim::LabelledRun> runs;
    Json list = Json::Array{};
    for (const double speed : speeds) {
        for (const std::string& policy : policies) {
            sim::Scenario scenario = l.scenario;
            scenario.policy = policy;
            scenario.speed = speed;
            if (scenario.workload != "trace") scenario.rate = l.scenario.rate * speed;
            const std::string label = swept ? fmt::format("{} ×{:g}", policy, speed) : policy;
            TRY(const sim::ClusterSpec spec, scenario.cluster());
            TRY(Timed t, simulate(scenario, l.trace ? &*l.trace : nullptr, request.quiet, label));
            Json json = timed_json(t, spec);
            json.set("label", label);
            json.set("speed", speed);
            list.as_array().push_back(std::move(json));
            runs.push_back({label, std::move(t.result)});
        }
    }
    if (request.json != "-") std::fputs(sim::comparison_text(runs).c_str(), stdout);
    if (!request.json.empty()) TRY_VOID(write_file(request.json, list.dump()));
    if (!request.html.empty())
        TRY_VOID(write_file(request.html,
                            sim::comparison_page(l.scenario, runs, request.command, l.toml)));
    return {};
}

Result<void> plan(const Request& request) {
    TRY(const Loaded l, load(request));
    sim::PlanningOptions options;
    options.price_per_gpu_hour = request.price;
    options.attainment = request.attainment;
    const auto show = [&](const sim::PlanningPoint& p) {
        if (request.quiet) return;
        fmt::print(stderr, "{} prefill, {} decode units: {:.1f} % within the objective\n",
                   p.prefill_units, p.decode_units, p.result.attainment * 100);
    };
    TRY(const sim::Planning planning,
        sim::plan_capacity(l.scenario, l.trace ? &*l.trace : nullptr, options, show));
    if (request.json != "-") std::fputs(sim::planning_text(planning, options).c_str(), stdout);
    if (!request.json.empty())
        TRY_VOID(write_file(request.json, sim::to_json(planning, options).dump()));
    if (!request.html.empty())
        TRY_VOID(write_file(request.html, sim::planning_page(l.scenario, planning, options,
                                                             request.command, l.toml)));
    return {};
}

}  // namespace

int sim_command(std::span<const std::string> args) {
    const Result<Request> request = parse(args);
    if (!request.ok()) return cli::report(request.error());
    if (request->help || request->scenario.empty()) {
        sim::Scenario scenario;
        std::fputs(kUsage.data(), stdout);
        const auto bind = [&scenario](io::ConfigBinder& b) { scenario.bind(b); };
        std::fputs(io::config_help(bind, {}).c_str(), stdout);
        return request->help ? cli::kOk : cli::kConfigExit;
    }
    const Result<void> done = request->verb == "compare" ? compare(*request)
                              : request->verb == "plan"  ? plan(*request)
                                                         : run(*request);
    return done.ok() ? cli::kOk : cli::report(done.error());
}

}  // namespace nereid::app
