// Idempotency-Key: a request that is sent again joins the one that runs, or gets the answer that
// was given. The work belongs to the key, not to a connection: a client may lose its connection,
// come back, and read the stream from its beginning.
//
// A key is remembered per caller and route for a day, in the state database; it belongs to one body
// (409 for another). Answers that say "later" (429, 5xx) and streams that broke are not kept: the
// next try runs again. Work that nobody has asked for over kAbandonAfter is aborted.
#pragma once

#include "gateway/generate.h"

namespace nereid::gateway {

// Whether the request wants it: a generating route and the header.
bool is_repeatable(const Exchange& x, Route route);
io::Task<void> serve_repeatable(Exchange& x, ShardTools tools, Route route);

}  // namespace nereid::gateway
