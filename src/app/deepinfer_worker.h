// `nereid worker --engine deepinfer`: a group of DeepInfer ranks behind one engine-wire socket.
#pragma once

#include <string>

#include "app/engine_setup.h"
#include "base/result.h"

namespace nereid::app {

// Starts the group that options.deepinfer names, then serves it on `socket` until SIGTERM. kConfig
// for what a restart cannot mend. Blocks.
Result<void> run_deepinfer_worker(const EngineOptions& options, const std::string& socket);

}  // namespace nereid::app
