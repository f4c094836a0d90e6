#include "io/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace nereid::io {
namespace {

using std::string;
using std::string_view;

struct Options {
    bool flag = false;
    bool on = true;
    std::int64_t queue_max = 5;
    double share = 0.5;
    string mode = "fast";
    string path;
    Duration timeout = 5s;
    SizeBytes arena{64 << 20};
    std::vector<string> models{"a"};

    void bind(ConfigBinder& b) {
        b.knob(
            "gateway.queue_max", queue_max,
            {.unit = "requests", .min = 0, .max = 1e6, .reload = true, .doc = "Waiting requests."});
        b.knob("gateway.flag", flag, {.doc = "A flag."});
        b.knob("gateway.on", on, {});
        b.knob("gateway.timeout", timeout,
               {.min = 0.001, .max = 60, .reload = true, .doc = "How long a | b."});
        b.knob("cache.arena", arena, {.min = 1 << 20, .doc = "Bytes."});
        b.knob("cache.tier.share", share, {.min = 0, .max = 1});
        b.knob("mode", mode, {.choices = {"fast", "safe"}});
        b.knob("engine.model", path, {.doc = "A GGUF file."});
        b.knob("engine.models", models, {});
    }
    BindFn fn() {
        return [this](ConfigBinder& b) { bind(b); };
    }
};

class ConfigTest : public testing::Test {
  protected:
    string file(string_view text) {
        path_ = std::filesystem::temp_directory_path() /
                fmt::format("nereid_config_test_{}.toml", static_cast<const void*>(this));
        std::ofstream(path_) << text;
        return path_;
    }
    ~ConfigTest() override {
        if (!path_.empty()) std::filesystem::remove(path_);
    }
    Result<void> load(std::vector<string> args, string_view toml = {}) {
        ConfigSources sources;
        if (!toml.empty()) sources.toml_path = file(toml);
        sources.args = std::move(args);
        sources.aliases = {{"model", "engine.model"}, {"queue", "gateway.queue_max"}};
        return load_config(o.fn(), sources);
    }
    string fault(std::vector<string> args, string_view toml = {}) {
        const auto r = load(std::move(args), toml);
        if (r.ok()) return "no fault";
        EXPECT_EQ(r.code(), Code::kConfig);
        string message = r.error().message;
        for (std::size_t at; !path_.empty() && (at = message.find(path_.string())) != string::npos;)
            message.replace(at, path_.string().size(), "F");
        return message;
    }
    Options o;
    std::filesystem::path path_;
};

TEST_F(ConfigTest, EveryKindFromFile) {
    ASSERT_TRUE(load({}, R"(mode = "safe"
[gateway]
queue-max = 7          # '-' and '_' are equal
flag = true
on = false
timeout = "150ms"
[cache]
arena = "2GiB"
tier.share = 1
[engine]
model = "/m.gguf"
models = ["x", "y"]
)")
                    .ok());
    EXPECT_EQ(o.queue_max, 7);
    EXPECT_TRUE(o.flag);
    EXPECT_FALSE(o.on);
    EXPECT_EQ(o.timeout, 150ms);
    EXPECT_EQ(o.arena.value, 2ULL << 30);
    EXPECT_EQ(o.share, 1.0);
    EXPECT_EQ(o.mode, "safe");
    EXPECT_EQ(o.path, "/m.gguf");
    EXPECT_EQ(o.models, (std::vector<string>{"x", "y"}));
}

TEST_F(ConfigTest, CommandLineWins) {
    const auto loaded =
        load({"--queue", "9", "--gateway.flag", "--gateway.on=false", "--gateway.timeout=0.5m",
              "--cache.arena", "3MiB", "--model=/x", "--engine.models=p,q", "--engine.models", "r",
              "--cache.tier.share=0.25", "--mode", "safe"},
             "[gateway]\nqueue_max = 7\n");
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_EQ(o.queue_max, 9);
    EXPECT_TRUE(o.flag);
    EXPECT_FALSE(o.on);
    EXPECT_EQ(o.timeout, 30s);
    EXPECT_EQ(o.arena.value, 3ULL << 20);
    EXPECT_EQ(o.path, "/x");
    EXPECT_EQ(o.models, (std::vector<string>{"p", "q", "r"}));
    EXPECT_EQ(o.share, 0.25);
    EXPECT_EQ(o.mode, "safe");
}

struct FaultRow {
    std::vector<string> args;
    std::string_view toml;
    string message;
};

TEST_F(ConfigTest, FaultsNameThePlaceAndTheMend) {
    const FaultRow rows[] = {
        {{"--gateway.queue-mex=5"},
         "",
         "--gateway.queue-mex: unknown option; did you mean \"--gateway.queue-max\"?"},
        {{"--modeel", "x"}, "", "--modeel: unknown option; did you mean \"--model\"?"},
        {{"--timeout=5s"}, "", "--timeout: unknown option; did you mean \"--gateway.timeout\"?"},
        {{"--zzzzzzzzzzzz"}, "", "--zzzzzzzzzzzz: unknown option; --help lists all"},
        {{"stray"}, "", "stray: unexpected argument; options are written --key=value"},
        {{"--queue"}, "", "--queue: the value is missing"},
        {{"--queue=x"}, "", "--queue: gateway.queue_max must be an integer, for example 5"},
        {{"--queue=1.5"}, "", "--queue: gateway.queue_max must be an integer, for example 5"},
        {{"--queue=-1"}, "", "--queue: gateway.queue_max must be 0 to 1000000 requests"},
        {{"--gateway.flag=yes"},
         "",
         "--gateway.flag: gateway.flag must be true or false, for example false"},
        {{"--gateway.timeout=5"},
         "",
         "--gateway.timeout: gateway.timeout: \"5\" is not a duration: the unit is missing; write "
         "for example \"150ms, 5s or 2m\""},
        {{"--gateway.timeout=2h"}, "", "--gateway.timeout: gateway.timeout must be 1ms to 1m"},
        {{"--cache.arena=5kb"},
         "",
         "--cache.arena: cache.arena: \"5kb\" is not a size: unknown unit \"kb\"; write for "
         "example \"64KiB or 2GiB\""},
        {{"--cache.arena=1B"}, "", "--cache.arena: cache.arena must be at least 1MiB"},
        {{"--cache.tier.share=nan"}, "", "--cache.tier.share: cache.tier.share must be 0 to 1"},
        {{"--mode=slow"}, "", "--mode: mode must be one of fast, safe, not \"slow\""},
        {{},
         "[gateway]\n\nqueue_maxx = 5\n",
         "F:3: unknown key \"gateway.queue_maxx\"; did you mean \"gateway.queue_max\"?"},
        {{}, "[getaway]\nqueue_max = 5\n", "F:1: unknown key \"getaway\"; --help lists all"},
        {{},
         "[gateway]\ntimeout = 5\n",
         "F:2: gateway.timeout: \"5\" is not a duration: the unit is missing; write for example "
         "\"150ms, 5s or 2m\""},
        {{},
         "[gateway]\nqueue_max = \"5\"\n",
         "F:2: gateway.queue_max must be an integer, for example 5"},
        {{}, "mode = 1\n", "F:1: mode must be a text, for example \"fast\""},
        {{}, "gateway = 1\n", "F:1: unknown key \"gateway\"; --help lists all"},
        {{},
         "[engine]\nmodels = [1]\n",
         "F:2: engine.models must be a list of texts, for example [\"a\"]"},
        {{}, "mode = \"fast\"\nmode = \"safe\"\n", "F:2"},
        {{}, "x = = 1\n", "F:1:5: "},
        {{"--queue=x"}, "[gateway]\nflag = 1\nbad = 2\n", "F:3: unknown key \"gateway.bad\""},
    };
    for (const auto& row : rows) {
        SCOPED_TRACE(row.message);
        const string got = fault(row.args, row.toml);
        EXPECT_NE(got.find(row.message), string::npos) << got;
    }
}

TEST_F(ConfigTest, AllFaultsAtOnceAndNothingIsChanged) {
    const string got = fault({"--queue=-1", "--nope=1", "--model=/set"},
                             "mode = \"slow\"\n[gateway]\nflag = 1\ntimeout = \"1s\"\n");
    EXPECT_EQ(std::ranges::count(got, '\n'), 3) << got;
    EXPECT_EQ(o.path, "");
    EXPECT_EQ(o.timeout, 5s);
}

TEST_F(ConfigTest, MissingFile) {
    ConfigSources sources;
    sources.toml_path = "/nowhere/nereid.toml";
    const auto r = load_config(o.fn(), sources);
    ASSERT_FALSE(r.ok());
    EXPECT_NE(r.error().message.find("/nowhere/nereid.toml"), string::npos);
}

TEST_F(ConfigTest, EffectiveValuesLoadAgain) {
    o.path = "a \"quoted\\ \n path";
    o.timeout = 1500ms;
    o.arena.value = 1234567;
    o.share = 0.1;
    o.models = {};
    const string text = config_toml(o.fn());
    Options before = o;
    o = {};
    ASSERT_TRUE(load({}, text).ok()) << text;
    EXPECT_EQ(config_toml(o.fn()), text);
    EXPECT_EQ(o.path, before.path);
    EXPECT_EQ(o.timeout, 1500ms);
    EXPECT_EQ(o.arena.value, 1234567u);
    EXPECT_EQ(o.models, before.models);
}

TEST_F(ConfigTest, Help) {
    const string help = config_help(o.fn(), {{"model", "engine.model"}});
    EXPECT_NE(help.find("gateway:\n  --gateway.queue-max <integer>\n        Waiting requests. "
                        "[default 5 requests; 0 to 1000000; reload]\n"),
              string::npos)
        << help;
    EXPECT_NE(help.find("  --engine.model <text>, --model\n"), string::npos) << help;
    EXPECT_TRUE(help.starts_with(
        "general:\n  --mode <text>\n        [default \"fast\"; one of fast, safe]\n"))
        << help;
}

TEST_F(ConfigTest, Markdown) {
    const string page = config_markdown(o.fn());
    EXPECT_NE(
        page.find(
            "| `gateway.timeout` | duration | `\"5s\"` | 1ms to 1m | yes | How long a \\| b. |\n"),
        string::npos)
        << page;
    EXPECT_NE(page.find("## cache.tier\n"), string::npos);
}

TEST_F(ConfigTest, RestartNeeded) {
    Options after = o;
    after.queue_max = 6;  // reload
    after.timeout = 6s;   // reload
    EXPECT_TRUE(restart_needed(o.fn(), after.fn()).empty());
    after.arena.value = 1;
    after.mode = "safe";
    EXPECT_EQ(restart_needed(o.fn(), after.fn()), (std::vector<string>{"cache.arena", "mode"}));
}

TEST(ConfigUnits, Durations) {
    EXPECT_EQ(*parse_duration("150ms"), 150ms);
    EXPECT_EQ(*parse_duration("1.5s"), 1500ms);
    EXPECT_EQ(*parse_duration("0s"), 0s);
    EXPECT_EQ(*parse_duration("2d"), 48h);
    EXPECT_EQ(*parse_duration("0.000001ms"), 1ns);
    for (const auto* bad : {"", "5", "s", "-5s", "+5s", "5 s", "1..5s", "1.s", ".5s", "5S", "5min",
                            "1h30m", "999999999999d", "99999999999999999999s", "1.5.5s"})
        EXPECT_FALSE(parse_duration(bad).ok()) << bad;
    for (const auto d : {Duration(1), Duration(1500), Duration(0), Duration(90s), Duration(24h),
                         Duration(3601s), Duration(1500ms)})
        EXPECT_EQ(*parse_duration(format_duration(d)), d) << format_duration(d);
    EXPECT_EQ(format_duration(90s), "90s");
    EXPECT_EQ(format_duration(120s), "2m");
}

TEST(ConfigUnits, Sizes) {
    EXPECT_EQ(*parse_size("64KiB"), 65536u);
    EXPECT_EQ(*parse_size("1.5GiB"), 1610612736u);
    EXPECT_EQ(*parse_size("10MB"), 10'000'000u);
    EXPECT_EQ(*parse_size("0B"), 0u);
    for (const auto* bad : {"", "5", "5k", "5kib", "-1B", "9999999TiB", "1,5MiB"})
        EXPECT_FALSE(parse_size(bad).ok()) << bad;
    for (const ByteCount b : {0ULL, 1ULL, 1000ULL, 1024ULL, 1234567ULL, 5ULL << 40})
        EXPECT_EQ(*parse_size(format_size(b)), b);
}

}  // namespace
}  // namespace nereid::io
