// /v1/files: what batches read and write, and what requests name by id. One path for both vendors:
// the objects are the union of theirs.
#pragma once

#include <string>

#include "gateway/generate.h"
#include "store/records.h"

namespace nereid::gateway {

io::Task<void> serve_files(Exchange& x, ShardTools tools);
io::Task<void> serve_file(Exchange& x, std::string id);
io::Task<void> serve_file_content(Exchange& x, std::string id);

// The changes that store a file, and its object as it is kept: OpenAI's fields and the media type.
// What callers see has Anthropic's beside them.
struct NewFile {
    std::string id;
    std::string object;
    std::vector<store::Change> changes;
};
struct FileHead {
    std::string filename;
    std::string purpose;
    std::string media_type;  // empty = not known
    std::int64_t expires_in =
        0;  // seconds; 0 = when all that is kept does, which it never outlives
};
NewFile make_file(const Exchange& x, std::string id, const FileHead& head, std::string bytes);
struct StoredFile {
    std::string name;
    std::string bytes;
};
// kNotFound in the caller's words.
io::Task<Result<StoredFile>> load_file(Exchange& x, std::string id);

}  // namespace nereid::gateway
