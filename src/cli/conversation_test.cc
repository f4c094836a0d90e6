#include "cli/conversation.h"

#include <gtest/gtest.h>

namespace nereid::cli {
namespace {

using Kind = Conversation::Step::Kind;

std::string text_of(const model::Message& m) {
    return std::get<model::TextPart>(m.parts.at(0)).text;
}

TEST(Conversation, KeepsHistoryInOrder) {
    Conversation c({.system = "Be brief."});
    EXPECT_EQ(c.line("  hello ").kind, Kind::kAsk);
    c.answered("Hi.");
    EXPECT_EQ(c.line("and now?").kind, Kind::kAsk);
    const auto r = c.request();
    ASSERT_EQ(r.messages.size(), 4u);
    EXPECT_EQ(r.messages[0].role, model::Role::kSystem);
    EXPECT_EQ(text_of(r.messages[1]), "hello");
    EXPECT_EQ(r.messages[2].role, model::Role::kAssistant);
    EXPECT_EQ(text_of(r.messages[3]), "and now?");
    EXPECT_TRUE(r.stream);
}

TEST(Conversation, AQuestionWithoutAnswerIsForgotten) {
    Conversation c({});
    c.line("lost");
    c.withdrawn();
    EXPECT_EQ(c.messages(), 0u);
}

TEST(Conversation, Commands) {
    Conversation c({});
    EXPECT_EQ(c.line("").kind, Kind::kNothing);
    EXPECT_EQ(c.line(" \t\r").kind, Kind::kNothing);
    c.line("x");
    EXPECT_EQ(c.line("/reset").kind, Kind::kSay);
    EXPECT_EQ(c.messages(), 0u);
    EXPECT_EQ(c.line("/system You are a pirate.").kind, Kind::kSay);
    c.line("//slash");
    EXPECT_EQ(text_of(c.request().messages[0]), "You are a pirate.");
    EXPECT_EQ(text_of(c.request().messages[1]), "/slash");
    EXPECT_NE(c.line("/rest").text.find("did you mean /reset?"), std::string::npos);
    EXPECT_EQ(c.line("/quit").kind, Kind::kQuit);
}

TEST(Printable, DropsWhatWouldDriveTheTerminal) {
    bool held = false;
    EXPECT_EQ(printable("a\x1b[31mb\r\n\tc\x7f", held), "a[31mb\n\tc");
    EXPECT_EQ(printable("\xc2\xa9 \xc2\x9b x \xe2\x82\xac", held), "\xc2\xa9  x \xe2\x82\xac");
    EXPECT_FALSE(held);
    EXPECT_EQ(printable("\xc2", held) + printable("\xa9", held), "\xc2\xa9");
    EXPECT_EQ(printable("\xc2", held) + printable("\x9b", held), "");
}

}  // namespace
}  // namespace nereid::cli
