#include "sim/capacity/population.h"

#include <algorithm>

#include "base/check.h"

namespace nereid::sim {

namespace {

class ClosedPopulation final : public workload::Source {
  public:
    explicit ClosedPopulation(const PopulationSpec& spec) : spec_(spec), prng_(spec.seed) {
        CHECK(workload::validate(spec.input).ok() && workload::validate(spec.output).ok());
        due_ = spec.requests;
    }
    Duration next_arrival() override { return due_ > 0 ? at_ : kNever; }
    void take(workload::Request& out) override {
        CHECK(due_ > 0);
        --due_;
        out = {};
        out.id = next_id_;
        out.arrival = at_;
        auto input = static_cast<TokenCount>(workload::draw(spec_.input, prng_));
        auto output = static_cast<TokenCount>(workload::draw(spec_.output, prng_));
        if (spec_.aged && next_id_ < spec_.requests) {
            const auto age = static_cast<TokenCount>(prng_.below(std::max(1u, output)));
            input += age;
            output = std::max(1u, output - age);
        }
        out.input_tokens = std::max(1u, input);
        out.output_tokens = std::max(1u, output);
        ++next_id_;
    }
    bool exhausted() override { return false; }
    void finished(const workload::Request&, Duration at) override {
        ++due_;
        at_ = at;
    }
    TokenCount block_tokens() const override { return 0; }
    std::string describe() const override {
        return std::to_string(spec_.requests) + " requests, each replaced when it ends";
    }

  private:
    PopulationSpec spec_;
    Prng prng_;
    Duration at_{0};
    std::uint64_t due_ = 0;
    std::uint64_t next_id_ = 0;
};

}  // namespace

std::unique_ptr<workload::Source> closed_population(const PopulationSpec& spec) {
    return std::make_unique<ClosedPopulation>(spec);
}

}  // namespace nereid::sim
