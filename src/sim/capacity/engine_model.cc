#include "sim/capacity/engine_model.h"

#include <algorithm>

namespace nereid::sim {

namespace {

// The toy of our earlier studies (facts/router.md §5; peers/router/balsim): a 48 ms decode step at
// 88 requests and 440 k KV tokens a rank; prefill whose quadratic term equals the linear one at 15
// k tokens of context. The defaults of the struct.
EngineModel study() {
    EngineModel m;
    m.name = "study";
    return m;
}

// DeepSeek-V3/R1 on H800, EP32 prefill and EP144 decode.
//
// Calibrated on the balanced profile alone (deepseek-ai/profile-data, throughputs as LMSYS states
// them, blog 2025-05-05): prefill 62,713 tokens/s per node of 8 at 4,096-token prompts and 16,384
// tokens a step and GPU; decode 18,598 tokens/s per node at 128 requests of 4,096 tokens a GPU.
//   prefill: 1 / 7,839 s = 0.1276 ms a token = token + pair · 2,048 (+ fixed / 16,384);
//     pair / token = FLOPs of attention per pair over FLOPs of a token's GEMMs
//     = 61 · 128 · 2 · (192 + 128) / (2 · 37e9) = 1 / 14,800
//   decode: 128 / 2,325 s = 55.05 ms = fixed + request · 128 + kv · 524,288;
//     kv = 61 · 128 · 2 · (576 + 512) FLOPs / 580 TFLOPS (FlashMLA's published H800 rate) = 29.3
//     ns; fixed: weights of a GPU (11.4 GB attention, 58 · 3 experts of 44 MB) / 3.35 TB/s = 5.7
//     ms, and 0.1 ms of launches and collectives for each of 61 layers.
EngineModel v3_h800() {
    EngineModel m;
    m.name = "v3-h800";
    m.prefill_fixed_ms = 12;
    m.prefill_token_ms = (16'384 / 7.839125 - 12) / 16'384 / (1 + 2048.0 / 14'800);
    m.prefill_pair_ms = m.prefill_token_ms / 14'800;
    // Experts: 58 layers · 9 experts · 44.0 M of the 37 G active parameters, times the share of
    // time that is GEMM rather than attention.
    m.prefill_moe_share = 0.55;
    m.decode_fixed_ms = 11.8;
    m.decode_kv_token_ms = 2.93e-5;
    m.decode_request_ms = (128 / 2.32475 - 11.8 - 524'288 * 2.93e-5) / 128;
    m.decode_moe_share = 0.5;
    m.kv_bytes_per_token = 70'272;  // 61 layers · 576 · 2 bytes
    m.free_parameters = {
        "prefill_fixed_ms = 12 (launches and collectives of a step)",
        "launch and collective time of a decode layer = 0.1 ms (in decode_fixed_ms = 11.8)",
        "prefill_moe_share = 0.55, decode_moe_share = 0.5 (part of a rank's cost that is expert "
        "work)",
        "FlashMLA at 580 TFLOPS (published for H800) sets decode_kv_token_ms",
    };
    return m;
}

// DeepSeek-V4.1-Flash on H800: FLOPs as DeepInfer's estimator counts them, bytes from its layout
// (facts/deepinfer.md §5.3). Rates are carried over from V3's profile: 84 GFLOP FP8-equivalent a
// token at 0.1276 ms = 0.66 PFLOPS sustained in prefill.
EngineModel v41_flash_h800() {
    EngineModel m;
    m.name = "v41-flash-h800";
    m.flops = std::make_shared<const FlopsV41>(ArchitectureV41{}, 140);
    m.flops_per_ms = 0.66e12;
    m.prefill_fixed_ms = 8;
    m.prefill_moe_share = 0.5;
    // Decode verifies 1 + 5 drafts a request and step, at 0.6 of the prefill rate (V3's profile: 84
    // GFLOP in decode_request_ms); reads: 8 index-and-core layers gather 512 entries of 288 B in 38
    // layers, the index scans 170 B a token of context.
    constexpr double kRows = 6, kContext = 8192, kBandwidth = 3.35e9;  // bytes per ms
    const auto at = [&](std::int64_t context) {
        return static_cast<double>(m.flops->decode(context, 6).total) / (m.flops_per_ms * 0.6);
    };
    m.decode_kv_token_ms = (at(65'536 + 8192) - at(8192)) / 65'536 + 170 / kBandwidth;
    m.decode_request_ms =
        at(8192) - kContext * m.decode_kv_token_ms + kRows * 38 * 512 * 288 / kBandwidth;
    m.decode_fixed_ms = 40 * 0.1 + 5.0e9 / kBandwidth;
    m.decode_moe_share = 0.5;
    m.tokens_per_step = 2.5;
    m.kv_bytes_per_token = 891;
    m.state_bytes = 3'128'928;
    m.free_parameters = {
        "flops_per_ms = 0.66e12 in prefill, 0.6 of it in decode (both from V3's profile)",
        "0.1 ms of launches and collectives a decode layer; 5 GB of weights read a step",
        "tokens_per_step = 2.5 (accepted of 1 + 5 drafted)",
        "moe shares 0.5",
    };
    return m;
}

// Our llama.cpp worker on two cores with SmolLM2-135M Q4_1: fitted from measured steps; see
// docs/studies/llama.md for the command. One rank; prefill and decode share its steps.
EngineModel llama_cpu() {
    EngineModel m;
    m.name = "llama-cpu";
    m.prefill_fixed_ms = 4;
    m.prefill_token_ms = 1.3;
    m.prefill_pair_ms = 1.4e-4;
    m.decode_fixed_ms = 11;
    m.decode_request_ms = 2.4;
    m.decode_kv_token_ms = 1.2e-3;
    m.kv_bytes_per_token = 23'040;
    m.free_parameters = {"all: fitted by bench/sim_fit.py from measured steps"};
    return m;
}

struct Named {
    std::string_view name;
    EngineModel (*make)();
};
constexpr Named kModels[] = {{"study", study},
                             {"v3-h800", v3_h800},
                             {"v41-flash-h800", v41_flash_h800},
                             {"llama-cpu", llama_cpu}};

}  // namespace

double EngineModel::chunk_ms(TokenCount from, TokenCount to, TokenCount prompt) const {
    if (to <= from) return 0;
    if (flops != nullptr)
        return static_cast<double>(flops->prefill(from, to - from, prompt).total) / flops_per_ms;
    const double n = to - from;
    return n * prefill_token_ms + n * (from + n / 2) * prefill_pair_ms;
}

TokenCount EngineModel::tokens_within(TokenCount from, TokenCount limit, TokenCount prompt,
                                      double budget_ms) const {
    if (limit <= kChunkGrain || chunk_ms(from, from + limit, prompt) <= budget_ms) return limit;
    TokenCount low = 1, high = limit / kChunkGrain + 1;  // in grains; low always allowed
    while (high - low > 1) {
        const TokenCount middle = low + (high - low) / 2;
        const TokenCount tokens = std::min(limit, middle * kChunkGrain);
        (chunk_ms(from, from + tokens, prompt) <= budget_ms ? low : high) = middle;
    }
    return std::min(limit, low * kChunkGrain);
}

router::CostModel EngineModel::router_model(double bytes_per_ms) const {
    router::CostModel model;
    model.prefill.fixed_ms = 0;
    if (flops != nullptr) {
        // Secant through 2 k and 32 k tokens: what a configured linear model would say.
        const double a = chunk_ms(0, 2048, 2048) / 2048, b = chunk_ms(0, 32'768, 32'768) / 32'768;
        model.prefill.per_token_context_ms = std::max(0.0, (b - a) / (16'384 - 1024));
        model.prefill.per_token_ms = a - 1024 * model.prefill.per_token_context_ms;
    } else {
        model.prefill.per_token_ms = prefill_token_ms;
        model.prefill.per_token_context_ms = prefill_pair_ms;
    }
    model.decode.fixed_ms = decode_fixed_ms;
    model.decode.per_request_ms = decode_request_ms;
    model.decode.per_kv_token_ms = decode_kv_token_ms;
    model.transfer.bytes_per_ms = bytes_per_ms;
    model.transfer.kv_bytes_per_token = kv_bytes_per_token;
    return model;
}

Result<EngineModel> engine_model(std::string_view name) {
    for (const Named& m : kModels)
        if (m.name == name) return m.make();
    std::string known;
    for (const Named& m : kModels) known += (known.empty() ? "" : ", ") + std::string(m.name);
    return err(Code::kConfig,
               "no engine model is called '" + std::string(name) + "'; known: " + known);
}

std::vector<std::string_view> engine_model_names() {
    std::vector<std::string_view> names;
    for (const Named& m : kModels) names.push_back(m.name);
    return names;
}

}  // namespace nereid::sim
