// Running jobs by name, for all shards; see jobs.h.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gateway/recording.h"
#include "io/loop.h"

namespace nereid::gateway {

// A running job, as others see it. Any thread.
class Job {
  public:
    Job(io::Loop& loop, std::shared_ptr<Recording> recording)
        : loop_(loop), recording_(std::move(recording)) {}
    const std::shared_ptr<Recording>& recording() const { return recording_; }
    // The request ends as if its client had gone. Idempotent.
    void cancel();
    // Connections that follow; a job that nobody wants may be cancelled.
    std::atomic<int> followers{0};
    std::string note;  // of whoever started it; set before others see the job

  private:
    friend class Jobs;
    io::Loop& loop_;
    std::shared_ptr<Recording> recording_;
    std::weak_ptr<RecordingReply> reply_;  // used on loop_ alone
};

class JobTable {
  public:
    // False when the name is taken. `noted`: as pending work, under this name (pending.h).
    bool add(const std::string& name, std::shared_ptr<Job> job, bool noted = false);
    std::shared_ptr<Job> find(const std::string& name) const;  // null = none
    // Only the job that records there, when `recording` is given.
    void remove(const std::string& name, const Recording* recording = nullptr);
    std::vector<std::pair<std::string, std::shared_ptr<Job>>> noted() const;

  private:
    mutable std::mutex mutex_;
    struct Entry {
        std::shared_ptr<Job> job;
        bool noted = false;
    };
    std::map<std::string, Entry> jobs_;  // guarded by mutex_
};

}  // namespace nereid::gateway
