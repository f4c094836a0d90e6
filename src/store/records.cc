#include "store/records.h"

#include <utility>

#include "store/offload.h"

namespace nereid::store {

Records::Records(std::unique_ptr<Database> database, io::Loop& loop)
    : database_(std::move(database)), loop_(loop) {}

io::Task<Result<void>> Records::write(io::Loop& here, std::vector<Change> changes) {
    return offload(loop_, here, [db = database_, c = std::move(changes)] { return db->write(c); });
}

io::Task<Result<Record>> Records::get(io::Loop& here, Key key) {
    return offload(loop_, here, [db = database_, k = std::move(key), &loop = loop_] {
        return db->get(k, loop.wall_now().seconds());
    });
}

io::Task<Result<std::vector<Record>>> Records::list(io::Loop& here, ListQuery query) {
    return offload(loop_, here, [db = database_, q = std::move(query), &loop = loop_] {
        return db->list(q, loop.wall_now().seconds());
    });
}

io::Task<Result<std::uint64_t>> Records::expire(io::Loop& here, std::uint32_t limit) {
    return offload(loop_, here, [db = database_, limit, &loop = loop_] {
        return db->expire(loop.wall_now().seconds(), limit);
    });
}

io::Task<Result<void>> Records::put(io::Loop& here, Record record) {
    std::vector<Change> changes(1);
    changes[0].record = std::move(record);
    return write(here, std::move(changes));
}

io::Task<Result<void>> Records::remove(io::Loop& here, Key key) {
    std::vector<Change> changes(1);
    changes[0].op = Change::Op::kRemove;
    changes[0].record.key = std::move(key);
    return write(here, std::move(changes));
}

}  // namespace nereid::store
