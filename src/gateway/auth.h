// API keys from a file: who may call, and how much at once.
//
//   # a comment
//   name:sha256-hex[:max_concurrency]
//
// `name` (1..64 of A-Z a-z 0-9 . _ -) is what logs show. The digest is SHA-256 of the whole key:
// keys are random (256 bits, `nereid keys new`), so a slow hash would protect nothing and cost
// every request; a key somebody invents himself is only as good as his invention. `max_concurrency`
// (0 or absent = no limit) bounds the requests of this key in flight.
//
// A presented key is hashed, found by its digest, and compared in constant time: what timing can
// tell an attacker is about the digest of his own guess.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "io/http.h"

namespace nereid::gateway {

struct ApiKey {
    std::string name;
    Digest256 digest{};
    std::int64_t max_concurrency = 0;  // 0 = no limit
    // Requests in flight, over all shards. Kept through a reload while the name stays.
    std::shared_ptr<std::atomic<std::int64_t>> in_flight;
};

// Immutable; shared by all shards.
class KeyTable {
  public:
    // `origin` names the file in messages. kConfig with origin:line, what is wrong and the mend; a
    // table without keys is an error too, for it would lock everybody out. Counters of keys that
    // `previous` has too go on.
    static Result<std::shared_ptr<const KeyTable>> parse(std::string_view text,
                                                         std::string_view origin,
                                                         const KeyTable* previous);
    // The key that hashes so, or null. About 1 us.
    const ApiKey* find(std::string_view presented) const;
    const std::vector<ApiKey>& keys() const { return keys_; }

  private:
    std::vector<ApiKey> keys_;  // by digest
};

// The credential of a request: `Authorization: Bearer K`, else `x-api-key: K`, else empty.
std::string_view presented_key(const io::Headers& headers);

struct NewKey {
    std::string key;   // to be shown once: "sk-nereid-" and 64 hex digits
    std::string line;  // for the file
};
// kInvalidArgument for a bad name. `entropy` comes from the system's random source.
Result<NewKey> make_key_line(std::string_view name, std::int64_t max_concurrency,
                             std::span<const std::uint8_t, 32> entropy);

}  // namespace nereid::gateway
