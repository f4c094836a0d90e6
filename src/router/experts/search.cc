#include "router/experts/search.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace nereid::router::experts {

namespace {

// A move must lower the most loaded rank by more than rounding can.
constexpr double kProgress = 1 - 1e-9;

std::int32_t count_in(std::span<const Search::Item> items, Search::Item e) {
    std::int32_t n = 0;
    for (const Search::Item x : items) n += x == e ? 1 : 0;
    return n;
}

}  // namespace

Search::Search(std::uint32_t items, std::uint32_t slots, std::uint32_t ranks)
    : items_(items), ranks_(ranks), room_(slots / ranks), words_((ranks + 63) / 64) {
    CHECK(ranks >= 1 && slots % ranks == 0 && slots >= items && items >= 1);
    weight_.resize(items);
    part_.resize(items);
    count_.resize(items);
    slots_.resize(slots);
    origin_.resize(slots);
    load_.resize(ranks);
    holders_.resize(std::size_t{items} * words_);
}

void Search::begin(std::span<const double> loads, std::span<const Item> slots,
                   std::span<const Item> origin) {
    CHECK(loads.size() == items_ && slots.size() == slots_.size() &&
          origin.size() == slots_.size());
    std::ranges::copy(loads, weight_.begin());
    std::ranges::copy(slots, slots_.begin());
    std::ranges::copy(origin, origin_.begin());
    std::ranges::fill(count_, 0U);
    for (const Item e : slots_) ++count_[e];
    total_ = 0;
    for (std::uint32_t e = 0; e < items_; ++e) {
        part_[e] = count_[e] == 0 ? 0 : weight_[e] / count_[e];
        total_ += weight_[e];
    }
    std::ranges::fill(holders_, 0U);
    changed_ = 0;
    for (std::uint32_t r = 0; r < ranks_; ++r) {
        const auto was = std::span<const Item>(origin_).subspan(std::size_t{r} * room_, room_);
        const auto is = rank(r);
        for (std::size_t i = 0; i < is.size(); ++i) {
            // The n-th occurrence of an expert in a rank is new when the origin has fewer than n.
            if (count_in(is.first(i + 1), is[i]) > count_in(was, is[i])) ++changed_;
        }
        refresh(r);
    }
    moves_ = 0;
}

double Search::largest() const { return load_[most_loaded()]; }

double Search::largest_part() const { return *std::ranges::max_element(part_); }

std::uint32_t Search::most_loaded() const {
    return static_cast<std::uint32_t>(std::ranges::max_element(load_) - load_.begin());
}

void Search::refresh(std::uint32_t r) {
    const auto items = rank(r);
    for (std::size_t i = 1; i < items.size(); ++i) {  // nearly sorted
        const Item e = items[i];
        std::size_t j = i;
        for (; j > 0 && (part_[items[j - 1]] > part_[e] ||
                         (part_[items[j - 1]] == part_[e] && items[j - 1] > e));
             --j)
            items[j] = items[j - 1];
        items[j] = e;
    }
    double sum = 0;
    for (const Item e : items) {
        sum += part_[e];
        holders_[std::size_t{e} * words_ + r / 64] |= std::uint64_t{1} << (r % 64);
    }
    load_[r] = sum;
}

// How many more slots of rank r differ from the origin when `out` goes and `in` comes.
std::int32_t Search::cost_of(std::uint32_t r, Item in, Item out) const {
    if (in == out) return 0;
    const auto was = std::span<const Item>(origin_).subspan(std::size_t{r} * room_, room_);
    const auto is = rank(r);
    return (count_in(is, in) >= count_in(was, in) ? 1 : 0) -
           (count_in(is, out) > count_in(was, out) ? 1 : 0);
}

void Search::consider(Move& best, Move candidate, double now) const {
    if (!(candidate.largest < now * kProgress)) return;
    if (budget_ == kNoLimit) {
        candidate.score = -candidate.largest;
    } else {
        if (static_cast<std::int64_t>(changed_) + candidate.cost >
            static_cast<std::int64_t>(budget_)) {
            over_budget_ = true;
            return;
        }
        candidate.score = candidate.gain / std::max(0.25, static_cast<double>(candidate.cost));
    }
    const bool better = best.kind == Move::Kind::kNone || candidate.score > best.score ||
                        (candidate.score == best.score && candidate.largest < best.largest);
    if (better) best = candidate;
}

void Search::find_swaps(std::uint32_t hi, Move& best) const {
    // The lightest rank first: what it allows rules most others out.
    const auto lightest =
        static_cast<std::uint32_t>(std::ranges::min_element(load_) - load_.begin());
    if (lightest != hi) find_swap(hi, lightest, best);
    for (std::uint32_t g = 0; g < ranks_; ++g) {
        if (g != hi && g != lightest) find_swap(hi, g, best);
    }
}

void Search::find_swap(std::uint32_t hi, std::uint32_t g, Move& best) const {
    const double now = load_[hi];
    const double gap = now - load_[g];
    if (gap <= 0) return;
    if (budget_ == kNoLimit && (now + load_[g]) / 2 >= best.largest) return;
    // The best difference is half the gap: for each item of hi, its neighbours in g around (its
    // part - half the gap). Both ranks are sorted, so the place only moves up.
    const auto a = rank(hi);
    const auto b = rank(g);
    Move pair{.rank = g, .kind = Move::Kind::kSwap};
    std::size_t j = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double wanted = part_[a[i]] - gap / 2;
        while (j < b.size() && part_[b[j]] < wanted) ++j;
        for (std::size_t c = j == 0 ? 0 : j - 1; c <= j && c < b.size(); ++c) {
            const double d = part_[a[i]] - part_[b[c]];
            if (d <= 0) continue;
            const double after = std::max(now - d, load_[g] + d);
            if (after >= pair.largest) continue;
            pair.largest = after;
            pair.hi_place = static_cast<std::uint32_t>(i);
            pair.place = static_cast<std::uint32_t>(c);
        }
    }
    if (!(pair.largest < now)) return;
    if (budget_ != kNoLimit) {
        const Item x = a[pair.hi_place];
        const Item y = b[pair.place];
        const double d = part_[x] - part_[y];
        pair.cost = cost_of(hi, y, x) + cost_of(g, x, y);
        pair.gain = above(now) + above(load_[g]) - above(now - d) - above(load_[g] + d);
    }
    consider(best, pair, now);
}

// Fills in the largest load among the ranks touched, and hi, if the slot (rank, place) became a
// replica of `item`, and the gain. Gives up at `limit`: the move is no use then.
void Search::after_replica(std::uint32_t hi, double limit, Move& move) const {
    const Item a = rank(move.rank)[move.place];
    const Item b = move.item;
    const double up = weight_[a] / (count_[a] - 1) - part_[a];    // each other replica of a
    const double down = part_[b] - weight_[b] / (count_[b] + 1);  // each old replica of b
    move.largest = 0;
    move.gain = 0;
    const auto touch = [&](std::uint32_t q) {
        const auto items = rank(q);
        double load = load_[q];
        if (holds(a, q)) load += count_in(items, a) * up;
        if (holds(b, q)) load -= count_in(items, b) * down;
        if (q == move.rank) load += weight_[b] / (count_[b] + 1) - (part_[a] + up);
        move.largest = std::max(move.largest, load);
        move.gain += above(load_[q]) - above(load);
    };
    touch(hi);
    if (move.rank != hi) touch(move.rank);
    for (std::uint32_t w = 0; w < words_; ++w) {
        std::uint64_t set =
            holders_[std::size_t{a} * words_ + w] | holders_[std::size_t{b} * words_ + w];
        for (; set != 0; set &= set - 1) {
            if (move.largest >= limit) return;
            const auto q = w * 64 + static_cast<std::uint32_t>(std::countr_zero(set));
            if (q != hi && q != move.rank) touch(q);
        }
    }
}

void Search::find_replicas(std::uint32_t hi, Move& best) const {
    const double now = load_[hi];
    const auto own = rank(hi);
    const auto attempt = [&](std::uint32_t r, std::uint32_t place, Item b) {
        const double limit =
            budget_ == kNoLimit && best.kind != Move::Kind::kNone ? best.largest : now;
        Move m{.rank = r, .place = place, .item = b, .kind = Move::Kind::kReplica};
        after_replica(hi, limit, m);
        if (!(m.largest < now)) return;
        if (budget_ != kNoLimit) m.cost = cost_of(r, b, rank(r)[place]);
        consider(best, m, now);
    };
    // Another rank takes a share of one of hi's experts, in the place of a spare replica.
    for (std::uint32_t r = 0; r < ranks_; ++r) {
        if (r == hi || load_[r] >= now) continue;
        const auto items = rank(r);
        for (std::uint32_t i = 0; i < room_; ++i) {
            if (count_[items[i]] < 2) continue;
            for (std::size_t k = 0; k < own.size(); ++k) {
                if (own[k] != items[i] && (k == 0 || own[k] != own[k - 1]) && !holds(own[k], r))
                    attempt(r, i, own[k]);
            }
        }
    }
    // hi gives up a replica and takes a lighter share of something else.
    for (std::uint32_t i = 0; i < room_; ++i) {
        const Item a = own[i];
        if (count_[a] < 2 || (i > 0 && own[i - 1] == a)) continue;
        for (std::uint32_t b = 0; b < items_; ++b) {
            const auto item = static_cast<Item>(b);
            if (item == a || holds(item, hi) || weight_[b] / (count_[b] + 1) >= part_[a]) continue;
            attempt(hi, i, item);
        }
    }
}

void Search::apply(std::uint32_t hi, const Move& move) {
    changed_ = static_cast<std::uint32_t>(static_cast<std::int64_t>(changed_) + move.cost);
    ++moves_;
    const auto drop = [this](Item e, std::uint32_t r) {
        if (count_in(rank(r), e) == 0)
            holders_[std::size_t{e} * words_ + r / 64] &= ~(std::uint64_t{1} << (r % 64));
    };
    if (move.kind == Move::Kind::kSwap) {
        const Item x = rank(hi)[move.hi_place];
        const Item y = rank(move.rank)[move.place];
        rank(hi)[move.hi_place] = y;
        rank(move.rank)[move.place] = x;
        drop(x, hi);
        drop(y, move.rank);
        refresh(hi);
        refresh(move.rank);
        return;
    }
    const Item a = rank(move.rank)[move.place];
    const Item b = move.item;
    rank(move.rank)[move.place] = b;
    part_[a] = weight_[a] / --count_[a];
    part_[b] = weight_[b] / ++count_[b];
    drop(a, move.rank);
    refresh(move.rank);
    for (const Item e : {a, b}) {
        for (std::uint32_t w = 0; w < words_; ++w) {
            std::uint64_t set = holders_[std::size_t{e} * words_ + w];
            for (; set != 0; set &= set - 1)
                refresh(w * 64 + static_cast<std::uint32_t>(std::countr_zero(set)));
        }
    }
}

Search::End Search::run(double target, std::uint32_t budget, double aim) {
    aim_ = aim;
    budget_ = budget;
    // Far more than any search takes; a bound all the same, so that a caller's time has one.
    const std::uint32_t most = 16 * static_cast<std::uint32_t>(slots_.size());
    for (std::uint32_t step = 0; step < most; ++step) {
        const std::uint32_t hi = most_loaded();
        if (load_[hi] <= target) return End::kReached;
        over_budget_ = false;
        Move best;
        find_swaps(hi, best);
        // Replica moves cost more to find: with a budget they compete, else they come when swaps
        // end.
        if (budget_ != kNoLimit || best.kind == Move::Kind::kNone) find_replicas(hi, best);
        if (best.kind == Move::Kind::kNone) return over_budget_ ? End::kBudget : End::kStuck;
        apply(hi, best);
    }
    return End::kStuck;
}

}  // namespace nereid::router::experts
