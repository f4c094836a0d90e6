// Local search over the placement of one layer (or one node of it): moves that lower the load of
// the most loaded rank and raise no rank to where that was, until a target is reached or nothing
// helps.
//
//   swap     two experts of two ranks change places: 2 slots change
//   replica  a slot that holds a replica of an expert with several becomes a replica of another: 1
//            slot changes, and the loads of all replicas of both experts. This joins the choice of
//            replicas with their packing, which the published greedy makes one after the other
//
// Every accepted move makes the sorted vector of rank loads smaller lexicographically, so the
// search ends. Slots that differ from where the search began can be limited: what a rank must newly
// load counts, where in the rank it lies does not. Deterministic; no allocation after construction;
// one thread per object.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace nereid::router::experts {

class Search {
  public:
    using Item = std::uint16_t;  // expert, numbered from 0 within this problem
    static constexpr std::uint32_t kNoLimit = std::numeric_limits<std::uint32_t>::max();

    // Precondition: slots >= items, slots % ranks == 0.
    Search(std::uint32_t items, std::uint32_t slots, std::uint32_t ranks);

    // slots[r * (slots / ranks) + i]; loads >= 0. What is counted as changed is against `origin`.
    void begin(std::span<const double> loads, std::span<const Item> slots,
               std::span<const Item> origin);
    // Goes on until the largest rank load is at most `target`, or no move helps, or each that does
    // would change more than `budget` slots in all.
    enum class End : std::uint8_t { kReached, kStuck, kBudget };
    // Without a budget the move with the lowest peak is taken; with one, the move that takes away
    // most of the load above `aim` (<= target) per changed slot.
    End run(double target, std::uint32_t budget = kNoLimit, double aim = 0);

    double largest() const;
    double mean() const { return total_ / ranks_; }
    double largest_part() const;  // load of the heaviest slot
    std::uint32_t changed() const { return changed_; }
    std::uint32_t moves() const { return moves_; }
    std::span<const Item> slots() const { return slots_; }

  private:
    struct Move {
        double largest = std::numeric_limits<double>::infinity();  // of the ranks it touches
        double gain = 0;  // load above the aim that goes away
        double score = 0;
        std::int32_t cost = 0;
        std::uint32_t rank = 0, place = 0;  // swap: the other rank; replica: where the slot lies
        std::uint32_t hi_place = 0;         // swap
        Item item = 0;                      // replica: what the slot becomes
        enum class Kind : std::uint8_t { kNone, kSwap, kReplica } kind = Kind::kNone;
    };

    std::span<Item> rank(std::uint32_t r) {
        return std::span(slots_).subspan(std::size_t{r} * room_, room_);
    }
    std::span<const Item> rank(std::uint32_t r) const {
        return std::span(slots_).subspan(std::size_t{r} * room_, room_);
    }
    bool holds(Item e, std::uint32_t r) const {
        return (holders_[std::size_t{e} * words_ + r / 64] >> (r % 64) & 1) != 0;
    }
    std::uint32_t most_loaded() const;
    void find_swaps(std::uint32_t hi, Move& best) const;
    void find_swap(std::uint32_t hi, std::uint32_t g, Move& best) const;
    void find_replicas(std::uint32_t hi, Move& best) const;
    void after_replica(std::uint32_t hi, double limit, Move& move) const;
    double above(double load) const { return load > aim_ ? load - aim_ : 0; }
    void consider(Move& best, Move candidate, double now) const;
    std::int32_t cost_of(std::uint32_t r, Item in, Item out) const;
    void apply(std::uint32_t hi, const Move& move);
    void refresh(std::uint32_t r);  // load, order and holders of a rank

    std::uint32_t items_, ranks_, room_, words_;
    std::vector<double> weight_, part_;  // load of an item; of one of its replicas
    std::vector<std::uint32_t> count_;
    std::vector<Item> slots_;   // per rank ascending by part_
    std::vector<Item> origin_;  // per rank ascending by id
    std::vector<double> load_;
    std::vector<std::uint64_t> holders_;  // per item a set of ranks
    double total_ = 0;
    double aim_ = 0;
    std::uint32_t budget_ = kNoLimit, changed_ = 0, moves_ = 0;
    mutable bool over_budget_ = false;  // a move that helps was too dear
};

}  // namespace nereid::router::experts
