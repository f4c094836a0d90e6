#include "cli/command.h"

#include <gtest/gtest.h>

namespace nereid::cli {
namespace {

using Args = std::vector<std::string>;

class Dispatch : public testing::Test {
  protected:
    int run(Args args) { return dispatch(commands, args); }
    Args got;
    std::vector<Command> commands{
        {"serve", "serves",
         [this](std::span<const std::string> a) {
             got.assign(a.begin(), a.end());
             return 7;
         }},
        {"version", "tells",
         [this](std::span<const std::string>) {
             got = {"version"};
             return 0;
         }},
    };
};

TEST_F(Dispatch, RunsTheCommandWithItsArguments) {
    EXPECT_EQ(run({"serve", "--port", "1"}), 7);
    EXPECT_EQ(got, (Args{"--port", "1"}));
    EXPECT_EQ(run({"--version"}), 0);
    EXPECT_EQ(got, (Args{"version"}));
}

TEST_F(Dispatch, HelpOfACommandIsTheCommandsOwn) {
    EXPECT_EQ(run({"help", "serve"}), 7);
    EXPECT_EQ(got, (Args{"--help"}));
}

TEST_F(Dispatch, ListsCommands) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(run({"help"}), kOk);
    EXPECT_NE(testing::internal::GetCapturedStdout().find("serve     serves"), std::string::npos);
    testing::internal::CaptureStderr();
    EXPECT_EQ(run({}), kConfigExit);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("usage"), std::string::npos);
}

TEST_F(Dispatch, AnUnknownCommandNamesTheNearest) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(run({"serv"}), kConfigExit);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("did you mean 'serve'"),
              std::string::npos);
    testing::internal::CaptureStderr();
    EXPECT_EQ(run({"frobnicate"}), kConfigExit);
    EXPECT_EQ(testing::internal::GetCapturedStderr().find("did you mean"), std::string::npos);
}

TEST(Invocation, TakesItsOwnOptionsAndLeavesTheRest) {
    const auto r =
        parse_invocation(Args{"--model", "m", "--config=a.toml", "--listen", "[::1]:80", "--x=1"});
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->config_path, "a.toml");
    EXPECT_EQ(r->knobs, (Args{"--model", "m", "--gateway.host=::1", "--gateway.port=80", "--x=1"}));
    EXPECT_FALSE(r->help);
    EXPECT_TRUE(parse_invocation(Args{"-h"})->help);
}

TEST(Invocation, SaysWhatIsMissing) {
    EXPECT_EQ(parse_invocation(Args{"--config"}).code(), Code::kConfig);
    for (const char* bad : {"8080", ":80", "host:"}) {
        EXPECT_EQ(parse_invocation(Args{"--listen", bad}).code(), Code::kConfig) << bad;
    }
}

TEST(Nearest, PicksTheFewestEdits) {
    const std::string_view names[] = {"serve", "worker", "gateway", "version"};
    EXPECT_EQ(nearest("gatway", names), "gateway");
    EXPECT_EQ(nearest("worke", names), "worker");
    EXPECT_EQ(nearest("", names), "");
    EXPECT_EQ(nearest("zzz", names), "");
}

}  // namespace
}  // namespace nereid::cli
