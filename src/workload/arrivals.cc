// Arrivals and LengthSpec of generators.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/distributions.h"
#include "workload/draws.h"
#include "workload/generators.h"

namespace nereid::workload {

namespace {

std::unexpected<Error> out_of_range(const char* field, const char* wanted, double found) {
    return err(Code::kInvalidArgument,
               fmt::format("{}: expected {}, found {:g}", field, wanted, found), field);
}

}  // namespace

Result<Arrivals> Arrivals::make(const ArrivalSpec& spec, Prng prng) {
    using Kind = ArrivalSpec::Kind;
    if (!(spec.per_second > 0 && spec.per_second <= 1e9))
        return out_of_range("per_second", "a rate over 0", spec.per_second);
    if (spec.kind == Kind::kGamma && !(spec.cv > 0 && spec.cv <= 100))
        return out_of_range("cv", "a number in (0, 100]", spec.cv);
    if (spec.kind == Kind::kMmpp) {
        if (!(spec.burst_factor >= 1 && spec.burst_factor <= 1e6))
            return out_of_range("burst_factor", "at least 1", spec.burst_factor);
        if (spec.burst_length <= Duration{0})
            return out_of_range("burst_length", "over 0", to_seconds(spec.burst_length));
        if (spec.calm_length <= Duration{0})
            return out_of_range("calm_length", "over 0", to_seconds(spec.calm_length));
    }
    if (spec.kind == Kind::kDiurnal) {
        if (!(spec.swing >= 0 && spec.swing < 1))
            return out_of_range("swing", "a number in [0, 1)", spec.swing);
        if (spec.period <= Duration{0})
            return out_of_range("period", "over 0", to_seconds(spec.period));
    }
    return Arrivals(spec, prng);
}

Arrivals::Arrivals(const ArrivalSpec& spec, Prng prng) : spec_(spec), prng_(prng) {
    // The time-weighted mean of the two rates is per_second.
    const double burst = to_seconds(spec.burst_length);
    const double calm = to_seconds(spec.calm_length);
    calm_rate_ = spec.per_second * (burst + calm) / (burst * spec.burst_factor + calm);
    burst_ = spec.kind == ArrivalSpec::Kind::kMmpp && prng_.chance(burst / (burst + calm));
    state_left_s_ = prng_.exponential(burst_ ? burst : calm);
}

// Between changes of state arrivals are Poisson; what is left of a gap when the state changes is
// drawn anew (memoryless).
double Arrivals::mmpp_gap() {
    double gap = 0;
    while (true) {
        const double rate = burst_ ? calm_rate_ * spec_.burst_factor : calm_rate_;
        const double next = prng_.exponential(1 / rate);
        if (next <= state_left_s_) {
            state_left_s_ -= next;
            return gap + next;
        }
        gap += state_left_s_;
        burst_ = !burst_;
        state_left_s_ =
            prng_.exponential(to_seconds(burst_ ? spec_.burst_length : spec_.calm_length));
    }
}

// Thinning (Lewis, Shedler 1979) of a Poisson stream of the peak rate.
double Arrivals::diurnal_gap() {
    const double peak = spec_.per_second * (1 + spec_.swing);
    double at = now_s_;
    while (true) {
        at += prng_.exponential(1 / peak);
        const double phase = 2 * std::numbers::pi * at / to_seconds(spec_.period);
        const double rate = spec_.per_second * (1 - spec_.swing * std::cos(phase));
        if (prng_.uniform() * peak <= rate) return at - now_s_;
    }
}

double Arrivals::gap_seconds() {
    switch (spec_.kind) {
        case ArrivalSpec::Kind::kConstant:
            return 1 / spec_.per_second;
        case ArrivalSpec::Kind::kPoisson:
            return prng_.exponential(1 / spec_.per_second);
        case ArrivalSpec::Kind::kGamma: {
            const double shape = 1 / (spec_.cv * spec_.cv);
            return draw_gamma(prng_, shape, 1 / (spec_.per_second * shape));
        }
        case ArrivalSpec::Kind::kMmpp:
            return mmpp_gap();
        case ArrivalSpec::Kind::kDiurnal:
            return diurnal_gap();
    }
    return 0;
}

Duration Arrivals::next() {
    now_s_ = std::min(now_s_ + gap_seconds(), 9e9);  // 285 years: the end of a Duration
    return Duration(static_cast<std::int64_t>(now_s_ * 1e9));
}

Result<void> validate(const LengthSpec& spec) {
    using Kind = LengthSpec::Kind;
    if (!(spec.min >= 0 && spec.min <= spec.max && spec.max <= 1e12))
        return out_of_range("min", "0 <= min <= max", spec.min);
    const bool by_mean = spec.kind != Kind::kUniform && spec.kind != Kind::kEmpirical;
    if (by_mean && !(spec.mean > 0 && spec.mean <= 1e12))
        return out_of_range("mean", "a number over 0", spec.mean);
    if (spec.kind == Kind::kLogNormal && !(spec.sigma >= 0 && spec.sigma <= 10))
        return out_of_range("sigma", "a number in [0, 10]", spec.sigma);
    if (spec.kind == Kind::kPareto && !(spec.alpha > 1 && spec.alpha <= 100))
        return out_of_range("alpha", "a number in (1, 100]", spec.alpha);
    if (spec.kind == Kind::kEmpirical && spec.values.empty())
        return out_of_range("values", "at least one value", 0);
    return {};
}

Result<void> validate_tokens(const LengthSpec& spec) {
    TRY_VOID(validate(spec));
    if (spec.max > 1e9) return out_of_range("max", "at most 1e9 tokens", spec.max);
    return {};
}

double draw(const LengthSpec& spec, Prng& prng) {
    double v = spec.mean;
    switch (spec.kind) {
        case LengthSpec::Kind::kConstant:
            break;
        case LengthSpec::Kind::kUniform:
            v = spec.min + (spec.max - spec.min) * prng.uniform();
            break;
        case LengthSpec::Kind::kLogNormal:
            v = draw_log_normal(prng, std::log(spec.mean) - spec.sigma * spec.sigma / 2,
                                spec.sigma);
            break;
        case LengthSpec::Kind::kPareto:
            v = draw_lomax(prng, spec.mean * (spec.alpha - 1), spec.alpha);
            break;
        case LengthSpec::Kind::kEmpirical:
            v = spec.values[static_cast<std::size_t>(prng.below(spec.values.size()))];
            break;
    }
    return std::clamp(v, spec.min, spec.max);
}

}  // namespace nereid::workload
