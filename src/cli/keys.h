// `nereid keys new NAME [--max-concurrency N]`: makes an API key for the file that `--api-keys`
// names.
#pragma once

#include <span>
#include <string>

namespace nereid::cli {

// The file's line goes to standard output (`nereid keys new alice >> keys`), the key itself, which
// is kept nowhere, to standard error. An exit code.
int keys(std::span<const std::string> args);

}  // namespace nereid::cli
