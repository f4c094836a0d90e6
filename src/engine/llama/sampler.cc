#include "engine/llama/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/prng.h"

namespace nereid::engine::llama {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::size_t kLanes = 16;

// exp(x) for x <= 0, relative error below 2e-7 (Cephes' expf: range reduction by ln 2 in two parts,
// then a polynomial of degree 6). Branch-free so that the loops over the vocabulary vectorise; the
// same bits with every compiler since nothing is contracted. Below -87 the result is flushed to 0.
inline float exp_negative(float x) {
    const float clamped = x < -87.0f ? -87.0f : x;
    const float scaled = clamped * 1.44269504088896341f;
    const float n = static_cast<float>(
        static_cast<std::int32_t>(scaled - 0.5f));  // rounds to nearest for x <= 0
    const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const auto exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23;
    const float result = p * std::bit_cast<float>(exponent);
    return x < -87.0f ? 0.0f : result;
}

// Greatest value, ignoring NaN (a comparison with NaN is false); -inf when there is none.
float greatest(std::span<const float> x) {
    std::array<float, kLanes> lane;
    lane.fill(kMinusInfinity);
    std::size_t i = 0;
    for (; i + kLanes <= x.size(); i += kLanes) {
        for (std::size_t k = 0; k < kLanes; ++k) lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
    }
    float best = kMinusInfinity;
    for (const float v : lane) best = v > best ? v : best;
    for (; i < x.size(); ++i) best = x[i] > best ? x[i] : best;
    return best;
}

// out[i] = exp((x[i] - max) * inverse_temperature); returns the sum, in an order that does not
// depend on the compiler.
double weigh(std::span<const float> x, float max, float inverse_temperature, std::span<float> out) {
    std::array<double, kLanes> lane{};
    std::size_t i = 0;
    for (; i + kLanes <= x.size(); i += kLanes) {
        for (std::size_t k = 0; k < kLanes; ++k) {
            const float d = (x[i + k] - max) * inverse_temperature;
            const float e = d <= 0.0f ? exp_negative(d) : 0.0f;  // NaN: 0
            out[i + k] = e;
            lane[k] += static_cast<double>(e);
        }
    }
    double sum = 0;
    for (const double v : lane) sum += v;
    for (; i < x.size(); ++i) {
        const float d = (x[i] - max) * inverse_temperature;
        out[i] = d <= 0.0f ? exp_negative(d) : 0.0f;
        sum += static_cast<double>(out[i]);
    }
    return sum;
}

}  // namespace

TokenId argmax(std::span<const float> logits) {
    // Two passes that vectorise beat one that carries an index.
    const float best = greatest(logits);
    const auto it = std::find(logits.begin(), logits.end(), best);
    return it == logits.end() ? 0 : static_cast<TokenId>(it - logits.begin());
}

double log_sum_exp(std::span<const float> logits) {
    const float max = greatest(logits);
    if (!std::isfinite(max)) return static_cast<double>(max);
    std::array<double, kLanes> lane{};
    std::size_t i = 0;
    for (; i + kLanes <= logits.size(); i += kLanes) {
        for (std::size_t k = 0; k < kLanes; ++k) {
            const float d = logits[i + k] - max;
            lane[k] += static_cast<double>(d <= 0.0f ? exp_negative(d) : 0.0f);
        }
    }
    double sum = 0;
    for (const double v : lane) sum += v;
    for (; i < logits.size(); ++i) {
        const float d = logits[i] - max;
        sum += static_cast<double>(d <= 0.0f ? exp_negative(d) : 0.0f);
    }
    return static_cast<double>(max) + std::log(sum);
}

std::vector<model::TopToken> top_logprobs(std::span<const float> logits, double lse,
                                          std::uint32_t n) {
    std::vector<model::TopToken> heap;  // the worst kept entry is at the front
    const auto better = [](const model::TopToken& a, const model::TopToken& b) {
        return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
    };
    heap.reserve(n + 1);
    for (std::size_t i = 0; i < logits.size() && n > 0; ++i) {
        if (heap.size() == n && !(logits[i] > heap.front().logprob)) continue;
        if (std::isnan(logits[i])) continue;
        heap.push_back({static_cast<TokenId>(i), logits[i]});
        std::push_heap(heap.begin(), heap.end(), better);
        if (heap.size() > n) {
            std::pop_heap(heap.begin(), heap.end(), better);
            heap.pop_back();
        }
    }
    std::sort_heap(heap.begin(), heap.end(), better);
    for (auto& t : heap) t.logprob = static_cast<float>(static_cast<double>(t.logprob) - lse);
    return heap;
}

Sampler::Sampler(const model::SamplingParams& params, std::uint64_t seed,
                 std::span<const TokenId> prompt, std::uint32_t vocab_size)
    : temperature_(params.temperature.value_or(1.0)),
      top_p_(params.top_p.value_or(1.0)),
      min_p_(params.min_p.value_or(0.0)),
      top_k_(params.top_k.value_or(0) > 0 ? static_cast<std::uint32_t>(*params.top_k) : 0),
      frequency_(params.frequency_penalty.value_or(0.0)),
      presence_(params.presence_penalty.value_or(0.0)),
      repetition_(params.repetition_penalty.value_or(1.0)),
      seed_(params.seed.value_or(seed)),
      bias_(params.logit_bias) {
    std::erase_if(bias_, [&](const auto& b) {
        return b.first < 0 || static_cast<std::uint32_t>(b.first) >= vocab_size;
    });
    if (top_k_ >= vocab_size) top_k_ = 0;
    if (frequency_ != 0.0 || presence_ != 0.0 || repetition_ != 1.0) {
        seen_.resize(vocab_size);
        for (const TokenId id : prompt) {
            auto& s = seen_[static_cast<std::size_t>(id)];
            if (!s.any) seen_ids_.push_back(id);
            s.any = true;
        }
    }
}

void Sampler::accept(TokenId token) {
    if (seen_.empty()) return;
    auto& s = seen_[static_cast<std::size_t>(token)];
    if (!s.any) seen_ids_.push_back(token);
    s.any = true;
    ++s.output;
}

std::span<const float> Sampler::adjust(std::span<const float> logits) {
    if (seen_.empty() && bias_.empty()) return logits;
    work_.assign(logits.begin(), logits.end());
    for (const TokenId id : seen_ids_) {
        const auto& s = seen_[static_cast<std::size_t>(id)];
        auto v = static_cast<double>(work_[static_cast<std::size_t>(id)]);
        v = v > 0 ? v / repetition_ : v * repetition_;
        if (s.output > 0) v -= static_cast<double>(s.output) * frequency_ + presence_;
        work_[static_cast<std::size_t>(id)] = static_cast<float>(v);
    }
    for (const auto& [id, b] : bias_) work_[static_cast<std::size_t>(id)] += b;
    return work_;
}

TokenId Sampler::sample(std::span<const float> raw, std::uint64_t position) {
    const auto logits = adjust(raw);
    if (greedy()) return argmax(logits);
    const double u = keyed_uniform(seed_, position);
    if (top_k_ == 0 && top_p_ >= 1.0 && min_p_ <= 0.0) return sample_all(logits, u);
    return sample_filtered(logits, u);
}

TokenId Sampler::sample_all(std::span<const float> logits, double u) {
    const float max = greatest(logits);
    if (!std::isfinite(max)) return argmax(logits);
    weight_.resize(logits.size());
    const double target = u * weigh(logits, max, static_cast<float>(1.0 / temperature_), weight_);
    double sum = 0;
    TokenId last = 0;
    for (std::size_t i = 0; i < weight_.size(); ++i) {
        if (weight_[i] <= 0.0f) continue;
        sum += static_cast<double>(weight_[i]);
        last = static_cast<TokenId>(i);
        if (sum > target) break;
    }
    return last;  // rounding may leave the target just above the sum: the last possible token
}

// Candidates with the top_k_ greatest logits not below `floor`.
void Sampler::gather_top_k(std::span<const float> logits, float floor) {
    const auto better = [](const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    };
    candidates_.clear();
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (!(logits[i] >= floor)) continue;
        if (candidates_.size() == top_k_) {
            if (!(logits[i] > candidates_.front().logit)) continue;
            std::pop_heap(candidates_.begin(), candidates_.end(), better);
            candidates_.pop_back();
        }
        candidates_.push_back({logits[i], static_cast<TokenId>(i)});
        std::push_heap(candidates_.begin(), candidates_.end(), better);
    }
}

void Sampler::gather_above(std::span<const float> logits, float floor) {
    candidates_.clear();
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] >= floor) candidates_.push_back({logits[i], static_cast<TokenId>(i)});
    }
}

TokenId Sampler::sample_filtered(std::span<const float> logits, double u) {
    const float max = greatest(logits);
    if (!std::isfinite(max)) return argmax(logits);
    const auto inverse = static_cast<float>(1.0 / temperature_);
    const auto limit_of =
        [&](double relative) {  // the logit whose weight is `relative` of the greatest
            return static_cast<float>(static_cast<double>(max) + std::log(relative) * temperature_);
        };
    const float floor = min_p_ > 0.0 ? limit_of(min_p_) : std::numeric_limits<float>::lowest();
    if (top_k_ > 0) {
        gather_top_k(logits, floor);
    } else if (top_p_ < 1.0) {
        // All tokens below the limit together weigh less than (1 - top_p) of the sum, so the set
        // that top_p keeps lies above it; only that part has to be sorted.
        weight_.resize(logits.size());
        double sum = weigh(logits, max, inverse, weight_);
        if (min_p_ > 0.0) {
            sum = 0;
            for (std::size_t i = 0; i < logits.size(); ++i)
                sum += logits[i] >= floor ? static_cast<double>(weight_[i]) : 0.0;
        }
        const double limit = (1.0 - top_p_) * sum / static_cast<double>(logits.size());
        candidates_.clear();
        for (std::size_t i = 0; i < logits.size(); ++i) {
            if (logits[i] >= floor &&
                (static_cast<double>(weight_[i]) > limit || logits[i] == max)) {
                candidates_.push_back({logits[i], static_cast<TokenId>(i)});
            }
        }
        std::sort(candidates_.begin(), candidates_.end(),
                  [](const Candidate& a, const Candidate& b) {
                      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
                  });
        double mass = 0;
        std::size_t keep = 0;
        while (keep < candidates_.size()) {
            mass += static_cast<double>(weight_[static_cast<std::size_t>(candidates_[keep].id)]);
            ++keep;
            if (mass >= top_p_ * sum) break;
        }
        candidates_.resize(keep);
    } else {
        gather_above(logits, floor);
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
    weight_.resize(candidates_.size());
    double sum = 0;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        weight_[i] = exp_negative((candidates_[i].logit - max) * inverse);
        sum += static_cast<double>(weight_[i]);
    }
    std::size_t keep = candidates_.size();
    if (top_k_ > 0 && top_p_ < 1.0) {
        double mass = 0;
        for (keep = 0; keep < candidates_.size();) {
            mass += static_cast<double>(weight_[keep++]);
            if (mass >= top_p_ * sum) break;
        }
        sum = mass;
    }
    const double target = u * sum;
    double mass = 0;
    for (std::size_t i = 0; i < keep; ++i) {
        mass += static_cast<double>(weight_[i]);
        if (mass > target) return candidates_[i].id;
    }
    // Rounding may leave the target at the sum: the last candidate of weight.
    return keep == 0 ? argmax(logits) : candidates_[keep - 1].id;
}

}  // namespace nereid::engine::llama
