// The offline oracle: what the same machines could serve at most if all requests were known ahead,
// work could be split in any fraction over all ranks, nothing waited at a barrier, every step was
// full, and one prefix cache without limit served all ranks.
//
//   prefill: ranks · 1 s / mean over requests of chunk_ms(hit, prompt)
//   decode:  ranks · tokens per second of a rank at the largest batch that keeps the ITL objective
//            and fits its KV and seats, over the mean output
//
// No real system reaches it; goodput over it is the *system efficiency* of DESIGN §8 (rejections
// and misses of the objective are losses). Costs one pass over the workload.
#pragma once

#include "sim/capacity/spec.h"
#include "workload/request.h"

namespace nereid::sim {

struct Oracle {
    double requests_per_second = 0;  // of the workload's mix: the lesser of the next two
    double prefill_per_second = 0;   // infinite without prefill ranks
    double decode_per_second = 0;
    double hit_share = 0;     // of prompt tokens, by the unlimited cache
    double prefill_ms = 0;    // mean work of a request
    double decode_batch = 0;  // requests per rank at that rate
};

// `source` is spent. Requests arriving in [spec.warmup, spec.end] count, earlier ones fill the
// cache.
Oracle oracle_of(const ClusterSpec& spec, workload::Source& source);

}  // namespace nereid::sim
