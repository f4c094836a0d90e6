#include "gateway/pdf_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "io/real_loop.h"
#include "io/real_process.h"
#include "io/root_task.h"
#include "io/sim_loop.h"
#include "io/sim_process.h"

namespace nereid::gateway {
namespace {

using testing::HasSubstr;

// Readings under virtual time, by a program that the test scripts.
class PdfReaderTest : public testing::Test {
  protected:
    struct Reading {
        io::RootTask task;
        std::optional<Result<std::string>> result;
        Duration took{};
    };
    PdfReaderTest() {
        launcher.program("/usr/bin/env", [this](io::SimChild& child) { return program(child); });
    }
    io::Task<io::ExitStatus> program(io::SimChild& child) {
        argv = child.spec().argv;
        ++at_once;
        most_at_once = std::max(most_at_once, at_once);
        co_await child.loop().sleep_for(takes);
        --at_once;
        for (const std::string& line : lines) child.print(line);
        if (!complaint.empty()) child.print(complaint, true);
        co_return status;
    }
    std::unique_ptr<Reading> begin(std::string tenant, std::string bytes) {
        auto out = std::make_unique<Reading>();
        out->task.start(read(*out, std::move(tenant), std::move(bytes)));
        return out;
    }
    io::Task<void> read(Reading& into, std::string tenant, std::string bytes) {
        into.result = co_await reader.text("pdftotext", std::move(tenant), bytes, into.took);
    }
    Result<std::string> text(std::string bytes, std::string tenant = "a") {
        const auto reading = begin(std::move(tenant), std::move(bytes));
        scheduler.run_until([&] { return reading->result.has_value(); }, 1h);
        return reading->result ? *reading->result
                               : Result<std::string>(Error{Code::kInternal, "no end"});
    }
    void expect_refused(std::string_view why, Code code = Code::kInvalidArgument) {
        static int n = 0;
        const auto result = text("%PDF-" + std::to_string(++n));
        ASSERT_FALSE(result.ok()) << *result;
        EXPECT_EQ(result.code(), code);
        EXPECT_THAT(result.error().message, HasSubstr(why));
    }

    io::SimScheduler scheduler{1};
    io::SimLoop loop{scheduler};
    io::SimProcessLauncher launcher{loop};
    PdfReader reader{loop, &launcher};
    std::vector<std::string> argv;
    std::vector<std::string> lines{"Page one.", "Page two."};
    std::string complaint;
    io::ExitStatus status;
    Duration takes = 10ms;
    int at_once = 0, most_at_once = 0;
};

TEST_F(PdfReaderTest, GivesTheTextAndKeepsOurSecretsFromTheProgram) {
    const auto result = text("%PDF-1");
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(*result, "Page one.\nPage two.");
    ASSERT_GE(argv.size(), 4u);
    EXPECT_EQ(argv[1], "-i") << "an empty environment";
    EXPECT_THAT(argv, testing::Contains(testing::StartsWith("--as=")));
    EXPECT_THAT(argv, testing::Contains(testing::StartsWith("--cpu=")));
    EXPECT_THAT(argv, testing::Contains("pdftotext"));
}

TEST_F(PdfReaderTest, WhatCannotBeReadIsRefusedSayingWhy) {
    lines = {" ", ""};
    expect_refused("without text");
    lines = {"x"};
    status.code = 1;
    expect_refused("damaged");
    complaint = "Command Line Error: Incorrect password";
    expect_refused("password");
    complaint.clear();
    status.code = 3;
    expect_refused("does not let its text be taken");
    status.code = 127;
    expect_refused("pdftotext does not run here", Code::kUnsupported);
    status = {.code = 0, .signal = 9};
    expect_refused("too much time or memory");
    status = {};
    lines.assign(600, std::string(32u << 10, 'x'));
    expect_refused("more than");
    launcher.fail_starts(1);
    expect_refused("cannot be read now", Code::kUnavailable);
}

TEST_F(PdfReaderTest, ItIsKilledWhenItTakesTooLong) {
    takes = PdfReader::kTimeout + 1s;
    expect_refused("too much time or memory");
    EXPECT_EQ(launcher.live(), 0);
    takes = 1ms;
    EXPECT_TRUE(text("%PDF-next").ok());
}

TEST_F(PdfReaderTest, SomeAtATimeAndOneThatIsGivenUpMakesRoom) {
    std::vector<std::unique_ptr<Reading>> readings;
    for (int i = 0; i < 6; ++i) readings.push_back(begin("a", "%PDF-" + std::to_string(i)));
    scheduler.run_for(5ms);
    EXPECT_EQ(at_once, PdfReader::kAtOnce);
    readings[0].reset();  // it ran
    readings[2].reset();  // it waited
    EXPECT_TRUE(
        scheduler.run_until(
            [&] { return readings[1]->result && readings[3]->result && readings[5]->result; },
            1h) == io::SimEnd::kDone);
    EXPECT_EQ(launcher.starts(), 5u);
    EXPECT_EQ(launcher.live(), 0);
    EXPECT_TRUE(readings[5]->result->ok());
}

TEST_F(PdfReaderTest, OneTenantDoesNotKeepTheOthersWaiting) {
    std::vector<std::unique_ptr<Reading>> readings;
    for (int i = 0; i < 6; ++i) readings.push_back(begin("a", "%PDF-" + std::to_string(i)));
    const auto other = begin("b", "%PDF-b");
    scheduler.run_for(takes + takes / 2);
    EXPECT_FALSE(other->result);
    scheduler.run_for(takes);
    EXPECT_TRUE(other->result) << "it came after five of a's, and is read before three of them";
    EXPECT_FALSE(readings[5]->result);
}

// A request with many files, one after the other.
TEST_F(PdfReaderTest, NobodyReadsOnBeforeThoseThatWait) {
    std::vector<Result<std::string>> of_a[2];
    const auto many = [this](std::vector<Result<std::string>>& into, int first) -> io::Task<void> {
        for (int i = 0; i < 20; ++i) {
            Duration took{};
            into.push_back(
                co_await reader.text("pdftotext", "a", "%PDF-" + std::to_string(first + i), took));
        }
    };
    io::RootTask a[2];
    a[0].start(many(of_a[0], 0));
    a[1].start(many(of_a[1], 100));
    const auto other = begin("b", "%PDF-b");
    scheduler.run_for(2 * takes + takes / 2);
    ASSERT_TRUE(other->result);
    EXPECT_TRUE(other->result->ok());
    EXPECT_EQ(other->took, takes) << "waiting does not count";
    EXPECT_LE(of_a[0].size() + of_a[1].size(), 3u);
}

TEST_F(PdfReaderTest, NotAllMayWait) {
    std::vector<std::unique_ptr<Reading>> readings;
    const auto ask = [&](const std::string& tenant) -> const Reading& {
        return *readings.emplace_back(begin(tenant, "%PDF-" + std::to_string(readings.size())));
    };
    for (std::size_t i = 0; i < PdfReader::kMaxWaitingEach + PdfReader::kAtOnce; ++i)
        EXPECT_FALSE(ask("a").result);
    const auto refused = [&](const std::string& tenant) {
        const auto& result = ask(tenant).result;
        return result && result->code() == Code::kOverloaded;
    };
    EXPECT_TRUE(refused("a"));
    for (std::size_t i = PdfReader::kMaxWaitingEach; i < PdfReader::kMaxWaiting; ++i)
        EXPECT_FALSE(ask("t" + std::to_string(i)).result);
    EXPECT_TRUE(refused("late"));
    scheduler.run_for(takes + takes / 2);
    EXPECT_FALSE(refused("late"));
}

TEST_F(PdfReaderTest, TheSameFileTwiceAtOnceIsReadOnce) {
    takes = 10ms;
    std::vector<std::unique_ptr<Reading>> readings;
    for (int i = 0; i < 4; ++i) readings.push_back(begin("a", i == 0 ? "%PDF-x" : "%PDF-y"));
    scheduler.run_for(1s);
    for (const auto& reading : readings) EXPECT_TRUE(reading->result && reading->result->ok());
    EXPECT_LE(launcher.starts(), 3u);
}

TEST_F(PdfReaderTest, ALineThatIsCutIsNoText) {
    lines = {"x", std::string(io::kMaxProcessLine, 'x')};
    expect_refused("in a line");
}

TEST_F(PdfReaderTest, RefusalsAreKeptForAWhile) {
    status.code = 1;
    EXPECT_FALSE(text("%PDF-1").ok());
    status.code = 0;
    EXPECT_FALSE(text("%PDF-1").ok());
    EXPECT_EQ(launcher.starts(), 1u);
    scheduler.run_for(PdfReader::kKeepRefusal + 1s);
    EXPECT_TRUE(text("%PDF-1").ok());
    // What says nothing of the file.
    for (const io::ExitStatus once : {io::ExitStatus{.code = 127}, {.code = 126}, {.signal = 9}}) {
        const std::string file = "%PDF-" + once.to_string();
        status = once;
        EXPECT_FALSE(text(file).ok());
        status = {};
        EXPECT_TRUE(text(file).ok()) << file;
    }
}

TEST_F(PdfReaderTest, TextsAreKeptForTheTenantThatSentThem) {
    EXPECT_TRUE(text("%PDF-1", "a").ok());
    EXPECT_TRUE(text("%PDF-1", "a").ok());
    EXPECT_EQ(launcher.starts(), 1u);
    EXPECT_TRUE(text("%PDF-1", "b").ok());
    EXPECT_EQ(launcher.starts(), 2u);
    // What is kept has a bound: the oldest goes.
    lines.assign(320, std::string(32u << 10, 'x'));
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(text("%PDF-large" + std::to_string(i)).ok());
    const auto before = launcher.starts();
    EXPECT_TRUE(text("%PDF-large4").ok());
    EXPECT_EQ(launcher.starts(), before);
    EXPECT_TRUE(text("%PDF-large0").ok());
    EXPECT_EQ(launcher.starts(), before + 1);
}

// ---------------------------------------------------------------- poppler's program

// A PDF of one page, with the cross-reference table that readers want.
std::string pdf_of(const std::string& content) {
    const std::vector<std::string> objects{
        "<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F 5 0 "
        "R>>>>>>",
        "<</Length " + std::to_string(content.size()) + ">>stream\n" + content + "\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"};
    std::string out = "%PDF-1.4\n", table;
    for (std::size_t i = 0; i < objects.size(); ++i) {
        const std::string at = std::to_string(out.size());
        table += std::string(10 - at.size(), '0') + at + " 00000 n \n";
        out += std::to_string(i + 1) + " 0 obj\n" + objects[i] + "\nendobj\n";
    }
    const std::string begin = std::to_string(out.size());
    return out + "xref\n0 6\n0000000000 65535 f \n" + table +
           "trailer<</Size 6/Root 1 0 R>>\nstartxref\n" + begin + "\n%%EOF\n";
}

Result<std::string> really_read(const std::string& program, const std::string& bytes) {
    io::RealLoop loop;
    io::RealProcessLauncher launcher(loop);
    PdfReader reader(loop, &launcher);
    std::optional<Result<std::string>> result;
    io::RootTask task;
    Duration took{};
    const auto read = [&]() -> io::Task<void> {
        result = co_await reader.text(program, "a", bytes, took);
    };
    task.start(read());
    loop.run_until([&] { return result.has_value(); }, 60s);
    return result ? *result : Result<std::string>(Error{Code::kInternal, "no end"});
}

TEST(PdfReader, PopplersProgram) {
    const auto text = really_read("pdftotext", pdf_of("BT /F 12 Tf 20 100 Td (Sea nymphs) Tj ET"));
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_THAT(*text, HasSubstr("Sea nymphs"));
    for (const auto& [program, bytes, why] :
         {std::tuple{"pdftotext", pdf_of("0 0 10 10 re f"), "without text"},
          std::tuple{"pdftotext", std::string("%PDF-1.4\nnothing"), "damaged"},
          std::tuple{"pdftotext-of-nobody", pdf_of(""), "pdftotext-of-nobody does not run here"}}) {
        const auto refused = really_read(program, bytes);
        ASSERT_FALSE(refused.ok()) << why;
        EXPECT_THAT(refused.error().message, HasSubstr(why));
    }
}

}  // namespace
}  // namespace nereid::gateway
