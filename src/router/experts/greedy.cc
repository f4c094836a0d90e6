#include "router/experts/greedy.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace nereid::router::experts {

namespace {

// The bits of a float >= 0 order like the float.
std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }
float value(std::uint64_t key) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(key >> 32));
}
// Larger key = larger load, then smaller index.
std::uint64_t heavy(float load, std::uint32_t index) {
    return std::uint64_t{bits(load)} << 32 | ~index;
}
std::uint32_t index_of(std::uint64_t key) { return ~static_cast<std::uint32_t>(key); }
// Smaller key = smaller load, then smaller index.
std::uint64_t light(float load, std::uint32_t index) {
    return std::uint64_t{bits(load)} << 32 | index;
}

// Puts `key` in the place of the root of a heap whose root is the extreme by `first`.
template <class First>
void replace_root(std::span<std::uint64_t> heap, std::uint64_t key, First first) {
    std::size_t at = 0;
    while (true) {
        std::size_t child = 2 * at + 1;
        if (child >= heap.size()) break;
        if (child + 1 < heap.size() && first(heap[child + 1], heap[child])) ++child;
        if (!first(heap[child], key)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
}

// Deals items, given heaviest first, to packs of `room` items each: always to the lightest pack
// that has room. put(item, pack, place).
template <class Put>
void deal(std::span<const std::uint64_t> items, std::span<std::uint64_t> packs,
          std::span<std::uint32_t> filled, std::uint32_t room, Put put) {
    constexpr std::less<> kFirst;
    for (std::uint32_t p = 0; p < packs.size(); ++p) packs[p] = light(0.0F, p);
    std::ranges::fill(filled, 0U);
    for (const std::uint64_t item : items) {
        const std::uint64_t top = packs[0];
        const auto pack = static_cast<std::uint32_t>(top);
        put(index_of(item), pack, filled[pack]);
        if (++filled[pack] < room) {
            replace_root(packs, light(value(top) + value(item), pack), kFirst);
        } else {
            const std::uint64_t last = packs.back();
            packs = packs.first(packs.size() - 1);
            if (!packs.empty()) replace_root(packs, last, kFirst);
        }
    }
}

}  // namespace

Greedy::Greedy(const Shape& shape)
    : shape_(shape),
      nodes_(shape.hierarchical() ? shape.nodes : 1),
      node_experts_(shape.experts / nodes_) {
    CHECK(validate(shape).ok());
    order_.resize(shape.experts);
    for (std::uint32_t e = 0; e < shape.experts; ++e) order_[e] = static_cast<ExpertId>(e);
    values_.resize(node_experts_);
    counts_.resize(node_experts_);
    const std::uint32_t node_slots = shape.slots / nodes_;
    sorted_.resize(std::max(node_experts_, shape.groups));
    heap_.resize(std::max({node_slots - node_experts_ + 1, shape.ranks, shape.nodes}));
    replicas_.resize(2 * (node_slots - node_experts_) + 1);
    merged_.resize(node_slots);
    owner_.resize(node_slots - node_experts_);
    filled_.resize(std::max(shape.ranks, shape.nodes));
    group_loads_.resize(shape.groups);
    group_pack_.resize(shape.groups);
    group_place_.resize(shape.groups);
}

void Greedy::group_order(std::span<const float> load) {
    const std::uint32_t size = shape_.experts / shape_.groups;
    const std::uint32_t per_node = shape_.groups / nodes_;
    for (std::uint32_t g = 0; g < shape_.groups; ++g) {
        float sum = 0;
        for (std::uint32_t i = 0; i < size; ++i) sum += sane(load[g * size + i]);
        group_loads_[g] = sum;
        group_pack_[g] = g;  // one group a node: in order, as the reference has it
        group_place_[g] = 0;
    }
    if (per_node > 1) {
        const std::span keys = std::span(sorted_).first(shape_.groups);
        for (std::uint32_t g = 0; g < shape_.groups; ++g) keys[g] = heavy(group_loads_[g], g);
        std::ranges::sort(keys, std::greater<>());
        deal(keys, std::span(heap_).first(nodes_), std::span(filled_).first(nodes_), per_node,
             [this](std::uint32_t g, std::uint32_t pack, std::uint32_t place) {
                 group_pack_[g] = pack;
                 group_place_[g] = place;
             });
    }
    for (std::uint32_t g = 0; g < shape_.groups; ++g) {
        const std::uint32_t first = (group_pack_[g] * per_node + group_place_[g]) * size;
        for (std::uint32_t i = 0; i < size; ++i)
            order_[first + i] = static_cast<ExpertId>(g * size + i);
    }
}

void Greedy::solve(std::span<const float> load, std::span<ExpertId> slots) {
    CHECK(load.size() == shape_.experts && slots.size() == shape_.slots);
    // One node, several groups: the reference orders them too, which only shows among equal loads.
    const bool dealt = shape_.groups % shape_.nodes == 0 && shape_.experts % shape_.groups == 0;
    if (dealt && shape_.groups > 1) group_order(load);
    solve(load, order_, slots);
}

void Greedy::solve(std::span<const float> load, std::span<const ExpertId> by_node,
                   std::span<ExpertId> slots) {
    CHECK(by_node.size() == shape_.experts);
    if (by_node.data() != order_.data()) std::ranges::copy(by_node, order_.begin());
    const std::uint32_t node_slots = shape_.slots / nodes_;
    for (std::uint32_t n = 0; n < nodes_; ++n) {
        solve_flat(node_experts(n), load, slots.subspan(std::size_t{n} * node_slots, node_slots),
                   shape_.ranks / nodes_);
    }
}

void Greedy::solve_flat(std::span<const ExpertId> experts, std::span<const float> load,
                        std::span<ExpertId> slots, std::uint32_t ranks) {
    const auto n = static_cast<std::uint32_t>(experts.size());
    const auto redundant = static_cast<std::uint32_t>(slots.size()) - n;
    const std::span keys = std::span(sorted_).first(n);
    for (std::uint32_t i = 0; i < n; ++i) {
        values_[i] = sane(load[experts[i]]);
        counts_[i] = 1;
        keys[i] = heavy(values_[i], i);
    }
    std::ranges::sort(keys, std::greater<>());

    // Replicate. Only experts that already have replicas need a heap; the others wait in order.
    std::size_t waiting = 0;
    std::size_t size = 0;
    constexpr std::greater<> kHeavier;
    for (std::uint32_t i = 0; i < redundant; ++i) {
        const bool fresh = size == 0 || (waiting < n && keys[waiting] > heap_[0]);
        const std::uint32_t e = index_of(fresh ? keys[waiting] : heap_[0]);
        owner_[i] = e;
        const std::uint64_t key = heavy(values_[e] / static_cast<float>(++counts_[e]), e);
        if (fresh) {
            ++waiting;
            heap_[size++] = key;
            std::push_heap(heap_.begin(), heap_.begin() + static_cast<std::ptrdiff_t>(size));
        } else {
            replace_root(std::span(heap_).first(size), key, kHeavier);
        }
    }

    // All replicas, heaviest first, then by slot before packing: originals 0..n-1, then redundant
    // ones in the order of their creation.
    std::size_t replica = 0;
    for (std::size_t i = 0; i < waiting; ++i) {
        const std::uint32_t e = index_of(keys[i]);
        replicas_[replica++] = heavy(values_[e] / static_cast<float>(counts_[e]), e);
    }
    for (std::uint32_t i = 0; i < redundant; ++i) {
        const std::uint32_t e = owner_[i];
        replicas_[replica++] = heavy(values_[e] / static_cast<float>(counts_[e]), n + i);
    }
    const auto end = replicas_.begin() + static_cast<std::ptrdiff_t>(replica);
    std::sort(replicas_.begin(), end, kHeavier);
    const std::span all = std::span(merged_).first(slots.size());
    std::merge(replicas_.begin(), end, keys.begin() + static_cast<std::ptrdiff_t>(waiting),
               keys.end(), all.begin(), kHeavier);

    const auto expert_of = [&](std::uint32_t physical) {
        return experts[physical < n ? physical : owner_[physical - n]];
    };
    const auto room = static_cast<std::uint32_t>(slots.size()) / ranks;
    if (room == 1) {  // nothing to pack: the reference leaves the order as it is
        for (std::uint32_t s = 0; s < slots.size(); ++s) slots[s] = expert_of(s);
        return;
    }
    deal(all, std::span(heap_).first(ranks), std::span(filled_).first(ranks), room,
         [&](std::uint32_t physical, std::uint32_t rank, std::uint32_t place) {
             slots[std::size_t{rank} * room + place] = expert_of(physical);
         });
}

}  // namespace nereid::router::experts
