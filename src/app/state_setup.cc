#include "app/state_setup.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <utility>

namespace nereid::app {
namespace {

constexpr Duration kCleanEvery = 60s;

Result<Digest256> random_secret() {
    Digest256 out{};
    if (getrandom(out.data(), out.size(), 0) != static_cast<ssize_t>(out.size()))
        return err(Code::kIo, "the system gave no random bytes");
    return out;
}

// The secret of a database is made by whoever comes first, and the same for all its gateways: what
// one has sealed the others open, also after a restart.
Result<Digest256> secret_of(store::Database& database) {
    const store::Key key{.kind = "secret", .tenant = {}, .id = "seal"};
    TRY(const Digest256 fresh, random_secret());
    store::Change change{.op = store::Change::Op::kInsert,
                         .record = {.key = key, .body = to_hex(fresh)}};
    const auto inserted = database.write({change});
    if (!inserted.ok() && inserted.code() != Code::kConflict) return inserted.error();
    TRY(const store::Record record, database.get(key, 0));
    Digest256 out{};
    if (!from_hex(record.body, out))
        return err(Code::kCorrupt, "the state database's secret cannot be read");
    return out;
}

}  // namespace

Result<std::unique_ptr<StateHolder>> StateHolder::open(const std::string& where) {
    const bool postgres = where.starts_with("postgres://") || where.starts_with("postgresql://");
    TRY(auto database, postgres ? store::open_postgres(where)
                                : store::open_sqlite(where == "memory" ? ":memory:" : where));
    std::unique_ptr<StateHolder> holder(new StateHolder());
    TRY(holder->state_.secret, secret_of(*database));
    TRY(const Digest256 name, random_secret());
    holder->state_.process_id = to_hex(std::span(name).first(8));
    holder->state_.shared = postgres;
    holder->state_.helper = &holder->helper_.loop(0);
    holder->state_.records =
        std::make_shared<store::Records>(std::move(database), holder->thread_.loop(0));
    return holder;
}

io::Task<void> StateHolder::keep_clean(io::Loop& loop, ops::Logger& log) {
    const auto records = state_.records;
    for (;;) {
        co_await loop.sleep_for(kCleanEvery);
        const auto gone = co_await records->expire(loop);
        if (!gone.ok())
            log.warn("expired state could not be deleted", {{"error", gone.error().message}});
    }
}

}  // namespace nereid::app
