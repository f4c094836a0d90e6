// Synthetic workloads: arrivals, lengths, shared prefixes, agents, mixtures. All draws come from
// our Prng (base/distributions.h), so one seed is one workload on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "base/units.h"
#include "workload/request.h"

namespace nereid::workload {

// When requests come. All kinds have the mean rate `per_second`.
struct ArrivalSpec {
    enum class Kind : std::uint8_t {
        kConstant,  // evenly spaced
        kPoisson,
        kGamma,    // renewal, gaps gamma-distributed with coefficient of variation `cv`; cv > 1
                   // bursts
        kMmpp,     // Markov-modulated Poisson: a calm and a burst state
        kDiurnal,  // Poisson whose rate follows a sine of `period` with relative amplitude `swing`
    } kind = Kind::kPoisson;
    double per_second = 1;
    double cv = 3;               // kGamma
    double burst_factor = 8;     // kMmpp: rate in a burst over rate in calm
    Duration burst_length = 5s;  // kMmpp: mean stay in a burst
    Duration calm_length = 55s;  // kMmpp: mean stay in calm
    Duration period = 24h;       // kDiurnal; the trough is at time 0
    double swing = 0.6;          // kDiurnal: in [0, 1)
};

class Arrivals {
  public:
    // kInvalidArgument, with the field's name as param, when a value is out of its range.
    static Result<Arrivals> make(const ArrivalSpec& spec, Prng prng);
    Duration next();  // not before the previous one

  private:
    Arrivals(const ArrivalSpec& spec, Prng prng);
    double gap_seconds();
    double mmpp_gap();
    double diurnal_gap();
    ArrivalSpec spec_;
    Prng prng_;
    double now_s_ = 0;
    bool burst_ = false;
    double state_left_s_ = 0;  // kMmpp
    double calm_rate_ = 0;     // kMmpp
};

// How long things are: tokens, turns, milliseconds. Draws are clamped to [min, max].
struct LengthSpec {
    enum class Kind : std::uint8_t {
        kConstant,   // `mean`
        kUniform,    // over [min, max]
        kLogNormal,  // mean `mean`, standard deviation of the logarithm `sigma`
        kPareto,     // Lomax: mean `mean` before clamping, tail index `alpha` > 1
        kEmpirical,  // drawn from `values`
    } kind = Kind::kLogNormal;
    double mean = 1000;
    double sigma = 1;
    double alpha = 1.8;
    double min = 1;
    double max = 1e6;
    std::vector<double> values = {};
};
// kInvalidArgument as above.
Result<void> validate(const LengthSpec& spec);
// Precondition: validate(spec).ok().
double draw(const LengthSpec& spec, Prng& prng);

// Independent requests, optionally with prefixes shared between many (system prompts, documents).
struct SyntheticSpec {
    ArrivalSpec arrivals = {};
    LengthSpec input = {.mean = 2000, .sigma = 1.1, .max = 120'000};
    LengthSpec output = {.mean = 300, .sigma = 0.9, .max = 16'000};
    TokenCount block_tokens = 64;
    // A request begins, with probability prefix_share, with one of `prefixes` common prefixes drawn
    // by Zipf's law; the prefix comes on top of `input`.
    std::uint32_t prefixes = 0;
    double prefix_zipf = 1;
    double prefix_share = 1;
    LengthSpec prefix_length = {.mean = 1500, .sigma = 0.5, .max = 20'000};
    // Images: with probability image_share a request has 1 + Poisson(images_mean - 1) of them.
    double image_share = 0;
    double images_mean = 1.5;
    LengthSpec image_patches = {.mean = 1024, .sigma = 0.8, .min = 64, .max = 16'384};
    double image_repeat = 0.2;   // probability that an image is one seen before
    std::uint64_t requests = 0;  // end after this many; 0: no end by count
    Duration end = Source::kNever;
    std::uint64_t seed = 1;
};
Result<std::unique_ptr<Source>> synthetic(const SyntheticSpec& spec);

// Agents: sessions of many turns, each appending little to a long context. Defaults follow
// DualPath's published statistics (mean 157 turns, at least 95 % of prompt tokens are hits, short
// appends). Closed loop: a turn arrives its tool time after the previous one finished.
struct AgentSpec {
    ArrivalSpec arrivals = {.per_second = 0.1};  // of sessions
    LengthSpec turns = {.mean = 157, .sigma = 0.6, .min = 1, .max = 2000};
    LengthSpec task = {.mean = 6000,
                       .sigma = 0.8,
                       .min = 64,
                       .max = 60'000};  // first prompt, on top of the system prompt
    LengthSpec append = {
        .mean = 450, .sigma = 1.1, .min = 8, .max = 16'000};  // tool result per turn
    LengthSpec output = {.mean = 220, .sigma = 0.9, .min = 4, .max = 8000};
    LengthSpec tool_ms = {.mean = 4000, .sigma = 1.2, .min = 20, .max = 600'000};
    TokenCount block_tokens = 64;
    std::uint32_t systems = 4;  // distinct system prompts (agent kinds), Zipf 1
    TokenCount system_tokens = 9000;
    TokenCount max_context = 128'000;      // reached: the session compacts to compacted_tokens
    TokenCount compacted_tokens = 12'000;  //   of fresh text behind the system prompt
    std::uint64_t sessions = 0;            // end after this many began; 0: no end by count
    Duration end = Source::kNever;         // no turn arrives later
    std::uint64_t seed = 1;
};
Result<std::unique_ptr<Source>> agents(const AgentSpec& spec);

// Several sources as one. Sessions and block ids stay distinct per part (origin = index). All parts
// must have the same block_tokens or none (kInvalidArgument).
Result<std::unique_ptr<Source>> mix(std::vector<std::unique_ptr<Source>> parts);

}  // namespace nereid::workload
