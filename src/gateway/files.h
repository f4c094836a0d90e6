// /v1/files: what batches read and write, and what requests name by id.
#pragma once

#include <string>

#include "gateway/generate.h"
#include "store/records.h"

namespace nereid::gateway {

io::Task<void> serve_files(Exchange& x, ShardTools tools);
io::Task<void> serve_file(Exchange& x, std::string id);
io::Task<void> serve_file_content(Exchange& x, std::string id);

// The changes that store a file, and its object as JSON.
struct NewFile {
    std::string id;
    std::string object;
    std::vector<store::Change> changes;
};
NewFile make_file(const Exchange& x, std::string id, std::string filename, std::string purpose,
                  std::string bytes);
struct StoredFile {
    std::string name;
    std::string bytes;
};
// kNotFound in the caller's words.
io::Task<Result<StoredFile>> load_file(Exchange& x, std::string id);

}  // namespace nereid::gateway
