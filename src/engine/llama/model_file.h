// Checks of a GGUF file before llama.cpp sees it, and its digest.
//
// llama.cpp maps the file and trusts its offsets: a file that is cut short can kill the process
// with SIGBUS in the middle of a request. So the header is read and every tensor's end is compared
// with the size of the file first.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "base/units.h"

namespace nereid::engine::llama {

struct ModelFile {
    ByteCount size = 0;
    std::string architecture;  // general.architecture
};

// kConfig with the path, what is wrong (missing, not GGUF, truncated, no vocabulary, no
// architecture) and the mend. Reads the header only.
Result<ModelFile> inspect_model(const std::string& path);

// SHA-256 of the whole file. 0.1 to 0.3 s for 98 MB; the file is in the page cache afterwards,
// which loading needs anyway.
Result<Digest256> digest_file(const std::string& path);

}  // namespace nereid::engine::llama
