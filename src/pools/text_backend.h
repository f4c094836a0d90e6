// A text engine as gateways see it. The room graph keeps gateway and engine apart; what meets them
// is a pool.
#pragma once

#include "engine/openai/text_backend.h"

namespace nereid::pools {
using TextBackend = engine::openai::TextBackend;
}
