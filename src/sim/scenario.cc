#include "sim/scenario.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "io/disk.h"
#include "router/cost/engine_cost.h"
#include "sim/capacity/population.h"
#include "workload/generators.h"

namespace nereid::sim {

namespace {

constexpr double kHuge = 1e12;

void bind_pool(io::ConfigBinder& b, std::string_view name, Scenario::Pool& p) {
    const std::string prefix = std::string(name) + ".";
    b.knob(prefix + "units", p.units,
           {.unit = "units",
            .min = 0,
            .max = 10'000,
            .doc = "groups of ranks with a barrier per step"});
    b.knob(prefix + "ranks", p.ranks,
           {.unit = "ranks", .min = 1, .max = 4096, .doc = "ranks (GPUs) of a unit"});
    b.knob(prefix + "token_budget", p.token_budget,
           {.unit = "tokens", .min = 1, .max = 1e6, .doc = "prompt tokens per rank and step"});
    b.knob(prefix + "cost_budget", p.cost_budget,
           {.min = 0,
            .max = 3600,
            .doc = "predicted time of the chunks of a rank and step; 0ms = none"});
    b.knob(prefix + "kv_capacity", p.kv_capacity,
           {.unit = "tokens", .min = 0, .max = kHuge, .doc = "KV room of a rank; 0 = unlimited"});
    b.knob(
        prefix + "max_running", p.max_running,
        {.unit = "requests", .min = 0, .max = 1e6, .doc = "decode batch of a rank; 0 = unlimited"});
    b.knob(prefix + "vote_all", p.vote_all,
           {.unit = "steps",
            .min = 0,
            .max = 1e6,
            .doc = "unified: decode steps before prompts are tried when all ranks have some; 0 = "
                   "always"});
    b.knob(prefix + "vote_any", p.vote_any,
           {.unit = "steps", .min = 0, .max = 1e6, .doc = "the same when any rank has some"});
    b.knob(prefix + "decode_gap", p.decode_gap,
           {.min = 0,
            .max = 3600,
            .doc = "unified: one prompt's chunk a step, until such steps have taken this since the "
                   "last decode (llama.cpp worker); 0ms = votes"});
    b.knob(
        prefix + "burst_factor", p.burst_factor,
        {.min = 1, .max = 100, .doc = "decode_gap is so much longer while more wait than decode"});
}

UnitSpec unit_of(const Scenario::Pool& p, double imbalance) {
    UnitSpec u;
    u.ranks = static_cast<std::uint32_t>(p.ranks);
    u.token_budget = static_cast<TokenCount>(p.token_budget);
    u.cost_budget_ms = to_ms(p.cost_budget);
    u.kv_capacity_tokens = static_cast<double>(p.kv_capacity);
    u.max_running = static_cast<std::uint32_t>(p.max_running);
    u.vote_all = static_cast<std::uint32_t>(p.vote_all);
    u.vote_any = static_cast<std::uint32_t>(p.vote_any);
    u.decode_gap_ms = to_ms(p.decode_gap);
    u.burst_factor = p.burst_factor;
    u.moe_imbalance = imbalance;
    return u;
}

// "decode/0@600s detected=1s back=60s"
Result<Fault> parse_fault(const std::string& text) {
    const auto bad = [&](const std::string& why) {
        return err(Code::kConfig, "faults.list: \"" + text + "\": " + why +
                                      "; write \"decode/0@600s detected=1s back=60s\"");
    };
    Fault fault;
    const std::size_t slash = text.find('/'), at = text.find('@');
    if (slash == std::string::npos || at == std::string::npos || at < slash)
        return bad("no POOL/UNIT@TIME");
    const std::string pool = text.substr(0, slash);
    if (pool == "prefill")
        fault.stage = router::Stage::kPrefill;
    else if (pool == "decode")
        fault.stage = router::Stage::kDecode;
    else if (pool == "unified")
        fault.stage = router::Stage::kUnified;
    else
        return bad("no pool is called " + pool);
    const std::string unit = text.substr(slash + 1, at - slash - 1);
    const auto parsed = std::from_chars(unit.data(), unit.data() + unit.size(), fault.unit);
    if (parsed.ec != std::errc{} || parsed.ptr != unit.data() + unit.size())
        return bad("the unit is no number");
    std::string rest = text.substr(at + 1);
    for (bool first = true; !rest.empty(); first = false) {
        const std::size_t space = rest.find(' ');
        std::string word = rest.substr(0, space);
        rest = space == std::string::npos ? "" : rest.substr(space + 1);
        if (word.empty()) continue;
        const std::size_t equals = word.find('=');
        const std::string key = first ? "at" : word.substr(0, equals);
        const auto value = io::parse_duration(first ? word : word.substr(equals + 1));
        if (!value.ok()) return bad(value.error().message);
        if (key == "at")
            fault.at = value->count();
        else if (key == "detected")
            fault.detected_after = value->count();
        else if (key == "back")
            fault.back_after = value->count();
        else
            return bad("no part is called " + key);
    }
    return fault;
}

// An engine's own model of its costs, in place of ours.
Result<void> use_engine_cost(EngineModel& model, const std::string& file, double tflops) {
    const auto read = [&]() -> Result<router::CostModel> {
        TRY(const std::string text, io::read_file(file, 1 << 20));
        TRY(const Json source, Json::parse(text));
        return router::cost_of_engine(source, tflops, model.router_model(1));
    };
    const auto cost = read();
    if (!cost.ok()) return err(Code::kConfig, "engine.cost: " + file + ": " + cost.error().message);
    model.flops.reset();
    model.prefill_token_ms = cost->prefill.per_token_ms;
    model.prefill_pair_ms = cost->prefill.per_token_context_ms;
    model.decode_fixed_ms = cost->decode.fixed_ms;
    model.decode_request_ms = cost->decode.per_request_ms;
    return {};
}

}  // namespace

void Scenario::bind(io::ConfigBinder& b) {
    b.knob("run.name", name, {.doc = "title of the report"});
    b.knob("run.warmup", warmup,
           {.min = 0, .max = 1e7, .doc = "simulated time that is not measured"});
    b.knob("run.end", end, {.min = 0.001, .max = 1e7, .doc = "no request arrives after this"});
    b.knob("run.drain", drain,
           {.min = 0, .max = 1e7, .doc = "how long requests may run on after the end"});
    b.knob("run.seed", seed, {.min = 0, .max = 9e15, .doc = "of every random draw"});
    b.knob("run.record", record, {.doc = "one line per request in the JSON result"});

    b.knob("workload.kind", workload,
           {.choices = {"trace", "synthetic", "agents", "population"},
            .doc = "where requests come from"});
    b.knob("workload.trace", trace,
           {.doc = "file of kind \"trace\" (.jsonl Mooncake or Bailian, .csv Azure, .ntrace)"});
    b.knob(
        "workload.copies", copies,
        {.min = 1, .max = 1e5, .doc = "independent copies of the trace, prefixes kept distinct"});
    b.knob("workload.repeats", repeats,
           {.min = 1, .max = 1e5, .doc = "times the trace is played, one after another"});
    b.knob("workload.speed", speed,
           {.min = 1e-3, .max = 1e4, .doc = "arrivals of the trace come this much faster"});
    b.knob("workload.jitter", jitter,
           {.min = 0, .max = 3600, .doc = "each arrival of a trace moves by less than this"});
    b.knob("workload.copy_offset", copy_offset,
           {.min = 0, .max = 1e6, .doc = "copies start this much apart at most"});
    b.knob("workload.rate", rate,
           {.unit = "1/s", .min = 1e-6, .max = 1e6, .doc = "arrivals (agents: of sessions)"});
    b.knob("workload.arrivals", arrivals,
           {.choices = {"constant", "poisson", "gamma", "mmpp", "diurnal"},
            .doc = "of synthetic requests and agent sessions"});
    b.knob("workload.burstiness", burstiness,
           {.min = 0.01, .max = 100, .doc = "coefficient of variation of gamma gaps"});
    b.knob("workload.input_mean", input_mean,
           {.unit = "tokens", .min = 1, .max = 1e6, .doc = "log-normal"});
    b.knob("workload.input_sigma", input_sigma, {.min = 0, .max = 5, .doc = "of the logarithm"});
    b.knob("workload.input_max", input_max,
           {.unit = "tokens", .min = 1, .max = 2e6, .doc = "longest prompt"});
    b.knob("workload.output_mean", output_mean,
           {.unit = "tokens", .min = 1, .max = 1e6, .doc = "log-normal"});
    b.knob("workload.output_sigma", output_sigma, {.min = 0, .max = 5, .doc = "of the logarithm"});
    b.knob("workload.output_max", output_max,
           {.unit = "tokens", .min = 1, .max = 1e6, .doc = "longest output"});
    b.knob("workload.prefixes", prefixes,
           {.min = 0,
            .max = 1e6,
            .doc = "common prefixes that synthetic requests share, by Zipf's law"});
    b.knob("workload.prefix_mean", prefix_mean,
           {.unit = "tokens", .min = 1, .max = 1e6, .doc = "their length"});
    b.knob("workload.block_tokens", block_tokens,
           {.unit = "tokens", .min = 1, .max = 65'536, .doc = "of synthetic prefix chains"});
    b.knob("workload.population", population,
           {.unit = "requests",
            .min = 1,
            .max = 1e7,
            .doc = "kind \"population\": constant number of requests in decode"});

    b.knob("engine.model", engine, {.choices = engine_model_names(), .doc = "what steps cost"});
    b.knob("engine.moe_imbalance_prefill", moe_imbalance_prefill,
           {.min = 1,
            .max = 100,
            .doc = "expert work of the fullest rank over the mean, mean of the layers"});
    b.knob("engine.moe_imbalance_decode", moe_imbalance_decode,
           {.min = 1, .max = 100, .doc = "the same in decode"});
    b.knob("engine.cost", cost_file,
           {.doc = "file with an engine's own model of its costs, in place of the model's: "
                   "cost.json of a DeepInfer group"});
    b.knob("engine.cost_tflops", cost_tflops,
           {.min = 0,
            .max = 1e9,
            .doc = "TFLOP/s that it reaches in prefill; 0 = a token costs what the model's does"});
    const auto fitted = [&](std::string_view key, double& field, std::string_view doc) {
        b.knob(key, field, {.min = -1, .max = 1e9, .doc = doc});
    };
    fitted("engine.prefill_fixed_ms", prefill_fixed_ms,
           "of a step with prompts; negative = the model's");
    fitted("engine.prefill_token_us", prefill_token_us,
           "of a prompt token; negative = the model's");
    fitted("engine.prefill_pair_ns", prefill_pair_ns,
           "of a prompt token and token before it; negative = the model's");
    fitted("engine.decode_fixed_ms", decode_fixed_ms, "of a decode step; negative = the model's");
    fitted("engine.decode_request_ms", decode_request_ms,
           "of a request in it; negative = the model's");
    fitted("engine.decode_kv_token_ns", decode_kv_token_ns,
           "of a token of its KV; negative = the model's");
    b.knob(
        "engine.neighbour_slowdown", neighbour_slowdown,
        {.min = 1,
         .max = 100,
         .doc = "units on one machine: a step's length for each other unit that steps meanwhile; "
                "1 = machines of their own"});
    b.knob("engine.tokens_per_step", tokens_per_step,
           {.min = 0,
            .max = 16,
            .doc = "accepted tokens of a request and decode step; 0 = the model's"});

    bind_pool(b, "prefill", prefill);
    bind_pool(b, "decode", decode);
    bind_pool(b, "unified", unified);

    b.knob(
        "cache.hbm_tokens", hbm_tokens,
        {.unit = "tokens", .min = 0, .max = kHuge, .doc = "prefix cache of a prefill rank in HBM"});
    b.knob("cache.dram_tokens", dram_tokens,
           {.unit = "tokens", .min = 0, .max = kHuge, .doc = "... in DRAM"});
    b.knob("cache.ssd_tokens", ssd_tokens,
           {.unit = "tokens", .min = 0, .max = kHuge, .doc = "... on SSD"});
    b.knob("cache.dram_rate", dram_rate, {.doc = "restoring from DRAM, per second and rank"});
    b.knob("cache.ssd_rate", ssd_rate, {.doc = "restoring from SSD, per second and rank"});
    b.knob("network.rate", network_rate, {.doc = "of a rank's NIC, per second and direction"});
    b.knob("network.latency", network_latency, {.min = 0, .max = 10, .doc = "of a transfer"});
    b.knob("network.handoff_overlap", handoff_overlap,
           {.min = 0, .max = 1, .doc = "part of a prompt's KV sent before its last chunk ends"});

    b.knob("gateways.count", gateways,
           {.min = 1, .max = 256, .doc = "each with a view of its own"});
    b.knob("gateways.report_interval", report_interval,
           {.min = 0, .max = 3600, .doc = "between two reports of an engine; 0ms = none"});
    b.knob("gateways.report_delay", report_delay,
           {.min = 0, .max = 3600, .doc = "age of a report when it arrives"});
    b.knob("gateways.digest_interval", digest_interval,
           {.min = 0, .max = 3600, .doc = "between broadcasts of own charges; 0ms = none"});
    b.knob("gateways.digest_delay", digest_delay,
           {.min = 0, .max = 3600, .doc = "age of a broadcast when it arrives"});
    b.knob("gateways.event_delay", event_delay, {.min = 0, .max = 3600, .doc = "of KV events"});
    b.knob("gateways.tokenise_us_per_token", tokenise_us_per_token,
           {.min = 0, .max = 1000, .doc = "before a request is routed"});
    b.knob("gateways.queue_max", queue_max,
           {.min = 0, .max = 1e8, .doc = "requests that wait while no rank may take them"});

    b.knob("router.policy", policy, {.doc = "\"nereid\" or a peer's, for every stage"});
    b.knob("router.prefill", prefill_policy, {.doc = "stage policy under \"nereid\""});
    b.knob("router.decode", decode_policy, {.doc = "stage policy under \"nereid\""});
    b.knob("router.unified", unified_policy, {.doc = "stage policy under \"nereid\""});
    b.knob("router.echo", echo,
           {.doc = "assume that other gateways place as we do while a sample ages"});
    b.knob("router.fit", fit, {.doc = "fit the cost model from measured steps"});
    b.knob("router.late_binding", late_binding,
           {.doc = "workers forward or refuse prompts beyond their quota"});
    b.knob("router.quota", quota,
           {.min = 0, .max = 3600, .doc = "predicted prefill time that a rank accepts"});
    b.knob("router.reject_late", reject_late, {.doc = "refuse what is predicted to miss its TTFT"});
    b.knob("router.expected_output", expected_output,
           {.unit = "tokens", .min = 1, .max = 1e6, .doc = "mean output, for predictions"});
    b.knob("router.reserve_output", reserve_output,
           {.unit = "tokens",
            .min = 0,
            .max = 1e6,
            .doc = "q90 of outputs: KV room wanted beyond the prompt"});
    b.knob("router.migrate_every", migrate_every,
           {.unit = "steps",
            .min = 0,
            .max = 1e6,
            .doc = "decode steps of a unit between migrations; 0 = none"});
    b.knob("router.migrate_count", migrate_count,
           {.min = 1, .max = 100, .doc = "requests moved each time at most"});
    b.knob("router.migrate_pause", migrate_pause,
           {.min = 0, .max = 10, .doc = "stop of a moved request besides its copying"});

    b.knob("slo.ttft", slo_ttft, {.min = 0, .max = 1e6, .doc = "time to first token"});
    b.knob("slo.ttft_per_ktoken", slo_ttft_per_ktoken,
           {.min = 0, .max = 1e6, .doc = "added for each 1,000 prompt tokens"});
    b.knob("slo.itl", slo_itl, {.min = 0, .max = 1e6, .doc = "mean gap of a request's tokens"});
    b.knob("faults.list", faults,
           {.doc = "crashes of units: \"decode/0@600s detected=1s back=60s\""});
}

Result<ClusterSpec> Scenario::cluster() const {
    ClusterSpec s;
    TRY(s.engine, engine_model(engine));
    if (!cost_file.empty()) TRY_VOID(use_engine_cost(s.engine, cost_file, cost_tflops));
    if (tokens_per_step > 0) s.engine.tokens_per_step = tokens_per_step;
    const auto fitted = [](double& field, double value, double scale) {
        if (value >= 0) field = value * scale;
    };
    fitted(s.engine.prefill_fixed_ms, prefill_fixed_ms, 1);
    fitted(s.engine.prefill_token_ms, prefill_token_us, 1e-3);
    fitted(s.engine.prefill_pair_ms, prefill_pair_ns, 1e-6);
    fitted(s.engine.decode_fixed_ms, decode_fixed_ms, 1);
    fitted(s.engine.decode_request_ms, decode_request_ms, 1);
    fitted(s.engine.decode_kv_token_ms, decode_kv_token_ns, 1e-6);
    s.neighbour_slowdown = neighbour_slowdown;
    const auto pool = [](const Pool& p, double imbalance) {
        return PoolSpec{static_cast<std::uint32_t>(p.units), unit_of(p, imbalance)};
    };
    s.prefill = pool(prefill, moe_imbalance_prefill);
    s.decode = pool(decode, moe_imbalance_decode);
    s.unified = pool(unified, moe_imbalance_decode);
    const auto per_ms = [](io::SizeBytes size) { return static_cast<double>(size.value) / 1000; };
    s.cache.tokens = {static_cast<std::uint64_t>(hbm_tokens),
                      static_cast<std::uint64_t>(dram_tokens),
                      static_cast<std::uint64_t>(ssd_tokens)};
    s.cache.bytes_per_ms = {0, per_ms(dram_rate), per_ms(ssd_rate)};
    s.network.bytes_per_ms = per_ms(network_rate);
    s.network.latency_ms = to_ms(network_latency);
    s.network.handoff_overlap = handoff_overlap;
    s.gateways.count = static_cast<std::uint32_t>(gateways);
    s.gateways.report_interval = report_interval.count();
    s.gateways.report_delay = report_delay.count();
    s.gateways.digest_interval = digest_interval.count();
    s.gateways.digest_delay = digest_delay.count();
    s.gateways.event_delay = event_delay.count();
    s.gateways.tokenise_us_per_token = tokenise_us_per_token;
    s.gateways.queue_max = static_cast<std::uint32_t>(queue_max);
    s.router.policy = policy;
    s.router.options.prefill = prefill_policy;
    s.router.options.decode = decode_policy;
    s.router.options.unified = unified_policy;
    s.router.echo = echo;
    s.router.fit = fit;
    s.router.late_binding = late_binding;
    s.router.quota_ms = to_ms(quota);
    s.router.reject_late = reject_late;
    s.router.expected_output = static_cast<TokenCount>(expected_output);
    s.router.reserve_output = static_cast<TokenCount>(reserve_output);
    s.router.migrate_every = static_cast<std::uint32_t>(migrate_every);
    s.router.migration.per_unit = static_cast<std::uint32_t>(migrate_count);
    s.router.migration.pause_fixed_ms = to_ms(migrate_pause);
    s.slo.ttft_ms = to_ms(slo_ttft);
    s.slo.ttft_ms_per_token = to_ms(slo_ttft_per_ktoken) / 1000;
    s.slo.itl_ms = to_ms(slo_itl);
    for (const std::string& text : faults) {
        TRY(const Fault fault, parse_fault(text));
        s.faults.push_back(fault);
    }
    s.warmup = warmup.count();
    s.end = end.count();
    s.drain = drain.count();
    s.seed = static_cast<std::uint64_t>(seed);
    s.record = record;
    if (warmup >= end)
        return err(Code::kConfig,
                   "run.warmup: nothing is left to measure; make it shorter than run.end");
    return s;
}

Result<std::unique_ptr<workload::Source>> Scenario::source(const workload::Trace* parsed) const {
    using workload::ArrivalSpec;
    using workload::LengthSpec;
    const auto seed_of = static_cast<std::uint64_t>(seed);
    ArrivalSpec arrival;
    arrival.per_second = rate;
    arrival.cv = burstiness;
    constexpr std::pair<std::string_view, ArrivalSpec::Kind> kKinds[] = {
        {"constant", ArrivalSpec::Kind::kConstant}, {"poisson", ArrivalSpec::Kind::kPoisson},
        {"gamma", ArrivalSpec::Kind::kGamma},       {"mmpp", ArrivalSpec::Kind::kMmpp},
        {"diurnal", ArrivalSpec::Kind::kDiurnal},
    };
    for (const auto& [text, kind] : kKinds)
        if (text == arrivals) arrival.kind = kind;
    const LengthSpec input{
        .mean = input_mean, .sigma = input_sigma, .min = 16, .max = static_cast<double>(input_max)};
    const LengthSpec output{.mean = output_mean,
                            .sigma = output_sigma,
                            .min = 1,
                            .max = static_cast<double>(output_max)};
    if (workload == "population") {
        PopulationSpec p;
        p.requests = static_cast<std::uint64_t>(population);
        p.input = input;
        p.output = output;
        p.seed = seed_of;
        return closed_population(p);
    }
    if (workload == "agents") {
        workload::AgentSpec a;
        a.arrivals = arrival;
        a.block_tokens = static_cast<TokenCount>(block_tokens);
        a.end = end;
        a.seed = seed_of;
        return workload::agents(a);
    }
    if (workload == "trace") {
        if (parsed == nullptr)
            return err(Code::kConfig, "workload.trace: name a file (kind \"trace\" replays one)");
        workload::ReplayOptions o;
        o.copies = static_cast<std::uint32_t>(copies);
        o.repeats = static_cast<std::uint32_t>(repeats);
        o.speed = speed;
        o.jitter = jitter;
        o.copy_offset = copy_offset;
        o.end = end;
        o.seed = seed_of;
        return workload::replay(*parsed, o);
    }
    workload::SyntheticSpec s;
    s.arrivals = arrival;
    s.input = input;
    s.output = output;
    s.block_tokens = static_cast<TokenCount>(block_tokens);
    s.prefixes = static_cast<std::uint32_t>(prefixes);
    s.prefix_length.mean = prefix_mean;
    s.end = end;
    s.seed = seed_of;
    return workload::synthetic(s);
}

}  // namespace nereid::sim
