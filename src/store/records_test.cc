// One set of tests over both databases, and what is particular to each. PostgreSQL is started in a
// temporary folder by tests/postgres.sh; where there is none its tests are skipped and say so.
#include "store/records.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/prng.h"
#include "io/http_testing.h"
#include "io/real_process.h"
#include "io/root_task.h"

namespace nereid::store {
namespace {

namespace fs = std::filesystem;

std::string fresh_folder(const char* name) {
    static int n = 0;
    // Short: a Unix socket's path has 108 bytes.
    std::string path =
        fs::temp_directory_path() / fmt::format("nereid-{}-{}-{}", name, getpid(), n++);
    fs::create_directories(path);
    return path;
}

// A PostgreSQL for the whole program.
class Server {
  public:
    static Server* get() {
        static std::unique_ptr<Server> server = start();
        return server.get();
    }
    ~Server() {
        process_.reset();
        fs::remove_all(folder_);
    }
    std::string conninfo() const {
        return fmt::format("host={} user=nereid dbname=postgres", folder_);
    }
    void stop() { process_.reset(); }
    bool run() {
        io::ProcessSpec spec;
        spec.argv = {"/bin/bash", "tests/postgres.sh", folder_};
        const auto ready = std::make_shared<bool>(false);
        const auto ended = std::make_shared<bool>(false);
        spec.on_line = [ready](std::string_view line, bool) { *ready = *ready || line == "ready"; };
        auto process = launcher_.start(std::move(spec));
        if (!process.ok()) return false;
        process_ = *std::move(process);
        watch_.start(wait(*process_, ended));
        loop_.run_until([&] { return *ready || *ended; }, 60s);
        return *ready;
    }

  private:
    Server() : launcher_(loop_), folder_(fresh_folder("pg")) {}
    static std::unique_ptr<Server> start() {
        std::unique_ptr<Server> server(new Server());
        return server->run() ? std::move(server) : nullptr;
    }
    static io::Task<void> wait(io::Process& process, std::shared_ptr<bool> ended) {
        (void)co_await process.wait();
        *ended = true;
    }
    io::RealLoop loop_;
    io::RealProcessLauncher launcher_;
    std::string folder_;
    std::unique_ptr<io::Process> process_;
    io::RootTask watch_;
};

enum class Kind : std::uint8_t { kSqlite, kPostgres };

class RecordsTest : public testing::TestWithParam<Kind> {
  protected:
    void SetUp() override {
        if (GetParam() == Kind::kPostgres && Server::get() == nullptr)
            GTEST_SKIP() << "there is no PostgreSQL here";
        db = open();
        // Each test has a tenant of its own in the one server.
        tenant = testing::UnitTest::GetInstance()->current_test_info()->name();
    }
    std::unique_ptr<Database> open() const {
        auto made = GetParam() == Kind::kSqlite ? open_sqlite(":memory:")
                                                : open_postgres(Server::get()->conninfo());
        EXPECT_TRUE(made.ok()) << made.error().message;
        return made.ok() ? *std::move(made) : nullptr;
    }
    Record record(std::string id, std::string body, std::string parent = {},
                  std::int64_t expires = 0) const {
        return {.key = {"k", tenant, std::move(id)},
                .parent = std::move(parent),
                .body = std::move(body),
                .expires = expires};
    }
    Result<void> write(Change::Op op, Record r) { return db->write({{op, std::move(r)}}); }
    Key key(std::string id) const { return {"k", tenant, std::move(id)}; }
    std::vector<std::string> ids(const ListQuery& q, std::int64_t now = 100) {
        std::vector<std::string> out;
        const auto found = db->list(q, now);
        EXPECT_TRUE(found.ok()) << found.error().message;
        for (const Record& r : *found) out.push_back(r.key.id);
        return out;
    }
    std::unique_ptr<Database> db;
    std::string tenant;
};
using Op = Change::Op;
using Ids = std::vector<std::string>;

TEST_P(RecordsTest, PutGetRemove) {
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
    ASSERT_TRUE(write(Op::kPut, record("a", bytes, "p", 500)).ok());
    const auto got = db->get(key("a"), 100);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->body, bytes);
    EXPECT_EQ(got->parent, "p");
    EXPECT_EQ(got->expires, 500);
    EXPECT_EQ(got->version, 1u);
    ASSERT_TRUE(write(Op::kPut, record("a", "")).ok());
    EXPECT_EQ(db->get(key("a"), 100)->body, "");
    EXPECT_EQ(db->get(key("a"), 100)->version, 2u);
    EXPECT_EQ(db->get(key("a"), 100)->order, got->order);
    ASSERT_TRUE(write(Op::kRemove, record("a", "")).ok());
    ASSERT_TRUE(write(Op::kRemove, record("a", "")).ok());
    EXPECT_EQ(db->get(key("a"), 100).code(), Code::kNotFound);
    EXPECT_EQ(db->get({"k", "another tenant", "a"}, 100).code(), Code::kNotFound);
}

TEST_P(RecordsTest, InsertAndReplaceSeeOthers) {
    ASSERT_TRUE(write(Op::kInsert, record("a", "1")).ok());
    EXPECT_EQ(write(Op::kInsert, record("a", "2")).code(), Code::kConflict);
    Record r = record("a", "3");
    r.version = 1;
    ASSERT_TRUE(write(Op::kReplace, r).ok());
    EXPECT_EQ(write(Op::kReplace, r).code(), Code::kConflict);
    r.version = 0;
    EXPECT_TRUE(write(Op::kReplace, r).ok());
    EXPECT_EQ(write(Op::kReplace, record("b", "")).code(), Code::kNotFound);
    EXPECT_EQ(db->get(key("a"), 0)->body, "3");
    EXPECT_EQ(db->get(key("a"), 0)->version, 3u);
}

TEST_P(RecordsTest, AWriteIsWholeOrNothing) {
    ASSERT_TRUE(write(Op::kInsert, record("taken", "old")).ok());
    const auto done = db->write({{Op::kPut, record("x", "1")},
                                 {Op::kRemove, record("taken", "")},
                                 {Op::kInsert, record("x", "2")}});
    EXPECT_EQ(done.code(), Code::kConflict);
    EXPECT_EQ(db->get(key("x"), 0).code(), Code::kNotFound);
    EXPECT_EQ(db->get(key("taken"), 0)->body, "old");
}

TEST_P(RecordsTest, ListsAreInOrderOfInsertion) {
    for (int i = 0; i < 5; ++i)
        ASSERT_TRUE(
            write(Op::kPut, record(fmt::format("i{}", 9 - i), "", i == 2 ? "q" : "p")).ok());
    ASSERT_TRUE(write(Op::kPut, record("i9", "changed", "p")).ok());
    const ListQuery p{.kind = "k", .tenant = tenant, .parent = "p", .after = {}};
    EXPECT_EQ(ids(p), (Ids{"i9", "i8", "i6", "i5"}));
    ListQuery q = p;
    q.parent = "";
    EXPECT_EQ(ids(q).size(), 5u);
    q = p;
    q.limit = 2;
    EXPECT_EQ(ids(q), (Ids{"i9", "i8"}));
    q.after = "i8";
    EXPECT_EQ(ids(q), (Ids{"i6", "i5"}));
    // By order, also when the record has gone meanwhile.
    ListQuery by_order = p;
    by_order.after_order = db->get(key("i8"), 100)->order;
    EXPECT_EQ(ids(by_order), (Ids{"i6", "i5"}));
    by_order.newest_first = true;
    EXPECT_EQ(ids(by_order), (Ids{"i9"}));
    by_order.newest_first = false;
    ASSERT_TRUE(write(Op::kRemove, record("i6", "", "p")).ok());
    by_order.after_order = db->get(key("i8"), 100)->order + 1;
    EXPECT_EQ(ids(by_order), (Ids{"i5"}));
    ASSERT_TRUE(write(Op::kPut, record("i6", "", "p")).ok());
    q.newest_first = true;
    EXPECT_EQ(ids(q), (Ids{"i9"}));
    q.after = "unknown";
    EXPECT_EQ(db->list(q, 100).code(), Code::kNotFound);
}

TEST_P(RecordsTest, WhatHasExpiredIsNotThere) {
    ASSERT_TRUE(write(Op::kPut, record("a", "", "p", 100)).ok());
    ASSERT_TRUE(write(Op::kPut, record("b", "", "p", 200)).ok());
    ASSERT_TRUE(write(Op::kPut, record("c", "", "p")).ok());
    const ListQuery all{.kind = "k", .tenant = tenant, .parent = "p", .after = {}};
    EXPECT_TRUE(db->get(key("a"), 99).ok());
    EXPECT_FALSE(db->get(key("a"), 100).ok());
    EXPECT_EQ(ids(all, 150), (Ids{"b", "c"}));
    EXPECT_GE(*db->expire(150, 1000), 1u);
    EXPECT_EQ(ids(all, 0), (Ids{"b", "c"}));
    EXPECT_GE(*db->expire(1'000'000, 1000), 1u);
    EXPECT_EQ(ids(all, 0), (Ids{"c"}));
}

TEST_P(RecordsTest, QuotesAndNulsAreOnlyText) {
    const std::string evil = "'; DROP TABLE records; -- \" \\ %s $1";
    ASSERT_TRUE(write(Op::kPut, record(evil, evil, evil)).ok());
    EXPECT_EQ(db->get(key(evil), 0)->body, evil);
    EXPECT_EQ(ids({.kind = "k", .tenant = tenant, .parent = evil, .after = {}}), (Ids{evil}));
}

// Random writes against a map.
TEST_P(RecordsTest, AgainstAModel) {
    Prng prng(11);
    std::map<std::string, std::pair<std::string, std::uint64_t>> model;
    for (int step = 0; step < 300; ++step) {
        const std::string id = fmt::format("n{}", prng.below(12));
        const std::string body = fmt::format("b{}", prng.next());
        const auto there = model.find(id);
        switch (prng.below(4)) {
            case 0: {
                ASSERT_TRUE(write(Op::kPut, record(id, body)).ok());
                auto& held = model[id];
                held = {body, held.second + 1};
                break;
            }
            case 1: {
                const auto done = write(Op::kInsert, record(id, body));
                ASSERT_EQ(done.ok(), there == model.end());
                if (done.ok()) model[id] = {body, 1};
                break;
            }
            case 2: {
                Record r = record(id, body);
                r.version = prng.below(3);
                const bool fits =
                    there != model.end() && (r.version == 0 || r.version == there->second.second);
                ASSERT_EQ(write(Op::kReplace, r).ok(), fits);
                if (fits) there->second = {body, there->second.second + 1};
                break;
            }
            default:
                ASSERT_TRUE(write(Op::kRemove, record(id, "")).ok());
                model.erase(id);
        }
        const auto got = db->get(key(id), 0);
        ASSERT_EQ(got.ok(), model.contains(id));
        if (got.ok()) {
            ASSERT_EQ(got->body, model[id].first);
            ASSERT_EQ(got->version, model[id].second);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Both, RecordsTest, testing::Values(Kind::kSqlite, Kind::kPostgres),
                         [](const auto& info) {
                             return info.param == Kind::kSqlite ? "Sqlite" : "Postgres";
                         });

TEST(Sqlite, KeepsItsStateInAFile) {
    const std::string folder = fresh_folder("sqlite");
    const std::string path = folder + "/state.db";
    {
        auto db = open_sqlite(path);
        ASSERT_TRUE(db.ok()) << db.error().message;
        ASSERT_TRUE((*db)->write({{Op::kPut, {.key = {"k", "t", "a"}, .body = "kept"}}}).ok());
    }
    auto db = open_sqlite(path);
    ASSERT_TRUE(db.ok());
    EXPECT_EQ((*db)->get({"k", "t", "a"}, 0)->body, "kept");
    fs::remove_all(folder);
}

// What a killed process had committed is there: the file is copied while it is open, as a crash
// leaves it (main file and write-ahead log).
TEST(Sqlite, SurvivesAKillWithWritesInItsLog) {
    const std::string folder = fresh_folder("kill");
    auto db = open_sqlite(folder + "/state.db");
    ASSERT_TRUE(db.ok());
    for (int i = 0; i < 50; ++i)
        ASSERT_TRUE(
            (*db)
                ->write({{Op::kPut, {.key = {"k", "t", fmt::format("{}", i)}, .body = "x"}}})
                .ok());
    fs::create_directories(folder + "/after");
    for (const char* name : {"/state.db", "/state.db-wal"})
        fs::copy_file(folder + name, folder + "/after" + name);
    auto again = open_sqlite(folder + "/after/state.db");
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ((*again)->list({.kind = "k", .tenant = "t", .parent = {}, .after = {}}, 0)->size(),
              50u);
    fs::remove_all(folder);
}

TEST(Sqlite, StartUpFaultsNameTheMend) {
    const std::string folder = fresh_folder("faults");
    const auto expect_config = [](const std::string& path) {
        const auto db = open_sqlite(path);
        ASSERT_FALSE(db.ok());
        EXPECT_EQ(db.code(), Code::kConfig);
        EXPECT_NE(db.error().message.find("Mend: "), std::string::npos) << db.error().message;
        EXPECT_NE(db.error().message.find(path), std::string::npos);
    };
    expect_config(folder + "/no/such/folder/state.db");
    expect_config(folder);
    std::ofstream(folder + "/text") << std::string(5000, 'x');
    expect_config(folder + "/text");
    fs::remove_all(folder);
}

TEST(Postgres, NobodyThereIsUnavailable) {
    const auto db = open_postgres("host=/nonexistent user=x password=hunter2");
    ASSERT_FALSE(db.ok());
    EXPECT_EQ(db.code(), Code::kUnavailable);
    EXPECT_EQ(db.error().message.find("hunter2"), std::string::npos);
}

// ---------------------------------------------------------------- Records, for coroutines

TEST(Records, WaitsWithoutBlockingAndSurvivesAWaiterThatIsGone) {
    io::TestLoop loop;
    auto db = open_sqlite(":memory:");
    ASSERT_TRUE(db.ok());
    Records records(*std::move(db), loop);
    std::string got;
    const auto body = [](Records& r, io::Loop& here, std::string& out) -> io::Task<void> {
        EXPECT_TRUE((co_await r.put(here, {.key = {"k", "t", "a"}, .body = "v"})).ok());
        const auto read = co_await r.get(here, {"k", "t", "a"});
        out = read.ok() ? read->body : "none";
    };
    io::RootTask task;
    task.start(body(records, loop, got));
    EXPECT_EQ(got, "");
    loop.settle();
    EXPECT_EQ(got, "v");
    io::RootTask gone;
    std::string never;
    gone.start(body(records, loop, never));
    gone.reset();  // while it waits
    loop.settle();
    EXPECT_EQ(never, "");
}

TEST(Records, AcrossThreads) {
    io::RealLoop loop;
    io::LoopThreads thread(1);
    auto db = open_sqlite(":memory:");
    ASSERT_TRUE(db.ok());
    Records records(*std::move(db), thread.loop(0));
    int done = 0;
    const auto body = [](Records& r, io::Loop& here, int i, int& n) -> io::Task<void> {
        const Key key{"k", "t", fmt::format("{}", i)};
        EXPECT_TRUE((co_await r.put(here, {.key = key, .body = "v"})).ok());
        EXPECT_TRUE((co_await r.get(here, key)).ok());
        EXPECT_TRUE(here.on_loop_thread());
        ++n;
    };
    for (int i = 0; i < 50; ++i) loop.spawn(body(records, loop, i, done));
    EXPECT_TRUE(loop.run_until([&] { return done == 50; }, 20s));
}

}  // namespace
}  // namespace nereid::store
