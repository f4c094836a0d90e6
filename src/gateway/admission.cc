#include "gateway/admission.h"

#include <fmt/format.h>

namespace nereid::gateway {

Result<Admission::Ticket> Admission::enter(const ApiKey* key) {
    if (draining())
        return err(Code::kOverloaded,
                   "The server is shutting down. Please retry; another replica will answer.");
    const auto bound = queue_max_.load(std::memory_order_relaxed);
    if (in_flight_.fetch_add(1, std::memory_order_relaxed) >= bound) {
        in_flight_.fetch_sub(1, std::memory_order_relaxed);
        return err(Code::kOverloaded,
                   fmt::format(
                       "The server is overloaded: {} requests are in progress. Please retry later.",
                       bound));
    }
    Ticket ticket;
    ticket.all_ = &in_flight_;
    if (key != nullptr && key->max_concurrency > 0) {
        if (key->in_flight->fetch_add(1, std::memory_order_relaxed) >= key->max_concurrency) {
            key->in_flight->fetch_sub(1, std::memory_order_relaxed);
            return err(
                Code::kRateLimited,
                fmt::format(
                    "Rate limit reached: this API key may have {} requests in progress at once. "
                    "Please retry when one has ended.",
                    key->max_concurrency));
        }
        ticket.key_ = key->in_flight;
    }
    return ticket;
}

}  // namespace nereid::gateway
