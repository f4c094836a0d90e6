// nereid_peek: a sibling extension of deepinfer._C that reaches what its bindings leave out. No patch: it is compiled
// against the same headers with the same pybind11, and shares the registry of types. Every call belongs on the engine
// thread, between steps.
//
//   block_table(seq)                the blocks that a request owns (a copy)
//   prompted(scheduler)             number of requests that wait for admission to decode
//   add_prompted(scheduler, seq)    a request with its KV in place enters a decode-only engine: no clone, no spare block
//   adopt(scheduler, seq, ids)      the request takes `ids` (shared: each gets one more reference) as its first blocks, and
//                                   fresh ones and a state for the rest. False, and nothing changed, when there is no room
//   outputs(ptrs)                   what one step returned, as tuples (request_id, token, reason, logprob, drafted, accepted):
//                                   one call instead of six per token
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "engine/outputs.hpp"
#include "engine/scheduler.hpp"
#include "engine/sequence.hpp"

namespace {

bool adopt(Scheduler& scheduler, Sequence& seq, const std::vector<int>& ids) {
    TORCH_CHECK(seq.schedule.status == SequenceStatus::WAITING, "only a waiting request adopts blocks");
    TORCH_CHECK(seq.cache.block_table.empty() && seq.cache.state_id == -1, "the request owns blocks already");
    const int need = seq.get_num_blocks() - static_cast<int>(ids.size());
    TORCH_CHECK(need >= 0, "more blocks than the request has");
    py::gil_scoped_release release;  // the lock refuses a holder of the GIL
    BlockManagerMutexAcquire lock{scheduler.block_manager, scheduler.state_manager};
    const bool state = !scheduler.state_manager || scheduler.state_manager->can_allocate_single_nolock();
    if (!state || scheduler.block_manager->can_allocate_nolock(need) != AllocStatus::OK) return false;
    scheduler.block_manager->pin_blocks_nolock(ids);
    auto table = ids;
    const auto fresh = scheduler.block_manager->allocate_nolock(need);
    table.insert(table.end(), fresh.begin(), fresh.end());
    seq.cache.block_table = std::move(table);
    if (scheduler.state_manager) seq.cache.state_id = scheduler.state_manager->allocate_single_nolock();
    return true;
}

py::list outputs(const py::array_t<uint64_t, py::array::c_style | py::array::forcecast>& ptrs) {
    py::list out(ptrs.size());
    for (py::ssize_t i = 0; i < ptrs.size(); ++i) {
        const auto& o = *reinterpret_cast<const RequestOutput*>(ptrs.at(i));
        out[static_cast<size_t>(i)] =
            py::make_tuple(o.request_id, o.token_id, o.finish_reason, o.token_logprobs, o.draft_tok, o.accept_tok);
    }
    return out;
}

}  // namespace

PYBIND11_MODULE(nereid_peek, m) {
    m.def("block_table", [](const Sequence& seq) { return seq.cache.block_table; });
    m.def("prompted", [](const Scheduler& scheduler) { return scheduler.prompted.size(); });
    m.def("add_prompted", [](Scheduler& scheduler, const SequencePtr& seq) {
        TORCH_CHECK(!seq->cache.block_table.empty(), "allocate its blocks first");
        TORCH_CHECK(seq->cache.num_tokens == seq->get_len() - 1, "the KV must cover all tokens but the last");
        seq->reserve_output_tokens();
        seq->cache.block_table.reserve(scheduler._block_table_capacity(*seq));
        scheduler.prompted.emplace_back(seq, false);
    });
    m.def("adopt", &adopt);
    m.def("outputs", &outputs);
}
