// synthetic() and mix() of generators.h; agents() is in agents.cc.
#include "workload/generators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/distributions.h"
#include "workload/draws.h"

namespace nereid::workload {

namespace {

class Synthetic final : public Source {
  public:
    Synthetic(const SyntheticSpec& spec, const Arrivals& arrivals, Prng prng)
        : spec_(spec),
          arrivals_(arrivals),
          prng_(prng),
          zipf_(std::max(1U, spec.prefixes), spec.prefix_zipf) {
        for (std::uint32_t p = 0; p < spec.prefixes; ++p)
            prefix_tokens_.push_back(draw_tokens(spec.prefix_length, prng_));
        advance();
    }

    Duration next_arrival() override { return next_; }
    bool exhausted() override { return next_ == kNever; }
    TokenCount block_tokens() const override { return spec_.block_tokens; }

    void take(Request& out) override {
        CHECK(next_ != kNever);
        out = Request{.id = taken_++,
                      .arrival = next_,
                      .blocks = std::move(out.blocks),
                      .images = std::move(out.images)};
        out.blocks.clear();
        out.images.clear();
        TokenCount prefix = 0;
        std::uint64_t root = 0;
        if (!prefix_tokens_.empty() && prng_.chance(spec_.prefix_share)) {
            const std::uint32_t p = zipf_.draw(prng_);
            prefix = prefix_tokens_[p];
            root = keyed_u64(spec_.seed, p);
        }
        add_images(out);
        out.input_tokens = std::max<TokenCount>(1, prefix + draw_tokens(spec_.input, prng_));
        out.output_tokens = std::max<TokenCount>(1, draw_tokens(spec_.output, prng_));
        // Blocks that lie wholly in the prefix are common; the rest is this request's own.
        const TokenCount common = prefix / spec_.block_tokens;
        const std::uint64_t own = keyed_u64(~spec_.seed, out.id);
        const TokenCount all = (out.input_tokens - 1) / spec_.block_tokens + 1;
        for (TokenCount n = 0; n < all; ++n) {
            out.blocks.push_back(keyed_u64(n < common ? root : own, n));
        }
        advance();
    }

    std::string describe() const override {
        return fmt::format("synthetic, {:g} requests/s, {} shared prefixes, seed {}",
                           spec_.arrivals.per_second, spec_.prefixes, spec_.seed);
    }

  private:
    void advance() {
        next_ = kNever;
        if (spec_.requests != 0 && taken_ >= spec_.requests) return;
        const Duration at = arrivals_.next();
        if (at < spec_.end) next_ = at;
    }
    void add_images(Request& out) {
        if (!prng_.chance(spec_.image_share)) return;
        const std::uint64_t count = 1 + draw_poisson(prng_, std::max(0.0, spec_.images_mean - 1));
        for (std::uint64_t k = 0; k < count; ++k) {
            if (!seen_.empty() && prng_.chance(spec_.image_repeat)) {
                out.images.push_back(seen_[static_cast<std::size_t>(prng_.below(seen_.size()))]);
                continue;
            }
            const Image image{.digest = prng_.next(),
                              .patches = draw_tokens(spec_.image_patches, prng_)};
            constexpr std::size_t kRemembered = 4096;
            if (seen_.size() < kRemembered) {
                seen_.push_back(image);
            } else {
                seen_[static_cast<std::size_t>(prng_.below(kRemembered))] = image;
            }
            out.images.push_back(image);
        }
    }

    SyntheticSpec spec_;
    Arrivals arrivals_;
    Prng prng_;
    Zipf zipf_;
    std::vector<TokenCount> prefix_tokens_;
    std::vector<Image> seen_;
    std::uint64_t taken_ = 0;
    Duration next_ = kNever;
};

class Mix final : public Source {
  public:
    explicit Mix(std::vector<std::unique_ptr<Source>> parts) : parts_(std::move(parts)) {
        for (const auto& p : parts_) block_tokens_ = std::max(block_tokens_, p->block_tokens());
    }

    Duration next_arrival() override {
        Duration first = kNever;
        for (const auto& p : parts_) first = std::min(first, p->next_arrival());
        return first;
    }
    bool exhausted() override {
        return std::ranges::all_of(parts_, [](const auto& p) { return p->exhausted(); });
    }
    TokenCount block_tokens() const override { return block_tokens_; }

    void take(Request& out) override {
        std::size_t best = 0;
        for (std::size_t i = 1; i < parts_.size(); ++i) {
            if (parts_[i]->next_arrival() < parts_[best]->next_arrival()) best = i;
        }
        parts_[best]->take(out);
        out.id = taken_++;
        out.origin = out.origin * count() + static_cast<std::uint32_t>(best);
        if (out.session != 0) out.session = keyed_u64(best + 1, out.session) | 1;
        for (std::uint64_t& id : out.blocks) id = keyed_u64(best + 1, id);
    }

    void finished(const Request& request, Duration at) override {
        Request inner{.origin = request.origin / count(), .tag = request.tag};
        parts_[request.origin % count()]->finished(inner, at);
    }

    std::string describe() const override {
        std::string text = "mix of";
        for (const auto& p : parts_) text += fmt::format(" [{}]", p->describe());
        return text;
    }

  private:
    std::uint32_t count() const { return static_cast<std::uint32_t>(parts_.size()); }

    std::vector<std::unique_ptr<Source>> parts_;
    std::uint64_t taken_ = 0;
    TokenCount block_tokens_ = 0;
};

Result<void> probability(const char* field, double p) {
    if (p >= 0 && p <= 1) return {};
    return err(Code::kInvalidArgument,
               fmt::format("{}: expected a number in [0, 1], found {:g}", field, p), field);
}

}  // namespace

Result<std::unique_ptr<Source>> synthetic(const SyntheticSpec& spec) {
    for (const LengthSpec* l :
         {&spec.input, &spec.output, &spec.prefix_length, &spec.image_patches})
        TRY_VOID(validate_tokens(*l));
    TRY_VOID(probability("prefix_share", spec.prefix_share));
    TRY_VOID(probability("image_share", spec.image_share));
    TRY_VOID(probability("image_repeat", spec.image_repeat));
    if (spec.block_tokens == 0)
        return err(Code::kInvalidArgument, "block_tokens: expected at least 1", "block_tokens");
    if (!(spec.prefix_zipf >= 0 && spec.images_mean >= 1))
        return err(Code::kInvalidArgument, "prefix_zipf >= 0 and images_mean >= 1 are expected",
                   "prefix_zipf");
    Prng prng(spec.seed);
    Prng for_arrivals = prng.fork();
    TRY(const Arrivals arrivals, Arrivals::make(spec.arrivals, for_arrivals));
    return std::make_unique<Synthetic>(spec, arrivals, prng);
}

Result<std::unique_ptr<Source>> mix(std::vector<std::unique_ptr<Source>> parts) {
    if (parts.empty()) return err(Code::kInvalidArgument, "a mix needs at least one source");
    TokenCount block_tokens = 0;
    for (const auto& p : parts) {
        if (p->block_tokens() == 0) continue;
        if (block_tokens != 0 && p->block_tokens() != block_tokens)
            return err(Code::kInvalidArgument,
                       fmt::format("sources of a mix have blocks of {} and of {} tokens",
                                   block_tokens, p->block_tokens()),
                       "block_tokens");
        block_tokens = p->block_tokens();
    }
    return std::make_unique<Mix>(std::move(parts));
}

}  // namespace nereid::workload
