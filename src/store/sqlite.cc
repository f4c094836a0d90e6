#include <fmt/format.h>
#include <sqlite3.h>

#include <array>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "store/records.h"

namespace nereid::store {
namespace {

// Step i brings a database from version i to i + 1. Never changed, only added to.
constexpr std::array kMigrations{
    R"(CREATE TABLE records (
         ord INTEGER PRIMARY KEY AUTOINCREMENT,
         kind TEXT NOT NULL, tenant TEXT NOT NULL, id TEXT NOT NULL,
         parent TEXT NOT NULL, expires INTEGER NOT NULL, version INTEGER NOT NULL,
         body BLOB NOT NULL,
         UNIQUE (kind, tenant, id));
       CREATE INDEX records_by_parent ON records (kind, tenant, parent, ord);
       CREATE INDEX records_by_expiry ON records (expires) WHERE expires <> 0;)",
};

constexpr std::string_view kColumns = "kind, tenant, id, parent, body, expires, version, ord";
constexpr int kBusyMs = 5000;  // another process writes

class Statement {
  public:
    Statement(sqlite3* db, std::string_view sql) {
        failed_ = sqlite3_prepare_v2(db, sql.data(), static_cast<int>(sql.size()), &raw_,
                                     nullptr) != SQLITE_OK;
    }
    ~Statement() { sqlite3_finalize(raw_); }
    Statement(const Statement&) = delete;
    Statement& operator=(const Statement&) = delete;

    Statement& text(std::string_view v) {
        // The caller's strings outlive the statement. An empty view may have no address: that would
        // be NULL.
        sqlite3_bind_text(raw_, ++bound_, v.empty() ? "" : v.data(), static_cast<int>(v.size()),
                          SQLITE_STATIC);
        return *this;
    }
    Statement& blob(std::string_view v) {
        sqlite3_bind_blob64(raw_, ++bound_, v.empty() ? "" : v.data(), v.size(), SQLITE_STATIC);
        return *this;
    }
    Statement& number(std::int64_t v) {
        sqlite3_bind_int64(raw_, ++bound_, v);
        return *this;
    }
    int step() { return failed_ ? SQLITE_ERROR : sqlite3_step(raw_); }
    std::string bytes(int column) const {
        const void* at = sqlite3_column_blob(raw_, column);
        const auto size = static_cast<std::size_t>(sqlite3_column_bytes(raw_, column));
        return size == 0 ? std::string() : std::string(static_cast<const char*>(at), size);
    }
    std::int64_t integer(int column) const { return sqlite3_column_int64(raw_, column); }
    Record record() const {
        Record r;
        r.key = {bytes(0), bytes(1), bytes(2)};
        r.parent = bytes(3);
        r.body = bytes(4);
        r.expires = integer(5);
        r.version = static_cast<std::uint64_t>(integer(6));
        r.order = static_cast<std::uint64_t>(integer(7));
        return r;
    }

  private:
    sqlite3_stmt* raw_ = nullptr;
    int bound_ = 0;
    bool failed_ = false;
};

class Sqlite final : public Database {
  public:
    explicit Sqlite(sqlite3* db) : db_(db) {}
    ~Sqlite() override { sqlite3_close(db_); }
    Sqlite(const Sqlite&) = delete;
    Sqlite& operator=(const Sqlite&) = delete;

    Result<void> prepare(const std::string& path) {
        sqlite3_busy_timeout(db_, kBusyMs);
        TRY(const std::int64_t at, version(path));
        constexpr auto kKnown = static_cast<std::int64_t>(kMigrations.size());
        if (at < 0 || at > kKnown) {
            return err(
                Code::kConfig,
                fmt::format("{}: was made by a newer Nereid (version {}, this one knows {}). "
                            "Mend: run that one, or name another file.",
                            path, at, kKnown));
        }
        TRY_VOID(run("PRAGMA journal_mode = WAL"));
        TRY_VOID(run("PRAGMA synchronous = NORMAL"));
        for (auto i = at; i < kKnown; ++i) {
            TRY_VOID(run("BEGIN IMMEDIATE"));
            TRY_VOID(run(kMigrations[static_cast<std::size_t>(i)]));
            TRY_VOID(run(fmt::format("PRAGMA user_version = {}", i + 1)));
            TRY_VOID(run("COMMIT"));
        }
        return {};
    }

    Result<void> write(const std::vector<Change>& changes) override {
        TRY_VOID(run("BEGIN IMMEDIATE"));
        for (const Change& change : changes) {
            if (auto done = apply(change); !done.ok()) {
                (void)run("ROLLBACK");
                return done;
            }
        }
        auto committed = run("COMMIT");
        if (!committed.ok()) (void)run("ROLLBACK");
        return committed;
    }

    Result<Record> get(const Key& key, std::int64_t now) override {
        const std::string sql = fmt::format(
            "SELECT {} FROM records WHERE kind = ? AND tenant = ? AND id = ? AND (expires = 0 OR "
            "expires > ?)",
            kColumns);
        Statement s(db_, sql);
        s.text(key.kind).text(key.tenant).text(key.id).number(now);
        const int rc = s.step();
        if (rc == SQLITE_DONE)
            return err(Code::kNotFound, fmt::format("no {} {}", key.kind, key.id));
        if (rc != SQLITE_ROW) return failed("read");
        return s.record();
    }

    Result<std::vector<Record>> list(const ListQuery& q, std::int64_t now) override {
        auto from = static_cast<std::int64_t>(q.after_order);
        if (!q.after.empty()) {
            TRY(const Record last, get({q.kind, q.tenant, q.after}, now));
            from = static_cast<std::int64_t>(last.order);
        }
        std::string sql = fmt::format(
            "SELECT {} FROM records WHERE kind = ? AND tenant = ? AND (expires = 0 OR expires > ?)",
            kColumns);
        if (!q.parent.empty()) sql += " AND parent = ?";
        if (from != 0) sql += q.newest_first ? " AND ord < ?" : " AND ord > ?";
        sql += q.newest_first ? " ORDER BY ord DESC LIMIT ?" : " ORDER BY ord LIMIT ?";
        Statement s(db_, sql);
        s.text(q.kind).text(q.tenant).number(now);
        if (!q.parent.empty()) s.text(q.parent);
        if (from != 0) s.number(from);
        s.number(q.limit);
        std::vector<Record> out;
        int rc = s.step();
        for (; rc == SQLITE_ROW; rc = s.step()) out.push_back(s.record());
        if (rc != SQLITE_DONE) return failed("list");
        return out;
    }

    Result<std::uint64_t> expire(std::int64_t now, std::uint32_t limit) override {
        Statement s(db_,
                    "DELETE FROM records WHERE ord IN (SELECT ord FROM records WHERE expires <> 0 "
                    "AND expires <= ? LIMIT ?)");
        s.number(now).number(limit);
        if (s.step() != SQLITE_DONE) return failed("expire");
        return static_cast<std::uint64_t>(sqlite3_changes64(db_));
    }

  private:
    // A file that is no database is noticed by the first statement that reads it.
    Result<std::int64_t> version(const std::string& path) const {
        Statement s(db_, "PRAGMA user_version");
        if (s.step() == SQLITE_ROW) return s.integer(0);
        return err(Code::kConfig,
                   fmt::format("{}: is not a database of Nereid ({}). Mend: name another file.",
                               path, sqlite3_errmsg(db_)));
    }

    Result<void> run(std::string_view sql) {
        if (sqlite3_exec(db_, std::string(sql).c_str(), nullptr, nullptr, nullptr) == SQLITE_OK)
            return {};
        return failed(sql.substr(0, sql.find('(')));
    }

    std::unexpected<Error> failed(std::string_view what) const {
        const int rc = sqlite3_errcode(db_) & 0xff;
        const Code code = rc == SQLITE_FULL                             ? Code::kNoSpace
                          : rc == SQLITE_BUSY || rc == SQLITE_LOCKED    ? Code::kUnavailable
                          : rc == SQLITE_CORRUPT || rc == SQLITE_NOTADB ? Code::kCorrupt
                                                                        : Code::kIo;
        return err(code, fmt::format("state database: {}: {}", what, sqlite3_errmsg(db_)));
    }

    Result<void> apply(const Change& change) {
        const Record& r = change.record;
        switch (change.op) {
            case Change::Op::kPut:
                return insert(r,
                              " ON CONFLICT (kind, tenant, id) DO UPDATE SET parent = "
                              "excluded.parent, expires = excluded.expires, body = "
                              "excluded.body, version = version + 1");
            case Change::Op::kInsert:
                return insert(r, "");
            case Change::Op::kReplace:
                return replace(r);
            case Change::Op::kRemove:
                return remove(r.key);
        }
        return {};
    }

    Result<void> insert(const Record& r, std::string_view on_conflict) {
        const std::string sql = fmt::format(
            "INSERT INTO records (kind, tenant, id, parent, expires, version, body) VALUES (?, ?, "
            "?, ?, ?, 1, ?){}",
            on_conflict);
        Statement s(db_, sql);
        s.text(r.key.kind).text(r.key.tenant).text(r.key.id).text(r.parent).number(r.expires);
        s.blob(r.body);
        const int rc = s.step();
        if (rc == SQLITE_DONE) return {};
        if ((rc & 0xff) == SQLITE_CONSTRAINT)
            return err(Code::kConflict, fmt::format("{} {} exists already", r.key.kind, r.key.id));
        return failed("insert");
    }

    Result<void> replace(const Record& r) {
        Statement s(db_,
                    "UPDATE records SET parent = ?, expires = ?, body = ?, version = version + 1 "
                    "WHERE kind = ? AND tenant = ? AND id = ? AND (? = 0 OR version = ?)");
        const auto version = static_cast<std::int64_t>(r.version);
        s.text(r.parent).number(r.expires).blob(r.body);
        s.text(r.key.kind).text(r.key.tenant).text(r.key.id).number(version).number(version);
        if (s.step() != SQLITE_DONE) return failed("replace");
        if (sqlite3_changes64(db_) == 1) return {};
        Statement there(db_, "SELECT 1 FROM records WHERE kind = ? AND tenant = ? AND id = ?");
        there.text(r.key.kind).text(r.key.tenant).text(r.key.id);
        if (there.step() == SQLITE_ROW)
            return err(Code::kConflict,
                       fmt::format("{} {} was changed meanwhile", r.key.kind, r.key.id));
        return err(Code::kNotFound, fmt::format("no {} {}", r.key.kind, r.key.id));
    }

    Result<void> remove(const Key& key) {
        Statement s(db_, "DELETE FROM records WHERE kind = ? AND tenant = ? AND id = ?");
        s.text(key.kind).text(key.tenant).text(key.id);
        if (s.step() != SQLITE_DONE) return failed("remove");
        return {};
    }

    sqlite3* db_;
};

}  // namespace

Result<std::unique_ptr<Database>> open_sqlite(const std::string& path) {
    sqlite3* raw = nullptr;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    const int rc = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
    CHECK_MSG(raw != nullptr, "out of memory");
    auto db = std::make_unique<Sqlite>(raw);
    if (rc != SQLITE_OK) {
        return err(
            Code::kConfig,
            fmt::format("{}: {}. Mend: a file in a folder that exists and may be written to.", path,
                        sqlite3_errmsg(raw)));
    }
    TRY_VOID(db->prepare(path));
    return std::unique_ptr<Database>(std::move(db));
}

}  // namespace nereid::store
