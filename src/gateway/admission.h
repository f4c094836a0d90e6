// Admission: how many requests the gateway holds, in all and per key. All or nothing; a Ticket is
// both holds.
//
// Counters are relaxed atomics shared by the shards: a bound may be met late by one racing request
// per shard, never exceeded, since a request that finds the counter over the bound takes its
// increment back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/result.h"
#include "gateway/auth.h"

namespace nereid::gateway {

class Admission {
  public:
    using Counter = std::atomic<std::int64_t>;

    class Ticket {
      public:
        Ticket() = default;
        Ticket(Ticket&& o) noexcept
            : all_(std::exchange(o.all_, nullptr)), key_(std::move(o.key_)) {}
        Ticket& operator=(Ticket&& o) noexcept {
            if (this != &o) {
                release();
                all_ = std::exchange(o.all_, nullptr);
                key_ = std::move(o.key_);
            }
            return *this;
        }
        Ticket(const Ticket&) = delete;
        Ticket& operator=(const Ticket&) = delete;
        ~Ticket() { release(); }
        bool valid() const { return all_ != nullptr; }
        void release() {
            if (all_ != nullptr)
                std::exchange(all_, nullptr)->fetch_sub(1, std::memory_order_relaxed);
            if (auto key = std::move(key_)) key->fetch_sub(1, std::memory_order_relaxed);
        }

      private:
        friend class Admission;
        Counter* all_ = nullptr;
        std::shared_ptr<Counter> key_;  // outlives a reload of the table
    };

    explicit Admission(std::int64_t queue_max) : queue_max_(queue_max) {}

    // kOverloaded: the gateway is full or drains. kRateLimited: the key's own limit. The Admission
    // must outlive the ticket.
    Result<Ticket> enter(const ApiKey* key);

    void set_queue_max(std::int64_t n) { queue_max_.store(n, std::memory_order_relaxed); }
    void start_drain() { draining_.store(true, std::memory_order_relaxed); }
    bool draining() const { return draining_.load(std::memory_order_relaxed); }
    std::int64_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }

  private:
    Counter in_flight_{0};
    Counter queue_max_;
    std::atomic<bool> draining_{false};
};

}  // namespace nereid::gateway
