#include "kv/node/hit_curve.h"

#include <unordered_map>

#include "base/check.h"
#include "kv/tier/policy.h"

namespace nereid::kv {
namespace {

// Blocks of the largest simulated cache: enough for an error of about a point.
constexpr double kLargest = 32768;

std::uint64_t name_of(ObjectKey key) { return key.lo * 0xd6e8feb86659fd93ULL; }

}  // namespace

struct HitCurve::Miniature {
    Miniature(std::uint64_t blocks, std::uint32_t scaled_blocks)
        : capacity(blocks), scaled(scaled_blocks), nodes(scaled_blocks), policy(nodes) {
        names.resize(scaled);
        for (std::uint32_t i = scaled; i-- > 0;) free.push_back(i);
        ids.reserve(scaled);
    }
    void reference(std::uint64_t name) {
        const auto known = ids.find(name);
        if (known != ids.end()) {
            ++hits;
            policy.touch(known->second);
            return;
        }
        if (free.empty()) {
            const auto id = policy.victim([](std::uint32_t) { return true; });
            policy.evict(*id, names[*id]);
            ids.erase(names[*id]);
            free.push_back(*id);
        }
        const std::uint32_t id = free.back();
        free.pop_back();
        names[id] = name;
        ids.emplace(name, id);
        policy.insert(id, name);
    }
    std::uint64_t capacity;
    std::uint32_t scaled;
    PolicyNodes nodes;
    S3Fifo policy;
    std::vector<std::uint64_t> names;
    std::vector<std::uint32_t> free;
    std::unordered_map<std::uint64_t, std::uint32_t> ids;
    std::uint64_t hits = 0;
};

HitCurve::HitCurve(std::vector<std::uint64_t> capacities) {
    CHECK(!capacities.empty());
    rate_ = std::min(1.0,
                     kLargest / static_cast<double>(std::max<std::uint64_t>(1, capacities.back())));
    threshold_ = static_cast<std::uint64_t>(rate_ * 18446744073709549568.0);
    for (const std::uint64_t c : capacities) {
        const auto scaled = static_cast<std::uint32_t>(static_cast<double>(c) * rate_);
        miniatures_.push_back(std::make_unique<Miniature>(c, std::max<std::uint32_t>(1, scaled)));
    }
}

HitCurve::~HitCurve() = default;
HitCurve::HitCurve(HitCurve&&) noexcept = default;

void HitCurve::reference(std::span<const ObjectKey> prompt) {
    for (std::size_t i = prompt.size(); i-- > 0;) {
        const std::uint64_t name = name_of(prompt[i]);
        if (name > threshold_) continue;
        ++sampled_;
        for (const auto& m : miniatures_) m->reference(name);
    }
}

std::vector<HitCurve::Point> HitCurve::points() const {
    std::vector<Point> out;
    for (const auto& m : miniatures_) {
        out.push_back(
            {m->capacity,
             sampled_ == 0 ? 0 : static_cast<double>(m->hits) / static_cast<double>(sampled_)});
    }
    return out;
}

}  // namespace nereid::kv
