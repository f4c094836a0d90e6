// Job: one request in flight, as the simulator sees it; and the pool of them.
#pragma once

#include <cstdint>
#include <vector>

#include "router/plan.h"
#include "sim/capacity/event_queue.h"
#include "workload/request.h"

namespace nereid::sim {

using JobId = std::uint32_t;
inline constexpr std::uint32_t kNowhere = 0xffff'ffff;

struct Job {
    workload::Request request;
    router::PlanHandles handles;
    router::Plan plan;

    TokenCount prompt = 0;  // to prefill: the request's, plus what was generated before a restart
    TokenCount cached = 0;  // of the prompt, restored instead of computed
    TokenCount done = 0;    // of the prompt, cached included
    TokenCount generated = 0;  // output tokens so far, kept across restarts
    std::uint32_t gateway = 0;
    std::uint32_t prefill_unit = kNowhere, prefill_rank = 0;
    std::uint32_t decode_unit = kNowhere, decode_rank = 0;
    std::uint32_t attempts = 0;     // dispatches
    std::uint32_t life = 0;         // events of an earlier life of this slot are stale
    double planned_prefill_ms = 0;  // by our own cost model: what a quota counts
    Nanos arrival = 0;
    Nanos ready = 0;  // prefix restored: may be prefilled from then on
    Nanos first_token = -1;
    Nanos kv_sent = 0;  // when the KV of the chunks before the last has left
};

class JobPool {
  public:
    JobId take() {
        if (free_.empty()) {
            jobs_.emplace_back();
            return static_cast<JobId>(jobs_.size() - 1);
        }
        const JobId id = free_.back();
        free_.pop_back();
        return id;
    }
    // Keeps the vectors' capacity; the slot's next life has another number.
    void give(JobId id) {
        Job& job = jobs_[id];
        Job fresh;
        fresh.request = std::move(job.request);
        fresh.life = job.life + 1;
        job = std::move(fresh);
        free_.push_back(id);
    }
    Job& operator[](JobId id) { return jobs_[id]; }
    const Job& operator[](JobId id) const { return jobs_[id]; }
    std::size_t in_flight() const { return jobs_.size() - free_.size(); }

  private:
    std::vector<Job> jobs_;
    std::vector<JobId> free_;
};

}  // namespace nereid::sim
