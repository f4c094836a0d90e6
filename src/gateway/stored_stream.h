// The stream of a background response, kept: whole once it has ended, and in a cluster in parts
// while it runs, so that a gateway which does not run it can give it to a client too.
//
// States of a stream in the store: nothing -> parts (only while `pending` names their writer) ->
// whole, written together with the removal of the parts. Parts lie on a list by response and
// process, and the whole says which process made it, so that a process that was given up for dead
// and still writes is never mixed with the one that took its work over.
//
// Why: docs/adr/0014.
//
// Failures. A part that cannot be written is written again as it is (counted; TwoGateways.APart…);
// the writer dies: followers are cut when another takes over (test_takeover.py); the response is
// cancelled or deleted elsewhere: followers are cut; over 32 MiB: no whole is kept, and followers
// elsewhere are cut at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gateway/exchange.h"
#include "gateway/jobs.h"
#include "gateway/recording.h"

namespace nereid::gateway {

// The writer's side, in the job of the response.
class StoredStream {
  public:
    StoredStream(Exchange& x, std::string id, std::shared_ptr<Recording> recording);

    // Writes parts as the recording grows, at most four a second; until it is cut short.
    io::Task<void> keep_parts();
    // Removes the parts; `ours`: and keeps the whole stream, if there was one.
    io::Task<void> close(bool ours);

  private:
    Exchange& x_;
    std::string id_;
    std::shared_ptr<Recording> recording_;
    std::uint32_t parts_ = 0;  // written, or being written
};

// Gives the client of `x` the stream of a background response that is in the store, or comes there;
// `skip` events are left out. Completes at its end, when the client has gone (run_until_gone), or
// with `here` when this process has begun to run it.
io::Task<void> follow_stored(Exchange& x, std::string id, std::uint64_t skip,
                             std::shared_ptr<Job>& here);

// Whether `process`, which runs it, has begun to stream it.
io::Task<bool> has_parts(Exchange& x, std::string id, std::string process);

// Removes what a process that is dead has written of a stream.
io::Task<void> forget_parts(Core& core, io::Loop& loop, std::string tenant, std::string id,
                            std::string process);

// A deleted response's.
store::Key stored_stream_key(const Exchange& x, std::string_view id);

}  // namespace nereid::gateway
