// Records: the state that must outlive a request: stored responses, conversations, files, batches,
// remembered answers. Named documents with an owner, an expiry and an order, in SQLite for one
// machine or PostgreSQL for several gateways; one interface, one set of tests over both.
//
// A record is named by (kind, tenant, id). `parent` puts it on a list; lists are in order of
// insertion. An expired record is as good as removed: no read shows it, expire() deletes it.
// Databases block, so a Records owns a loop of its own thread for them; its callers wait without
// blocking theirs. All functions may be called from any loop, which is named as `here`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/loop.h"
#include "io/task.h"

namespace nereid::store {

struct Key {
    std::string kind;    // "response", "file", ...
    std::string tenant;  // of the API key; empty without keys
    std::string id;
};

struct Record {
    Key key;
    std::string parent = {};    // the list it is on; empty = none
    std::string body = {};      // any bytes
    std::int64_t expires = 0;   // Unix seconds; 0 = never
    std::uint64_t version = 0;  // given by the store: 1, then one more with each change
    std::uint64_t order = 0;    // given by the store; kept when a record is changed
};

// One change of a write. All changes of one write happen, or none.
struct Change {
    enum class Op : std::uint8_t {
        kPut,      // inserts or replaces
        kInsert,   // kConflict when the name is taken
        kReplace,  // kNotFound; kConflict when the version is not record.version (0 = any)
        kRemove,   // nothing when it is not there
    } op = Op::kPut;
    Record record;
};

struct ListQuery {
    std::string kind, tenant;
    std::string parent;  // empty = all of this kind and tenant
    std::string after;   // id of the record before the first wanted; unknown = kNotFound
    // The same by Record::order, for who reads page after page: that record may have gone since.
    std::uint64_t after_order = 0;
    std::uint32_t limit = 100;
    bool newest_first = false;
};

// The blocking side: what a database has to do. One thread at a time.
class Database {
  public:
    virtual ~Database() = default;
    virtual Result<void> write(const std::vector<Change>& changes) = 0;
    // kNotFound when there is none, or it has expired at `now` (Unix seconds).
    virtual Result<Record> get(const Key& key, std::int64_t now) = 0;
    virtual Result<std::vector<Record>> list(const ListQuery& query, std::int64_t now) = 0;
    // Deletes what has expired, at most `limit`; how many.
    virtual Result<std::uint64_t> expire(std::int64_t now, std::uint32_t limit) = 0;
};

// A file, or ":memory:". Makes and migrates its tables. Durable to a crash of the process; after a
// crash of the machine the last instant may be missing, never half a write. kConfig with the mend
// (no such folder, not a database, made by a newer version), kIo.
Result<std::unique_ptr<Database>> open_sqlite(const std::string& path);
// A libpq connection string or URI. Connects now (kUnavailable), and again by itself when a
// connection breaks: the operation that saw it fails with kUnavailable, the next one connects.
Result<std::unique_ptr<Database>> open_postgres(const std::string& conninfo);

class Records {
  public:
    // Runs `database` on `loop`, whose thread is given to it: it blocks there. The loop must
    // outlive this, and be drained (or destroyed) before the database's callers' loops are.
    Records(std::unique_ptr<Database> database, io::Loop& loop);
    Records(const Records&) = delete;
    Records& operator=(const Records&) = delete;

    io::Task<Result<void>> write(io::Loop& here, std::vector<Change> changes);
    io::Task<Result<Record>> get(io::Loop& here, Key key);
    io::Task<Result<std::vector<Record>>> list(io::Loop& here, ListQuery query);
    io::Task<Result<std::uint64_t>> expire(io::Loop& here, std::uint32_t limit = 1000);

    // Conveniences over write().
    io::Task<Result<void>> put(io::Loop& here, Record record);
    io::Task<Result<void>> remove(io::Loop& here, Key key);

  private:
    std::shared_ptr<Database> database_;
    io::Loop& loop_;
};

}  // namespace nereid::store
