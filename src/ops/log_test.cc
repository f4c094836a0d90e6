#include "ops/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <limits>

#include "base/json.h"
#include "base/utf8.h"

namespace nereid::ops {
namespace {

WallTime at_test() { return WallTime{Duration(1'796'053'200'123'456'789)}; }

Json only_line(const MemorySink& sink) {
    const auto lines = sink.lines();
    EXPECT_EQ(lines.size(), 1u);
    auto parsed = Json::parse(lines.at(0));
    EXPECT_TRUE(parsed.ok()) << lines.at(0);
    return parsed.ok() ? *parsed : Json();
}

TEST(Log, ALineIsOneJsonObjectWithTypedFields) {
    MemorySink sink;
    const Logger log(sink, at_test);
    log.info("request done", {{"route", "chat"},
                              {"tokens", std::uint32_t{12}},
                              {"offset", -3},
                              {"big", std::numeric_limits<std::uint64_t>::max()},
                              {"ratio", 0.5},
                              {"total_ms", Duration(1'500'000)},
                              {"stream", true},
                              {"name", std::string("x\"y\n")}});
    EXPECT_EQ(
        sink.lines().at(0),
        R"({"ts":"2026-11-30T15:40:00.123456Z","level":"info","msg":"request done","route":"chat","tokens":12,)"
        R"("offset":-3,"big":18446744073709551615,"ratio":0.5,"total_ms":1.5,"stream":true,"name":"x\"y\n"})");
    (void)only_line(sink);
}

TEST(Log, ChildrenCarryTheirFieldsAndShareTheLevel) {
    MemorySink sink;
    Logger log(sink, at_test);
    const Logger gateway = log.with({{"component", "gateway"}});
    const Logger request = gateway.with({{"request_id", "r1"}});
    request.debug("not yet");
    EXPECT_TRUE(sink.lines().empty());
    log.set_level(Level::kDebug);
    request.debug("now", {{"n", 1}});
    const Json line = only_line(sink);
    EXPECT_EQ(line.find("component")->as_string(), "gateway");
    EXPECT_EQ(line.find("request_id")->as_string(), "r1");
    EXPECT_EQ(line.find("n")->as_int(), 1);
    EXPECT_EQ(line.find("level")->as_string(), "debug");
    gateway.warn("w");
    EXPECT_FALSE(Json::parse(sink.lines().at(1))->find("request_id"));
}

TEST(Log, LevelsSilence) {
    MemorySink sink;
    Logger log(sink, at_test, Level::kError);
    log.warn("no");
    log.error("yes");
    EXPECT_EQ(sink.lines().size(), 1u);
    log.set_level(Level::kOff);
    log.error("no");
    EXPECT_EQ(sink.lines().size(), 1u);
    EXPECT_FALSE(log.enabled(Level::kError));
    const Logger nothing;
    nothing.with({{"a", 1}}).error("nowhere");
    EXPECT_EQ(nothing.dropped(), 0u);

    EXPECT_EQ(*parse_level("warn"), Level::kWarn);
    for (const Level l : {Level::kDebug, Level::kInfo, Level::kWarn, Level::kError, Level::kOff}) {
        EXPECT_EQ(*parse_level(level_name(l)), l);
    }
    EXPECT_EQ(parse_level("loud").code(), Code::kInvalidArgument);
}

// O40, O41: a canary that must not be found in any line.
TEST(Log, SecretsAreRedacted_O40_O41) {
    MemorySink sink;
    const Logger log(sink, at_test);
    const Secret key("sk-canary-123");
    log.with({{"bound", key}}).info("auth", {{"key", key}});
    EXPECT_FALSE(sink.contains("canary"));
    EXPECT_EQ(only_line(sink).find("key")->as_string(), "[redacted]");
    EXPECT_EQ(only_line(sink).find("bound")->as_string(), "[redacted]");
}

TEST(Secret, ComparesMovesAndForgets) {
    Secret a("one");
    EXPECT_TRUE(a == Secret("one"));
    EXPECT_FALSE(a == Secret("two"));
    const Secret b = std::move(a);
    EXPECT_EQ(b.reveal(), "one");
    EXPECT_TRUE(a.empty());  // NOLINT(bugprone-use-after-move): the promise under test
    Secret c("a long secret that does not fit the string's own buffer");
    c = b;
    EXPECT_EQ(c.reveal(), "one");
    Secret d;
    d = std::move(c);
    EXPECT_EQ(d.reveal(), "one");
    EXPECT_TRUE(c.empty());  // NOLINT(bugprone-use-after-move)
    static_assert(!std::is_convertible_v<Secret, std::string>);
    static_assert(!std::is_convertible_v<Secret, std::string_view>);
}

TEST(Log, HostileTextStaysOneValidLine) {
    MemorySink sink;
    const Logger log(sink, at_test);
    log.info("bad \xff\n{\"level\":\"error\"}",
             {{"long", std::string(100'000, 'x')}, {"half", "\xe2\x82"}});
    const Json line = only_line(sink);
    EXPECT_EQ(line.find("level")->as_string(), "info");
    EXPECT_EQ(line.find("long")->as_string().size(), kMaxLogString);
    EXPECT_TRUE(is_valid_utf8(sink.lines().at(0)));
    EXPECT_EQ(sink.lines().at(0).find('\n'), std::string::npos);
}

TEST(Log, FormatTime) {
    EXPECT_EQ(format_time(WallTime{Duration(0)}), "1970-01-01T00:00:00.000000Z");
    EXPECT_EQ(format_time(WallTime{Duration(951'782'400'000'000'000)}),
              "2000-02-29T00:00:00.000000Z");
    EXPECT_EQ(format_time(WallTime{Duration(-1)}), "1969-12-31T23:59:59.999999Z");
    EXPECT_EQ(format_time(at_test()), "2026-11-30T15:40:00.123456Z");
}

// A pipe whose reader can be slow, with the smallest buffer that the kernel gives.
class Pipe {
  public:
    Pipe() {
        EXPECT_EQ(pipe2(ends_.data(), O_NONBLOCK | O_CLOEXEC), 0);
        EXPECT_GT(fcntl(ends_[1], F_SETPIPE_SZ, 4096), 0);
    }
    ~Pipe() {
        close(ends_[0]);
        close(ends_[1]);
    }
    int in() const { return ends_[1]; }
    std::string drain() const {
        std::string all;
        std::array<char, 65536> chunk;
        for (ssize_t n; (n = read(ends_[0], chunk.data(), chunk.size())) > 0;)
            all.append(chunk.data(), static_cast<std::size_t>(n));
        return all;
    }

  private:
    std::array<int, 2> ends_{};
};

TEST(FdSink, WritesLinesWhole) {
    const Pipe pipe;
    FdSink sink(pipe.in());
    const Logger log(sink, at_test);
    log.info("a");
    log.error("b");
    const std::string text = pipe.drain();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
    EXPECT_EQ(log.dropped(), 0u);
}

TEST(FdSink, AFullPipeDropsAndCounts) {
    const Pipe pipe;
    FdSink sink(pipe.in());
    const std::string line = std::string(999, 'x') + "\n";
    for (int i = 0; i < 10; ++i) sink.write(line);
    EXPECT_EQ(sink.dropped(), 6u);
    const std::string text = pipe.drain();
    EXPECT_EQ(text, line + line + line + line);
    sink.write(line);
    EXPECT_EQ(pipe.drain(), line);
    EXPECT_EQ(sink.dropped(), 6u);
}

// Over PIPE_BUF a write may go out in part. The reader loses that line and no other.
TEST(FdSink, ATornLineIsClosedBeforeTheNext) {
    const Pipe pipe;
    FdSink sink(pipe.in());
    sink.write(std::string(6000, 'a') + "\n");
    EXPECT_EQ(sink.dropped(), 1u);
    sink.write("still full\n");
    EXPECT_EQ(sink.dropped(), 2u);
    const std::string torn = pipe.drain();
    EXPECT_EQ(torn, std::string(4096, 'a'));
    sink.write("next\n");
    EXPECT_EQ(pipe.drain(), "\nnext\n");
    sink.write("after\n");
    EXPECT_EQ(pipe.drain(), "after\n");
    EXPECT_EQ(sink.dropped(), 2u);
}

TEST(FdSink, ABrokenDescriptorDropsAndCounts) {
    FdSink sink(-1);
    sink.write("x\n");
    EXPECT_EQ(sink.dropped(), 1u);
}

}  // namespace
}  // namespace nereid::ops
