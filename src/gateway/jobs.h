// Jobs: requests that run without a connection of their own: background responses, lines of
// batches, requests whose client may come back for the answer. Each is an Exchange like any other
// (admission, metrics, one access line) whose response goes into a Recording.
//
// Jobs runs those of one shard, on its loop. JobTable finds running jobs by name from any shard.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gateway/exchange.h"
#include "gateway/job_table.h"
#include "io/root_task.h"

namespace nereid::gateway {

class Jobs {
  public:
    using Work = std::move_only_function<io::Task<void>(Exchange&)>;

    Jobs(Core& core, io::Loop& loop) : core_(core), loop_(loop) {}
    ~Jobs();
    Jobs(const Jobs&) = delete;
    Jobs& operator=(const Jobs&) = delete;

    // Runs `work` on an exchange of its own with the key and the knobs of `parent`. `request` is
    // what work sees as x.http(). `then` runs after the response is complete and the exchange gone.
    std::shared_ptr<Job> start(const Exchange& parent, Route route, io::HttpRequest request,
                               std::string id, Work work, std::function<void()> then = {});
    // The same without a parent: `key` is one of the settings', or null.
    std::shared_ptr<Job> start(std::shared_ptr<const Settings> settings, const ApiKey* key,
                               Route route, io::HttpRequest request, std::string id, Work work,
                               std::function<void()> then = {});
    // A task beside the connections, which ends with the shard.
    void spawn(io::Task<void> task);

  private:
    struct Running {
        io::RootTask task;
    };
    io::Task<void> run(std::shared_ptr<const Settings> settings, const ApiKey* key, Route route,
                       io::HttpRequest request, std::string id,
                       std::shared_ptr<RecordingReply> reply, Work work,
                       std::function<void()> then);
    io::Task<void> tracked(std::uint64_t number, io::Task<void> task);

    Core& core_;
    io::Loop& loop_;
    std::uint64_t last_ = 0;
    std::map<std::uint64_t, std::unique_ptr<Running>> running_;
    std::shared_ptr<Jobs*> self_ = std::make_shared<Jobs*>(this);  // for what is posted
};

// Gives what a job records to the client of `x`, as it comes; `skip` events of a stream are left
// out. Completes at the end of the recording, or when the client has gone.
io::Task<void> follow(Exchange& x, std::shared_ptr<Job> job, std::uint64_t skip = 0);

}  // namespace nereid::gateway
