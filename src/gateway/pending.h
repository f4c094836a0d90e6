// Pending work: background responses and batches, which must end in a way that their caller can
// see, though the process that runs them may die. Each is noted in the store with what it needs to
// begin again, in the write that tells of it, and forgotten in the write that ends it. A process
// that starts takes up what another has left: at once when the store is its own, in a cluster when
// the other has not said for `gateway.job_lease` (a minute) that it lives. What has failed three
// processes is given up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/generate.h"
#include "store/records.h"

namespace nereid::gateway {

enum class PendingKind : std::uint8_t { kResponse, kBatch, kMessageBatch };

struct Pending {
    PendingKind kind = PendingKind::kResponse;
    std::string id;
    std::string request = {};  // the body of the request that began it; maybe empty
    std::string tenant = {};   // set by resume_pending
    bool give_up = false;      // likewise: end it as failed
};

// Changes for a write of the caller's.
void note_pending(const Exchange& x, const Pending& pending, std::vector<store::Change>& changes);
void forget_pending(const Exchange& x, std::string_view id, std::vector<store::Change>& changes);
// The process that runs it, or ran it when it died; none when it is not pending.
io::Task<std::optional<std::string>> pending_owner(Exchange& x, std::string id);
io::Task<bool> is_pending(Exchange& x, std::string id);
// Whether this process may still end it: false when another has ended it or taken it over
// meanwhile.
io::Task<bool> owns_pending(Exchange& x, std::string id);

// One look: renews what runs here, stops what others have ended, starts what others have left. Two
// operations of the store for each job that runs here.
io::Task<void> resume_pending(Core& core, io::Loop& loop, std::shared_ptr<const Settings> settings,
                              ShardTools tools);
// What begins a pending job again, by kind: in responses_endpoint.cc, batches.cc and
// message_batches.cc. `x` is the job's exchange.
io::Task<void> resume_response(Exchange& x, ShardTools tools, Pending pending,
                               std::shared_ptr<std::shared_ptr<Recording>> recording);
io::Task<void> resume_batch(Exchange& x, ShardTools tools, Pending pending);
io::Task<void> resume_message_batch(Exchange& x, ShardTools tools, Pending pending);

}  // namespace nereid::gateway
