// Charges: what a placement costs a rank until it ends, and the handle that ends it.
//
// A charge is booked at selection, before anything is awaited (R1), and ends when its handle is
// released or destroyed, on whatever path (finish, abort, error, exception, lost worker): a handle
// is move-only and releases exactly once. There is no time-out on a charge (R11: a reaper that
// forgets live requests creates phantom capacity); who holds the connection holds the handle.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/units.h"
#include "router/ids.h"

namespace nereid::router {

struct Charge {
    RankSlot slot = kNoSlot;
    Stage stage = Stage::kUnified;
    double prefill_ms = 0;  // predicted, drained by View::progress_prefill, ends with first token
    TokenCount prefill_tokens = 0;  // uncached
    double encode_ms = 0;
    std::uint32_t requests = 1;     // counted from selection on, so that a burst sees itself
    TokenCount kv_tokens = 0;       // at the start of decode: the prompt
    TokenCount reserve_tokens = 0;  // KV room promised beyond kv_tokens
    double starts_in_ms = 0;        // after selection, predicted: when this stage's work begins
};

// What stands behind handles. View is one; a gateway whose handles end on other loops puts one in
// between that posts to the view's loop.
class ChargeBook {
  public:
    virtual void release(std::uint32_t index, std::uint32_t generation) = 0;

  protected:
    ~ChargeBook() = default;
};

class ChargeHandle {
  public:
    // The book, or nullptr once it is gone: handles may outlive their view.
    using Link = std::shared_ptr<ChargeBook*>;

    ChargeHandle() = default;
    ChargeHandle(Link link, std::uint32_t index, std::uint32_t generation)
        : link_(std::move(link)), index_(index), generation_(generation) {}
    ChargeHandle(ChargeHandle&& o) noexcept
        : link_(std::move(o.link_)), index_(o.index_), generation_(o.generation_) {
        o.link_ = nullptr;
    }
    ChargeHandle& operator=(ChargeHandle&& o) noexcept {
        if (this != &o) {
            release();
            link_ = std::move(o.link_);
            o.link_ = nullptr;
            index_ = o.index_;
            generation_ = o.generation_;
        }
        return *this;
    }
    ChargeHandle(const ChargeHandle&) = delete;
    ChargeHandle& operator=(const ChargeHandle&) = delete;
    ~ChargeHandle() { release(); }

    void release() {
        if (const Link link = std::move(link_); link != nullptr && *link != nullptr) {
            (*link)->release(index_, generation_);
        }
        link_ = nullptr;
    }
    bool active() const { return link_ != nullptr; }
    std::uint32_t index() const { return index_; }
    std::uint32_t generation() const { return generation_; }

  private:
    Link link_;
    std::uint32_t index_ = 0;
    std::uint32_t generation_ = 0;
};

}  // namespace nereid::router
