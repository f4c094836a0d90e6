#include <fmt/format.h>
#include <libpq-fe.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "store/records.h"

namespace nereid::store {
namespace {

// Step i brings a database from version i to i + 1. Never changed, only added to.
constexpr std::array kMigrations{
    R"(CREATE TABLE nereid_records (
         ord BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
         kind TEXT NOT NULL, tenant TEXT NOT NULL, id TEXT NOT NULL,
         parent TEXT NOT NULL, expires BIGINT NOT NULL, version BIGINT NOT NULL,
         body BYTEA NOT NULL,
         UNIQUE (kind, tenant, id));
       CREATE INDEX nereid_records_by_parent ON nereid_records (kind, tenant, parent, ord);
       CREATE INDEX nereid_records_by_expiry ON nereid_records (expires) WHERE expires <> 0;)",
};

constexpr std::string_view kColumns = "kind, tenant, id, parent, body, expires, version, ord";
// Of an advisory lock: gateways that start together migrate one after the other.
constexpr std::string_view kMigrationLock = "7308895";

struct Clear {
    void operator()(PGresult* r) const { PQclear(r); }
};
using Rows = std::unique_ptr<PGresult, Clear>;

// One parameter of a statement: text, or the bytes of a body.
struct Parameter {
    std::string text;
    bool binary = false;
};
Parameter number(std::int64_t v) { return {fmt::to_string(v)}; }

class Postgres final : public Database {
  public:
    explicit Postgres(std::string conninfo) : conninfo_(std::move(conninfo)) {}
    ~Postgres() override { PQfinish(connection_); }
    Postgres(const Postgres&) = delete;
    Postgres& operator=(const Postgres&) = delete;

    Result<void> connect() {
        if (connection_ != nullptr && PQstatus(connection_) == CONNECTION_OK) return {};
        PQfinish(connection_);
        connection_ = PQconnectdb(conninfo_.c_str());
        if (connection_ == nullptr || PQstatus(connection_) != CONNECTION_OK) {
            // libpq's message names host and user, never the password.
            auto why =
                fmt::format("state database: {}",
                            connection_ == nullptr ? "out of memory" : PQerrorMessage(connection_));
            while (why.ends_with('\n')) why.pop_back();
            return err(Code::kUnavailable, std::move(why));
        }
        PQsetNoticeProcessor(connection_, [](void*, const char*) {}, nullptr);
        return migrate();
    }

    Result<void> write(const std::vector<Change>& changes) override {
        TRY_VOID(connect());
        TRY_VOID(run("BEGIN"));
        for (const Change& change : changes) {
            if (auto done = apply(change); !done.ok()) {
                (void)run("ROLLBACK");
                return done;
            }
        }
        return run("COMMIT");
    }

    Result<Record> get(const Key& key, std::int64_t now) override {
        TRY_VOID(connect());
        TRY(const Rows rows,
            query(fmt::format("SELECT {} FROM nereid_records WHERE kind = $1 AND tenant = $2 AND "
                              "id = $3 AND (expires = 0 OR expires > $4::bigint)",
                              kColumns),
                  {{key.kind}, {key.tenant}, {key.id}, number(now)}));
        if (PQntuples(rows.get()) == 0)
            return err(Code::kNotFound, fmt::format("no {} {}", key.kind, key.id));
        return record(rows.get(), 0);
    }

    Result<std::vector<Record>> list(const ListQuery& q, std::int64_t now) override {
        auto from = static_cast<std::int64_t>(q.after_order);
        if (!q.after.empty()) {
            TRY(const Record last, get({q.kind, q.tenant, q.after}, now));
            from = static_cast<std::int64_t>(last.order);
        }
        TRY_VOID(connect());
        std::string sql = fmt::format(
            "SELECT {} FROM nereid_records WHERE kind = $1 AND tenant = $2 AND (expires = 0 OR "
            "expires > $3::bigint)",
            kColumns);
        std::vector<Parameter> parameters{{q.kind}, {q.tenant}, number(now)};
        const auto next = [&](Parameter p) {
            parameters.push_back(std::move(p));
            return parameters.size();
        };
        if (!q.parent.empty()) sql += fmt::format(" AND parent = ${}", next({q.parent}));
        if (from != 0)
            sql += fmt::format(" AND ord {} ${}::bigint", q.newest_first ? '<' : '>',
                               next(number(from)));
        sql += fmt::format(" ORDER BY ord {} LIMIT {}", q.newest_first ? "DESC" : "ASC", q.limit);
        TRY(const Rows rows, query(sql, parameters));
        std::vector<Record> out;
        for (int i = 0; i < PQntuples(rows.get()); ++i) out.push_back(record(rows.get(), i));
        return out;
    }

    Result<std::uint64_t> expire(std::int64_t now, std::uint32_t limit) override {
        TRY_VOID(connect());
        TRY(const Rows rows,
            query(
                fmt::format("DELETE FROM nereid_records WHERE ord IN (SELECT ord FROM "
                            "nereid_records WHERE expires <> 0 AND expires <= $1::bigint LIMIT {})",
                            limit),
                {number(now)}));
        return affected(rows.get());
    }

  private:
    Result<void> migrate() {
        TRY_VOID(run("BEGIN"));
        TRY_VOID(run(fmt::format("SELECT pg_advisory_xact_lock({})", kMigrationLock)));
        TRY_VOID(run("CREATE TABLE IF NOT EXISTS nereid_schema (version BIGINT NOT NULL)"));
        TRY(const Rows rows, query("SELECT coalesce(max(version), 0) FROM nereid_schema", {}));
        const std::int64_t at = integer(rows.get(), 0, 0);
        constexpr auto kKnown = static_cast<std::int64_t>(kMigrations.size());
        if (at > kKnown) {
            (void)run("ROLLBACK");
            return err(
                Code::kConfig,
                fmt::format("the state database was made by a newer Nereid (version {}, this "
                            "one knows {}). Mend: run that one, or name another database.",
                            at, kKnown));
        }
        for (auto i = at; i < kKnown; ++i) {
            TRY_VOID(run(kMigrations[static_cast<std::size_t>(i)]));
            TRY_VOID(run(fmt::format("INSERT INTO nereid_schema VALUES ({})", i + 1)));
        }
        return run("COMMIT");
    }

    static std::string_view cell(const PGresult* rows, int row, int column) {
        return {PQgetvalue(rows, row, column),
                static_cast<std::size_t>(PQgetlength(rows, row, column))};
    }
    static std::int64_t integer(const PGresult* rows, int row, int column) {
        const std::string_view text = cell(rows, row, column);
        std::int64_t v = 0;
        std::from_chars(text.data(), text.data() + text.size(), v);
        return v;
    }
    static Record record(const PGresult* rows, int row) {
        const auto text = [&](int column) { return std::string(cell(rows, row, column)); };
        Record r;
        r.key = {text(0), text(1), text(2)};
        r.parent = text(3);
        std::size_t size = 0;
        unsigned char* bytes = PQunescapeBytea(
            reinterpret_cast<const unsigned char*>(PQgetvalue(rows, row, 4)), &size);
        CHECK_MSG(bytes != nullptr, "out of memory");
        r.body.assign(reinterpret_cast<const char*>(bytes), size);
        PQfreemem(bytes);
        r.expires = integer(rows, row, 5);
        r.version = static_cast<std::uint64_t>(integer(rows, row, 6));
        r.order = static_cast<std::uint64_t>(integer(rows, row, 7));
        return r;
    }
    static std::uint64_t affected(PGresult* rows) {
        const std::string_view text = PQcmdTuples(rows);
        std::uint64_t n = 0;
        std::from_chars(text.data(), text.data() + text.size(), n);
        return n;
    }

    std::unexpected<Error> failed(const PGresult* result) {
        const char* state =
            result == nullptr ? nullptr : PQresultErrorField(result, PG_DIAG_SQLSTATE);
        const std::string_view sqlstate = state == nullptr ? "" : state;
        std::string why = fmt::format("state database: {}", PQerrorMessage(connection_));
        while (why.ends_with('\n')) why.pop_back();
        if (sqlstate == "23505") return err(Code::kConflict, std::move(why));
        if (sqlstate.starts_with("53")) return err(Code::kNoSpace, std::move(why));
        return err(PQstatus(connection_) == CONNECTION_OK && !sqlstate.empty() ? Code::kIo
                                                                               : Code::kUnavailable,
                   std::move(why));
    }

    Result<void> run(std::string_view sql) {
        const Rows rows(PQexec(connection_, std::string(sql).c_str()));
        const auto status = PQresultStatus(rows.get());
        if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) return {};
        return failed(rows.get());
    }

    Result<Rows> query(const std::string& sql, const std::vector<Parameter>& parameters) {
        std::vector<const char*> values;
        std::vector<int> lengths, formats;
        for (const Parameter& p : parameters) {
            values.push_back(p.text.c_str());
            lengths.push_back(static_cast<int>(p.text.size()));
            formats.push_back(p.binary ? 1 : 0);
        }
        Rows rows(PQexecParams(connection_, sql.c_str(), static_cast<int>(parameters.size()),
                               nullptr, values.data(), lengths.data(), formats.data(), 0));
        const auto status = PQresultStatus(rows.get());
        if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) return rows;
        return failed(rows.get());
    }

    Result<void> apply(const Change& change) {
        const Record& r = change.record;
        const std::vector<Parameter> named{{r.key.kind}, {r.key.tenant}, {r.key.id}};
        std::vector<Parameter> all = named;
        all.insert(all.end(), {{r.parent}, number(r.expires), {r.body, true}});
        constexpr std::string_view kInsert =
            "INSERT INTO nereid_records (kind, tenant, id, parent, expires, version, body) VALUES "
            "($1, $2, $3, $4, $5::bigint, 1, $6::bytea)";
        constexpr std::string_view kNamed = "kind = $1 AND tenant = $2 AND id = $3";
        switch (change.op) {
            case Change::Op::kPut:
                return statement(
                    fmt::format("{} ON CONFLICT (kind, tenant, id) DO UPDATE SET parent = "
                                "excluded.parent, expires = excluded.expires, body = "
                                "excluded.body, version = nereid_records.version + 1",
                                kInsert),
                    all);
            case Change::Op::kInsert:
                return statement(std::string(kInsert), all);
            case Change::Op::kReplace:
                return replace(r, std::move(all), named);
            case Change::Op::kRemove:
                return statement(fmt::format("DELETE FROM nereid_records WHERE {}", kNamed), named);
        }
        return {};
    }

    Result<void> statement(const std::string& sql, const std::vector<Parameter>& parameters) {
        TRY([[maybe_unused]] const Rows rows, query(sql, parameters));
        return {};
    }

    Result<void> replace(const Record& r, std::vector<Parameter> all,
                         const std::vector<Parameter>& named) {
        all.push_back(number(static_cast<std::int64_t>(r.version)));
        TRY(const Rows rows,
            query("UPDATE nereid_records SET parent = $4, expires = $5::bigint, body = $6::bytea, "
                  "version = version + 1 WHERE kind = $1 AND tenant = $2 AND id = $3 AND "
                  "($7::bigint = 0 OR version = $7::bigint)",
                  all));
        if (affected(rows.get()) == 1) return {};
        TRY(const Rows there,
            query("SELECT 1 FROM nereid_records WHERE kind = $1 AND tenant = $2 AND id = $3",
                  named));
        if (PQntuples(there.get()) != 0)
            return err(Code::kConflict,
                       fmt::format("{} {} was changed meanwhile", r.key.kind, r.key.id));
        return err(Code::kNotFound, fmt::format("no {} {}", r.key.kind, r.key.id));
    }

    std::string conninfo_;
    PGconn* connection_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Database>> open_postgres(const std::string& conninfo) {
    auto db = std::make_unique<Postgres>(conninfo);
    TRY_VOID(db->connect());
    return std::unique_ptr<Database>(std::move(db));
}

}  // namespace nereid::store
